package dev.sessiond.client;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.EventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.MultiThreadIoEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.nio.NioIoHandler;
import io.grpc.netty.shaded.io.netty.channel.socket.nio.NioDomainSocketChannel;
import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import java.util.logging.Filter;
import java.util.logging.Logger;

/** Makes channels, and the interceptor that adds the token to every call. */
final class Channels {
  /** Kept here, since loggers that nobody holds are forgotten. */
  private static final Logger BOOTSTRAP_LOG =
      Logger.getLogger("io.grpc.netty.shaded.io.netty.bootstrap.Bootstrap");

  private static final int RECEIVE_LIMIT = 8 << 20;
  private static final int FLOW_CONTROL_WINDOW = 4 << 20;
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  static {
    // gRPC sets this TCP option on every socket, and Netty warns each time that a unix socket has
    // none.
    Filter before = BOOTSTRAP_LOG.getFilter();
    BOOTSTRAP_LOG.setFilter(
        record ->
            !String.valueOf(record.getMessage()).contains("'SO_KEEPALIVE'")
                && (before == null || before.isLoggable(record)));
  }

  private Channels() {}

  /** A channel and what has to be shut down after it. */
  record Open(ManagedChannel channel, EventLoopGroup loops) {
    void close() {
      channel.shutdownNow();
      if (loops != null) {
        loops.shutdownGracefully(0, 1, TimeUnit.SECONDS);
      }
    }
  }

  /** Makes a channel; it connects when it is first used. */
  static Open open(Connection connection) {
    EventLoopGroup loops = null;
    NettyChannelBuilder builder;
    if (connection.address() instanceof Address.Unix unix) {
      loops = new MultiThreadIoEventLoopGroup(1, NioIoHandler.newFactory());
      builder =
          NettyChannelBuilder.forAddress(
                  UnixDomainSocketAddress.of(unix.path()), InsecureChannelCredentials.create())
              .eventLoopGroup(loops)
              .channelType(NioDomainSocketChannel.class, UnixDomainSocketAddress.class)
              .overrideAuthority("localhost");
    } else {
      Address.Tcp tcp = (Address.Tcp) connection.address();
      builder =
          NettyChannelBuilder.forAddress(tcp.host(), tcp.port(), credentials(tcp, connection));
    }
    builder
        .maxInboundMessageSize(RECEIVE_LIMIT)
        .flowControlWindow(FLOW_CONTROL_WINDOW)
        .keepAliveTime(20, TimeUnit.SECONDS)
        .keepAliveTimeout(10, TimeUnit.SECONDS)
        .keepAliveWithoutCalls(true)
        .disableRetry();
    connection.token().ifPresent(token -> builder.intercept(new Bearer(token)));
    return new Open(builder.build(), loops);
  }

  private static ChannelCredentials credentials(Address.Tcp tcp, Connection connection) {
    if (!tcp.tls()) {
      return InsecureChannelCredentials.create();
    }
    Connection.Tls tls = connection.tls();
    TlsChannelCredentials.Builder builder = TlsChannelCredentials.newBuilder();
    try {
      if (tls.ca().isPresent()) {
        builder.trustManager(tls.ca().get().toFile());
      }
      if (tls.certificate().isPresent()) {
        Path key = tls.key().orElseThrow();
        builder.keyManager(tls.certificate().get().toFile(), key.toFile());
      }
    } catch (IOException e) {
      throw new AddressException("can't read a certificate or key: " + e.getMessage(), e);
    }
    return builder.build();
  }

  private record Bearer(Token token) implements ClientInterceptor {
    @Override
    public <R, A> ClientCall<R, A> interceptCall(
        MethodDescriptor<R, A> method, CallOptions options, Channel next) {
      return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
        @Override
        public void start(Listener<A> listener, Metadata headers) {
          headers.put(AUTHORIZATION, "Bearer " + value());
          super.start(listener, headers);
        }
      };
    }

    private String value() {
      try {
        return token.read();
      } catch (IOException e) {
        throw new StatusRuntimeException(
            Status.UNAUTHENTICATED
                .withDescription("can't read the token file: " + e.getMessage())
                .withCause(e));
      }
    }
  }
}
