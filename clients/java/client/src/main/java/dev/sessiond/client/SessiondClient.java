package dev.sessiond.client;

import com.google.protobuf.Message;
import dev.sessiond.v1.AttachmentServiceGrpc;
import dev.sessiond.v1.ServerServiceGrpc;
import dev.sessiond.v1.SessionServiceGrpc;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.time.Duration;
import java.util.concurrent.TimeUnit;

/**
 * A client of one server. Safe to share between threads; it connects when it is first used, and
 * again whenever the connection is lost. Closing it cancels what still runs.
 */
public final class SessiondClient implements AutoCloseable {
  /** How long a call may take unless another deadline is given. Streams have none. */
  public static final Duration DEFAULT_DEADLINE = Duration.ofSeconds(30);

  private final Connection connection;
  private final Channels.Open open;

  private SessiondClient(Connection connection) {
    this.connection = connection;
    this.open = Channels.open(connection);
  }

  /**
   * Makes a client of the server that is discovered.
   *
   * @return a client
   * @throws AddressException if what was discovered can't be used
   */
  public static SessiondClient connect() {
    return connect(Connection.discover());
  }

  /**
   * Makes a client.
   *
   * @param connection where the server is
   * @return a client
   * @throws AddressException if a certificate can't be read
   */
  public static SessiondClient connect(Connection connection) {
    return new SessiondClient(connection);
  }

  /**
   * Makes one call, with a deadline of 30 s.
   *
   * @param <R> the request's type
   * @param <A> the answer's type
   * @param method which call: {@code SessionServiceGrpc.getSendMethod()} for one
   * @param request what to send
   * @return what the server answered
   * @throws SessiondException if the server refused, or could not be reached
   */
  public <R, A> A call(MethodDescriptor<R, A> method, R request) {
    return call(method, request, DEFAULT_DEADLINE);
  }

  /**
   * Makes one call.
   *
   * @param <R> the request's type
   * @param <A> the answer's type
   * @param method which call: {@code SessionServiceGrpc.getSendMethod()} for one
   * @param request what to send
   * @param deadline how long it may take
   * @return what the server answered
   * @throws SessiondException if the server refused, or could not be reached in time
   */
  public <R, A> A call(MethodDescriptor<R, A> method, R request, Duration deadline) {
    CallOptions options =
        CallOptions.DEFAULT.withDeadlineAfter(deadline.toNanos(), TimeUnit.NANOSECONDS);
    try {
      return ClientCalls.blockingUnaryCall(open.channel(), method, options, request);
    } catch (StatusRuntimeException e) {
      throw SessiondException.of(e);
    }
  }

  /**
   * Makes a call that changes something, again and again while the server is away: at most five
   * times within 30 s, always with the same {@code request_id}, so that it happens once.
   *
   * @param <R> the request's type
   * @param <A> the answer's type
   * @param method which call
   * @param request what to send; a random {@code request_id} is filled in if it has none
   * @return what the server answered
   * @throws SessiondException what the last attempt ended with
   * @throws IllegalArgumentException if the call changes nothing, so has no {@code request_id}
   */
  public <R extends Message, A> A retry(MethodDescriptor<R, A> method, R request) {
    return retry(method, request, DEFAULT_DEADLINE);
  }

  /**
   * Makes a call that changes something, again and again while the server is away.
   *
   * @param <R> the request's type
   * @param <A> the answer's type
   * @param method which call
   * @param request what to send; a random {@code request_id} is filled in if it has none
   * @param deadline how long all attempts together may take
   * @return what the server answered
   * @throws SessiondException what the last attempt ended with
   * @throws IllegalArgumentException if the call changes nothing, so has no {@code request_id}
   */
  public <R extends Message, A> A retry(
      MethodDescriptor<R, A> method, R request, Duration deadline) {
    R named = RequestIds.named(request);
    long end = System.nanoTime() + deadline.toNanos();
    Patience patience = new Patience(open.channel());
    while (true) {
      try {
        return call(method, named, Duration.ofNanos(end - System.nanoTime()));
      } catch (SessiondException e) {
        patience.waitOrThrow(e, end);
      }
    }
  }

  /**
   * Follows a session: its whole history, then what happens.
   *
   * @param sessionId which session
   * @return its events; nothing is sent before the first is asked for
   */
  public Subscription subscribe(String sessionId) {
    return subscribe(sessionId, SubscribeOptions.DEFAULT);
  }

  /**
   * Follows a session.
   *
   * @param sessionId which session
   * @param options from where, and for how long
   * @return its events; nothing is sent before the first is asked for
   */
  public Subscription subscribe(String sessionId, SubscribeOptions options) {
    return new Subscription(open, connection, sessionId, options);
  }

  /**
   * Returns what moves attachments in chunks.
   *
   * @return uploads and downloads
   */
  public Attachments attachments() {
    return new Attachments(open.channel());
  }

  /**
   * Returns the channel, for stubs of other styles. Their errors are {@link
   * StatusRuntimeException}s, which {@link SessiondException#of} understands; they have no deadline
   * of themselves.
   *
   * @return the channel, with the token added to every call
   */
  public Channel channel() {
    return open.channel();
  }

  /**
   * Returns the generated blocking stub of the sessions.
   *
   * @return a stub over {@link #channel()}
   */
  public SessionServiceGrpc.SessionServiceBlockingStub sessionStub() {
    return SessionServiceGrpc.newBlockingStub(open.channel());
  }

  /**
   * Returns the generated blocking stub of the attachments.
   *
   * @return a stub over {@link #channel()}
   */
  public AttachmentServiceGrpc.AttachmentServiceBlockingStub attachmentStub() {
    return AttachmentServiceGrpc.newBlockingStub(open.channel());
  }

  /**
   * Returns the generated blocking stub of the server itself.
   *
   * @return a stub over {@link #channel()}
   */
  public ServerServiceGrpc.ServerServiceBlockingStub serverStub() {
    return ServerServiceGrpc.newBlockingStub(open.channel());
  }

  @Override
  public void close() {
    open.close();
  }

  @Override
  public String toString() {
    return "SessiondClient[" + connection + "]";
  }
}
