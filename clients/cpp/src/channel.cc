#include "channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <sessiond/error.h>

namespace sessiond::detail {

namespace {

constexpr int kReceiveLimit = 8 << 20;
constexpr int kKeepaliveMs = 20000;
constexpr int kKeepaliveTimeoutMs = 10000;
constexpr int kFirstReconnectMs = 100;
// A local server costs nothing to try; a distant one is not to be hammered.
constexpr int kLastReconnectLocalMs = 1000;
constexpr int kLastReconnectMs = 5000;

std::string Pem(const std::string& path) {
  std::string content;
  if (!path.empty() && !ReadStripped(path, content)) {
    throw AddressError("can't read the certificate or key " + path);
  }
  return content;
}

std::shared_ptr<grpc::ChannelCredentials> Credentials(const Target& target) {
  if (target.kind != Target::Kind::kTls) {
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = Pem(target.tls_ca);
  options.pem_cert_chain = Pem(target.tls_certificate);
  options.pem_private_key = Pem(target.tls_key);
  return grpc::SslCredentials(options);
}

grpc::ChannelArguments Arguments(const Target& target) {
  const int last = target.local ? kLastReconnectLocalMs : kLastReconnectMs;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReceiveLimit);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, last);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, last);
  // Repeats are this library's own: only it knows which are safe.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A connection of its own, so that giving one up gives up no other.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (target.local) {
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  }
  if (target.kind == Target::Kind::kUnix) {
    arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  }
  return arguments;
}

}  // namespace

Channel::Channel(Target target) : target_(std::move(target)) {
  const auto channel =
      grpc::CreateCustomChannel(target_.grpc_target, Credentials(target_), Arguments(target_));
  sessions_ = v1::SessionService::NewStub(channel);
  attachments_ = v1::AttachmentService::NewStub(channel);
  server_ = v1::ServerService::NewStub(channel);
}

void Channel::Authenticate(grpc::ClientContext& context) const {
  std::string token = target_.token;
  if (!target_.token_file.empty() && !ReadStripped(target_.token_file, token)) {
    throw Error(grpc::StatusCode::UNAUTHENTICATED,
                "can't read the token file " + target_.token_file);
  }
  if (!target_.token_file.empty() && token.empty()) {
    throw Error(grpc::StatusCode::UNAUTHENTICATED,
                "the token file is empty: " + target_.token_file);
  }
  if (!token.empty()) {
    context.AddMetadata("authorization", "Bearer " + token);
  }
}

}  // namespace sessiond::detail
