#pragma once

#include <grpcpp/client_context.h>
#include <sessiond/connection.h>
#include <sessiond/error.h>
#include <sessiond/event.h>
#include <sessiond/request_id.h>
#include <sessiond/subscription.h>
#include <sessiond/v1/attachment_service.grpc.pb.h>
#include <sessiond/v1/server_service.grpc.pb.h>
#include <sessiond/v1/session_service.grpc.pb.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

namespace sessiond {

/// What to upload.
struct Upload {
  std::string session_id;
  std::string_view content;
  /// `image/png`, `text/plain`...
  std::string media_type = "";
  /// A name for people.
  std::string filename = "";
  /// How much goes with one call, at most 1 MiB.
  std::size_t chunk_bytes = std::size_t{256} << 10U;
};

/// A client of one server. Cheap to copy, copies share one connection; safe to use from many
/// threads. It connects when it is first used, and again whenever the connection is lost.
class Client {
 public:
  /// How long a call may take unless another deadline is given. Streams have none.
  static constexpr std::chrono::milliseconds kDefaultDeadline{30000};

  /// Throws AddressError when something given or discovered can't be used.
  explicit Client(const Connection& connection = {});

  /// The address in use, after discovery.
  const std::string& address() const;

  /// Makes one call. Throws Error when the server refused or could not be reached in time.
  ///
  ///     client.Call(&v1::SessionService::Stub::Send, request);
  template <class Stub, class Request, class Response>
  Response Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                const Request& request,
                std::chrono::milliseconds deadline = kDefaultDeadline) const {
    Response response;
    Run(
        [&](grpc::ClientContext& context) {
          return (stub<Stub>().*method)(&context, request, &response);
        },
        deadline);
    return response;
  }

  /// Makes a call that changes something, again and again while the server is away: at most five
  /// times, always with the same `request_id`, so that it happens once. A random id is filled in if
  /// the request has none. Throws Error: what the last attempt ended with.
  template <class Stub, class Request, class Response>
  Response Retry(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                 Request request, std::chrono::milliseconds deadline = kDefaultDeadline) const {
    if (request.request_id().empty()) {
      request.set_request_id(NewRequestId());
    }
    Response response;
    RunPatiently(
        [&](grpc::ClientContext& context) {
          return (stub<Stub>().*method)(&context, request, &response);
        },
        deadline);
    return response;
  }

  /// Follows a session: its history after `options.after_seq`, then what happens. Nothing is sent
  /// before the first event is asked for.
  Subscription Subscribe(std::string session_id, SubscribeOptions options = {}) const;

  /// Uploads an attachment, chunk by chunk; a chunk that found no server is sent again. Its ref
  /// goes into a message's `attachment_refs`. Throws Error.
  v1::Attachment UploadAttachment(const Upload& upload) const;

  /// Downloads an attachment, giving `sink` one chunk after another, and going on where it was when
  /// the connection is cut. Throws Error; DATA_LOSS at the end, if the content is not what the ref
  /// says.
  void DownloadAttachment(const std::string& session_id, const std::string& ref,
                          const std::function<void(const std::string&)>& sink) const;

  /// Adds the token to a context of yours, for calls over the stubs below. Throws Error when its
  /// file can't be read.
  void Authenticate(grpc::ClientContext& context) const;

  /// The generated stubs: of v1::SessionService, v1::AttachmentService and v1::ServerService.
  template <class Stub>
  Stub& stub() const {
    if constexpr (std::is_same_v<Stub, v1::SessionService::Stub>) {
      return sessions();
    } else if constexpr (std::is_same_v<Stub, v1::AttachmentService::Stub>) {
      return attachments();
    } else {
      static_assert(std::is_same_v<Stub, v1::ServerService::Stub>, "not a stub of sessiond");
      return server();
    }
  }

 private:
  using Attempt = std::function<grpc::Status(grpc::ClientContext&)>;

  void Run(const Attempt& attempt, std::chrono::milliseconds deadline) const;
  void RunPatiently(const Attempt& attempt, std::chrono::milliseconds deadline) const;
  v1::SessionService::Stub& sessions() const;
  v1::AttachmentService::Stub& attachments() const;
  v1::ServerService::Stub& server() const;

  std::shared_ptr<detail::Channel> channel_;
};

}  // namespace sessiond
