#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <sessiond/v1/attachment_service.grpc.pb.h>
#include <sessiond/v1/server_service.grpc.pb.h>
#include <sessiond/v1/session_service.grpc.pb.h>

#include <memory>

#include "target.h"

namespace sessiond::detail {

/// A connection and the stubs over it.
class Channel {
 public:
  /// Throws AddressError when a certificate can't be read.
  explicit Channel(Target target);

  const Target& target() const { return target_; }
  v1::SessionService::Stub& sessions() const { return *sessions_; }
  v1::AttachmentService::Stub& attachments() const { return *attachments_; }
  v1::ServerService::Stub& server() const { return *server_; }

  /// Adds the token. Throws Error when its file can't be read.
  void Authenticate(grpc::ClientContext& context) const;

 private:
  Target target_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::AttachmentService::Stub> attachments_;
  std::unique_ptr<v1::ServerService::Stub> server_;
};

}  // namespace sessiond::detail
