package dev.sessiond.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.google.protobuf.Any;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import com.google.rpc.Status;
import dev.sessiond.v1.ErrorReason;
import io.grpc.Status.Code;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class SessiondExceptionTest {
  private static SessiondException with(Code code, com.google.protobuf.Message... details) {
    Status.Builder status = Status.newBuilder().setCode(code.value()).setMessage("no");
    for (com.google.protobuf.Message detail : details) {
      status.addDetails(Any.pack(detail));
    }
    return SessiondException.of(StatusProto.toStatusRuntimeException(status.build()));
  }

  private static ErrorInfo info(String reason, String domain) {
    return ErrorInfo.newBuilder()
        .setReason(reason)
        .setDomain(domain)
        .putMetadata("session_id", "s1")
        .build();
  }

  @Test
  void detailsAreTyped() {
    BadRequest.FieldViolation violation =
        BadRequest.FieldViolation.newBuilder().setField("text").setDescription("too long").build();
    SessiondException error =
        with(
            Code.RESOURCE_EXHAUSTED,
            info("QUEUE_FULL", "sessiond"),
            BadRequest.newBuilder().addFieldViolations(violation).build(),
            RetryInfo.newBuilder()
                .setRetryDelay(
                    com.google.protobuf.Duration.newBuilder().setSeconds(1).setNanos(500_000_000))
                .build());
    assertEquals(Code.RESOURCE_EXHAUSTED, error.code());
    assertEquals(ErrorReason.ERROR_REASON_QUEUE_FULL, error.reason());
    assertEquals(Map.of("session_id", "s1"), error.metadata());
    assertEquals(List.of(new Violation("text", "too long")), error.violations());
    assertEquals(Optional.of(Duration.ofMillis(1500)), error.retryDelay());
    assertEquals("RESOURCE_EXHAUSTED (QUEUE_FULL): no", error.getMessage());
  }

  @Test
  void aReasonFromTheFutureKeepsItsName() {
    SessiondException error = with(Code.NOT_FOUND, info("MOON_NOT_FOUND", "sessiond"));
    assertEquals(ErrorReason.UNRECOGNIZED, error.reason());
    assertEquals("MOON_NOT_FOUND", error.reasonName());
  }

  @Test
  void aReasonOfAnotherDomainIsNotOurs() {
    SessiondException error = with(Code.INTERNAL, info("QUEUE_FULL", "example.com"));
    assertEquals("", error.reasonName());
    assertEquals(ErrorReason.ERROR_REASON_UNSPECIFIED, error.reason());
  }

  @Test
  void anErrorWithoutDetailsIsOneToo() {
    SessiondException error = with(Code.PERMISSION_DENIED);
    assertEquals(Code.PERMISSION_DENIED, error.code());
    assertEquals("no", error.description());
    assertEquals(Optional.empty(), error.retryDelay());
  }
}
