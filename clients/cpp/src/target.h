#pragma once

#include <sessiond/connection.h>

#include <functional>
#include <string>

namespace sessiond::detail {

/// A variable of the environment; empty when it is not set.
using Environment = std::function<std::string(const std::string&)>;

/// A connection in which nothing is left to be discovered.
struct Target {
  enum class Kind { kUnix, kPlain, kTls };

  /// As SESSIOND_ADDRESS would have it.
  std::string address;
  Kind kind = Kind::kUnix;
  /// As gRPC would have it.
  std::string grpc_target;
  /// Whether it is this machine: a unix socket or a loopback address.
  bool local = true;
  std::string token;
  std::string token_file;
  std::string tls_ca;
  std::string tls_certificate;
  std::string tls_key;
};

/// Parses an address alone. Throws AddressError.
Target ParseAddress(const std::string& address);

/// Discovers what was left out. Throws AddressError.
Target Resolve(const Connection& connection, const Environment& environment);

/// The environment of this process.
std::string FromProcess(const std::string& name);

/// The content of a file without the white space around it; false when it can't be read.
bool ReadStripped(const std::string& path, std::string& content);

}  // namespace sessiond::detail
