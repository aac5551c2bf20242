#include <sessiond/error.h>

#include "rich_status.pb.h"

namespace sessiond {

namespace {

constexpr const char* kDomain = "sessiond";
constexpr const char* kPrefix = "ERROR_REASON_";

std::string Text(grpc::StatusCode code, const std::string& message, const std::string& reason) {
  return std::string(CodeName(code)) + (reason.empty() ? "" : " (" + reason + ")") +
         (message.empty() ? "" : ": " + message);
}

/// Unpacks the first detail of a type; false when there is none.
template <class Detail>
bool Find(const client::wire::Status& details, const std::string& type, Detail& detail) {
  for (const auto& packed : details.details()) {
    const auto& url = packed.type_url();
    const auto slash = url.rfind('/');
    if (slash != std::string::npos && url.compare(slash + 1, std::string::npos, type) == 0) {
      return detail.ParseFromString(packed.value());
    }
  }
  return false;
}

client::wire::Status Details(const grpc::Status& status) {
  client::wire::Status details;
  // Details that can't be read say nothing; the status itself still does.
  if (!details.ParseFromString(status.error_details())) {
    details.Clear();
  }
  return details;
}

client::wire::ErrorInfo Info(const client::wire::Status& details) {
  client::wire::ErrorInfo info;
  if (!Find(details, "google.rpc.ErrorInfo", info) || info.domain() != kDomain) {
    info.Clear();
  }
  return info;
}

}  // namespace

Error::Error(const grpc::Status& status)
    : Error(status.error_code(), status.error_message(), Info(Details(status)).reason()) {
  const auto details = Details(status);
  const auto info = Info(details);
  metadata_.insert(info.metadata().begin(), info.metadata().end());
  client::wire::BadRequest request;
  if (Find(details, "google.rpc.BadRequest", request)) {
    for (const auto& violation : request.field_violations()) {
      violations_.push_back({violation.field(), violation.description()});
    }
  }
  client::wire::RetryInfo retry;
  if (Find(details, "google.rpc.RetryInfo", retry) && retry.has_retry_delay()) {
    const std::chrono::nanoseconds fraction(retry.retry_delay().nanos());
    retry_delay_ = std::chrono::seconds(retry.retry_delay().seconds()) +
                   std::chrono::duration_cast<std::chrono::milliseconds>(fraction);
  }
}

Error::Error(grpc::StatusCode code, const std::string& message, const std::string& reason)
    : std::runtime_error(Text(code, message, reason)),
      code_(code),
      message_(message),
      reason_(reason) {}

v1::ErrorReason Error::reason() const {
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  if (!v1::ErrorReason_Parse(kPrefix + reason_, &reason)) {
    return v1::ERROR_REASON_UNSPECIFIED;
  }
  return reason;
}

const char* CodeName(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return "OK";
    case grpc::StatusCode::CANCELLED:
      return "CANCELLED";
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case grpc::StatusCode::NOT_FOUND:
      return "NOT_FOUND";
    case grpc::StatusCode::ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case grpc::StatusCode::PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case grpc::StatusCode::UNAUTHENTICATED:
      return "UNAUTHENTICATED";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case grpc::StatusCode::FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case grpc::StatusCode::ABORTED:
      return "ABORTED";
    case grpc::StatusCode::OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case grpc::StatusCode::INTERNAL:
      return "INTERNAL";
    case grpc::StatusCode::UNAVAILABLE:
      return "UNAVAILABLE";
    case grpc::StatusCode::DATA_LOSS:
      return "DATA_LOSS";
    default:
      return "UNKNOWN";
  }
}

}  // namespace sessiond
