#include <sessiond/client.h>

#include "backoff.h"
#include "channel.h"
#include "target.h"

namespace sessiond {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Client::Client(const Connection& connection)
    : channel_(
          std::make_shared<detail::Channel>(detail::Resolve(connection, detail::FromProcess))) {}

const std::string& Client::address() const { return channel_->target().address; }

Subscription Client::Subscribe(std::string session_id, SubscribeOptions options) const {
  return {channel_, std::move(session_id), std::move(options)};
}

void Client::Authenticate(grpc::ClientContext& context) const { channel_->Authenticate(context); }

void Client::Run(const Attempt& attempt, milliseconds deadline) const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  Authenticate(context);
  const grpc::Status status = attempt(context);
  if (!status.ok()) {
    throw Error(status);
  }
}

void Client::RunPatiently(const Attempt& attempt, milliseconds deadline) const {
  const auto end = steady_clock::now() + deadline;
  detail::Patience patience;
  while (true) {
    try {
      return Run(attempt, std::chrono::ceil<milliseconds>(end - steady_clock::now()));
    } catch (const Error& error) {
      patience.WaitOrThrow(error, end);
    }
  }
}

v1::SessionService::Stub& Client::sessions() const { return channel_->sessions(); }

v1::AttachmentService::Stub& Client::attachments() const { return channel_->attachments(); }

v1::ServerService::Stub& Client::server() const { return channel_->server(); }

}  // namespace sessiond
