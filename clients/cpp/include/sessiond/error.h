#pragma once

#include <grpcpp/support/status.h>
#include <sessiond/v1/error_reason.pb.h>

#include <chrono>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace sessiond {

/// A field of a request that the server did not accept.
struct Violation {
  /// The field, as the proto spells it.
  std::string field;
  /// What is wrong with it.
  std::string description;
};

/// A call that failed: the gRPC status and the details that sessiond sends with it.
class Error : public std::runtime_error {
 public:
  /// Reads the details of a status that a generated stub returned; it must not be OK.
  explicit Error(const grpc::Status& status);

  /// An error of this side, with a reason of the contract or without.
  Error(grpc::StatusCode code, const std::string& message, const std::string& reason = "");

  grpc::StatusCode code() const { return code_; }

  /// What happened, for people.
  const std::string& message() const { return message_; }

  /// ERROR_REASON_UNSPECIFIED when the server named none, or one that this version does not know:
  /// reason_name() has that one too.
  v1::ErrorReason reason() const;

  /// The reason as it was sent, `SESSION_NOT_FOUND` for one; empty when there is none.
  const std::string& reason_name() const { return reason_; }

  /// What the reason is about: ids, limits, positions.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// The fields of the request that are at fault.
  const std::vector<Violation>& violations() const { return violations_; }

  /// After how long the same call may succeed, when the server said so.
  std::optional<std::chrono::milliseconds> retry_delay() const { return retry_delay_; }

 private:
  grpc::StatusCode code_;
  std::string message_;
  std::string reason_;
  std::map<std::string, std::string> metadata_;
  std::vector<Violation> violations_;
  std::optional<std::chrono::milliseconds> retry_delay_;
};

/// The name of a code as gRPC spells it: `NOT_FOUND`.
const char* CodeName(grpc::StatusCode code);

}  // namespace sessiond
