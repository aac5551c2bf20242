package dev.sessiond.client;

import dev.sessiond.v1.Event;
import dev.sessiond.v1.SendRequest;
import dev.sessiond.v1.SendResponse;
import dev.sessiond.v1.SessionServiceGrpc;
import dev.sessiond.v1.SubscribeRequest;
import dev.sessiond.v1.SubscribeResponse;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.netty.shaded.io.netty.channel.EventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.MultiThreadIoEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.nio.NioIoHandler;
import io.grpc.netty.shaded.io.netty.channel.socket.nio.NioServerDomainSocketChannel;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;

/** A server on a real unix socket that plays a script. */
final class ScriptedServer extends SessionServiceGrpc.SessionServiceImplBase {
  /** What one Subscribe says, then how it ends; null: it stays silent. */
  record Attempt(List<SubscribeResponse> responses, Status end) {}

  final List<SubscribeRequest> subscribed = new CopyOnWriteArrayList<>();
  final List<SendRequest> sent = new CopyOnWriteArrayList<>();
  final CountDownLatch left = new CountDownLatch(1);

  /** Kept here, since loggers that nobody holds are forgotten. */
  private static final Logger BOOTSTRAP_LOG =
      Logger.getLogger("io.grpc.netty.shaded.io.netty.bootstrap.ServerBootstrap");

  static {
    // It warns that unix sockets lack a TCP option.
    BOOTSTRAP_LOG.setLevel(Level.SEVERE);
  }

  private final Queue<Attempt> attempts = new ArrayDeque<>();
  private final Queue<Status> refusals = new ArrayDeque<>();
  private final EventLoopGroup loops =
      new MultiThreadIoEventLoopGroup(1, NioIoHandler.newFactory());
  private final Path socket;
  private final Server server;

  ScriptedServer(Path folder) throws IOException {
    socket = folder.resolve("s.sock");
    server =
        NettyServerBuilder.forAddress(UnixDomainSocketAddress.of(socket))
            .channelType(NioServerDomainSocketChannel.class)
            .bossEventLoopGroup(loops)
            .workerEventLoopGroup(loops)
            .addService(this)
            .build()
            .start();
  }

  ScriptedServer says(Status end, SubscribeResponse... responses) {
    synchronized (attempts) {
      attempts.add(new Attempt(List.of(responses), end));
    }
    return this;
  }

  ScriptedServer refuses(Status... statuses) {
    synchronized (refusals) {
      refusals.addAll(List.of(statuses));
    }
    return this;
  }

  static SubscribeResponse events(long... seqs) {
    SubscribeResponse.Builder response =
        SubscribeResponse.newBuilder().setTranscriptId("t1").setFirstSeq(1);
    for (long seq : seqs) {
      response.addEvents(Event.newBuilder().setSeq(seq)).setHeadSeq(seq);
    }
    return response.build();
  }

  Connection connection() {
    return Connection.to("unix://" + socket);
  }

  @Override
  public void subscribe(SubscribeRequest request, StreamObserver<SubscribeResponse> observer) {
    subscribed.add(request);
    ((ServerCallStreamObserver<SubscribeResponse>) observer).setOnCancelHandler(left::countDown);
    Attempt attempt;
    synchronized (attempts) {
      attempt = attempts.poll();
    }
    if (attempt == null) {
      observer.onError(new StatusRuntimeException(Status.NOT_FOUND));
      return;
    }
    attempt.responses().forEach(observer::onNext);
    if (attempt.end() != null && attempt.end().isOk()) {
      observer.onCompleted();
    } else if (attempt.end() != null) {
      observer.onError(new StatusRuntimeException(attempt.end()));
    }
  }

  @Override
  public void send(SendRequest request, StreamObserver<SendResponse> observer) {
    sent.add(request);
    Status refusal;
    synchronized (refusals) {
      refusal = refusals.poll();
    }
    if (refusal != null) {
      observer.onError(new StatusRuntimeException(refusal));
      return;
    }
    observer.onNext(SendResponse.newBuilder().setMessageId("m1").build());
    observer.onCompleted();
  }

  void stop() throws InterruptedException {
    server.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    loops.shutdownGracefully(0, 1, TimeUnit.SECONDS);
  }
}
