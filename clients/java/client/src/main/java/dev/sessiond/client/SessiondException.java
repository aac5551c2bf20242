package dev.sessiond.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.sessiond.v1.ErrorReason;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** A call that failed: the gRPC status and the details that sessiond sends with it. */
public final class SessiondException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private static final String DOMAIN = "sessiond";
  private static final String PREFIX = "ERROR_REASON_";

  private final Status.Code code;
  private final String description;
  private final String reasonName;
  private final transient Map<String, String> metadata;
  private final transient List<Violation> violations;
  private final Duration retryDelay;

  private SessiondException(Status status, com.google.rpc.Status details) {
    super(text(status, reasonOf(details)), status.getCause());
    Optional<ErrorInfo> info = infoOf(details);
    this.code = status.getCode();
    this.description = described(status);
    this.reasonName = info.map(ErrorInfo::getReason).orElse("");
    this.metadata = info.map(ErrorInfo::getMetadataMap).map(Map::copyOf).orElse(Map.of());
    this.violations =
        detail(details, BadRequest.class).map(SessiondException::violationsOf).orElse(List.of());
    this.retryDelay =
        detail(details, RetryInfo.class)
            .filter(RetryInfo::hasRetryDelay)
            .map(RetryInfo::getRetryDelay)
            .map(delay -> Duration.ofSeconds(delay.getSeconds(), delay.getNanos()))
            .orElse(null);
  }

  /**
   * Reads the details of an error of the generated stubs.
   *
   * @param error what a stub threw
   * @return the same error with its details typed
   */
  public static SessiondException of(StatusRuntimeException error) {
    return of(error.getStatus(), error.getTrailers());
  }

  static SessiondException of(Status status, Metadata trailers) {
    com.google.rpc.Status details = StatusProto.fromStatusAndTrailers(status, trailers);
    return new SessiondException(status, details);
  }

  static SessiondException of(Status status) {
    return new SessiondException(status, com.google.rpc.Status.getDefaultInstance());
  }

  static SessiondException withReason(Status status, ErrorReason reason) {
    ErrorInfo info =
        ErrorInfo.newBuilder()
            .setDomain(DOMAIN)
            .setReason(reason.name().substring(PREFIX.length()))
            .build();
    return new SessiondException(
        status, com.google.rpc.Status.newBuilder().addDetails(Any.pack(info)).build());
  }

  /**
   * Returns the gRPC status code.
   *
   * @return the code
   */
  public Status.Code code() {
    return code;
  }

  /**
   * Returns what the server said about it, for people.
   *
   * @return the status message; may be empty
   */
  public String description() {
    return description;
  }

  /**
   * Returns the reason.
   *
   * @return {@code ERROR_REASON_UNSPECIFIED} when the server named none, {@code UNRECOGNIZED} when
   *     it named one that this version does not know: {@link #reasonName()} has that one too
   */
  public ErrorReason reason() {
    if (reasonName.isEmpty()) {
      return ErrorReason.ERROR_REASON_UNSPECIFIED;
    }
    try {
      return ErrorReason.valueOf(PREFIX + reasonName);
    } catch (IllegalArgumentException unknown) {
      return ErrorReason.UNRECOGNIZED;
    }
  }

  /**
   * Returns the reason as it was sent.
   *
   * @return {@code SESSION_NOT_FOUND} for one; empty when there is none
   */
  public String reasonName() {
    return reasonName;
  }

  /**
   * Returns what the reason is about: ids, limits, positions.
   *
   * @return an unmodifiable map
   */
  public Map<String, String> metadata() {
    return metadata;
  }

  /**
   * Returns the fields of the request that are at fault.
   *
   * @return an unmodifiable list
   */
  public List<Violation> violations() {
    return violations;
  }

  /**
   * Returns after how long the same call may succeed.
   *
   * @return the delay, when the server said so
   */
  public Optional<Duration> retryDelay() {
    return Optional.ofNullable(retryDelay);
  }

  private static String text(Status status, String reason) {
    String named = reason.isEmpty() ? "" : " (" + reason + ")";
    String said = described(status);
    return status.getCode() + named + (said.isEmpty() ? "" : ": " + said);
  }

  /** The transport says "io exception" and leaves the rest to the cause. */
  private static String described(Status status) {
    String said = Optional.ofNullable(status.getDescription()).orElse("");
    String cause = Optional.ofNullable(status.getCause()).map(Throwable::getMessage).orElse("");
    boolean told = cause.isEmpty() || said.contains(cause);
    return told ? said : said + (said.isEmpty() ? "" : ": ") + cause;
  }

  private static String reasonOf(com.google.rpc.Status details) {
    return infoOf(details).map(ErrorInfo::getReason).orElse("");
  }

  private static Optional<ErrorInfo> infoOf(com.google.rpc.Status details) {
    return detail(details, ErrorInfo.class).filter(info -> info.getDomain().equals(DOMAIN));
  }

  private static List<Violation> violationsOf(BadRequest request) {
    List<Violation> violations = new ArrayList<>();
    for (BadRequest.FieldViolation violation : request.getFieldViolationsList()) {
      violations.add(new Violation(violation.getField(), violation.getDescription()));
    }
    return List.copyOf(violations);
  }

  private static <T extends Message> Optional<T> detail(
      com.google.rpc.Status details, Class<T> type) {
    for (Any packed : details.getDetailsList()) {
      try {
        if (packed.is(type)) {
          return Optional.of(packed.unpack(type));
        }
      } catch (InvalidProtocolBufferException unreadable) {
        // A detail that can't be read says nothing; the status itself still does.
        return Optional.empty();
      }
    }
    return Optional.empty();
  }
}
