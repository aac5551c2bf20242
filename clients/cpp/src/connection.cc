#include <arpa/inet.h>
#include <sessiond/connection.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "target.h"

namespace sessiond::detail {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxPort = 65535;

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

/// The first that is not empty.
template <class... Texts>
std::string First(const std::string& one, const Texts&... others) {
  if constexpr (sizeof...(others) == 0) {
    return one;
  } else {
    return one.empty() ? First(others...) : one;
  }
}

fs::path RuntimeFolder(const Environment& environment) {
  if (const auto own = environment("SESSIOND_RUNTIME_DIR"); !own.empty()) {
    return own;
  }
  if (const auto base = environment("XDG_RUNTIME_DIR"); !base.empty()) {
    return fs::path(base) / "sessiond";
  }
  if (const auto data = environment("SESSIOND_DATA_DIR"); !data.empty()) {
    return fs::path(data) / "run";
  }
  if (const auto data = environment("XDG_DATA_HOME"); !data.empty()) {
    return fs::path(data) / "sessiond" / "run";
  }
  const auto home = environment("HOME");
  if (home.empty()) {
    throw AddressError("neither HOME nor SESSIOND_RUNTIME_DIR is set: set SESSIOND_ADDRESS");
  }
  return fs::path(home) / ".local" / "share" / "sessiond" / "run";
}

/// What the server of this machine says about itself in address.json; nothing when there is no such
/// file, or one that no server wrote.
class Announced {
 public:
  explicit Announced(const fs::path& folder) : folder_(folder) {
    std::ifstream file(folder / "address.json");
    json_ = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  }

  std::string Text(const std::string& key) const {
    if (!json_.is_object()) {
      return {};
    }
    const auto found = json_.find(key);
    return found != json_.end() && found->is_string() ? found->get<std::string>() : std::string();
  }

  std::string Address() const {
    std::string tcp = Text("tcp");
    if (!tcp.empty() && !Text("tls_ca").empty() && tcp.find("://") == std::string::npos) {
      tcp.insert(0, "https://");
    }
    return First(Text("unix"), tcp, "unix://" + (folder_ / "sessiond.sock").string());
  }

  std::string TokenFile() const {
    const auto beside = folder_ / "token";
    std::error_code ignored;
    return First(Text("token_file"), fs::exists(beside, ignored) ? beside.string() : "");
  }

 private:
  fs::path folder_;
  nlohmann::json json_;
};

bool IsLoopback(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return (ntohl(v4.s_addr) >> 24U) == 127;
  }
  return host == "localhost" ||
         (inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

/// Splits `host:port`, IPv6 in brackets; false when it is none.
bool SplitHost(const std::string& authority, std::string& host) {
  const auto colon = authority.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return false;
  }
  host = authority.substr(0, colon);
  const auto port = authority.substr(colon + 1);
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || port.size() > 5 || std::stoi(port) == 0 || std::stoi(port) > kMaxPort) {
    return false;
  }
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    return !host.empty();
  }
  return host.find_first_of("[]:/@ ?#") == std::string::npos;
}

}  // namespace

Target ParseAddress(const std::string& address) {
  const AddressError none("\"" + address +
                          "\" is no address: write unix:///path, host:port or https://host:port");
  Target target;
  target.address = address;
  if (StartsWith(address, "/") || StartsWith(address, "unix:")) {
    auto path = StartsWith(address, "/") ? address : address.substr(5);
    if (StartsWith(path, "//")) {
      path = path.substr(2);
    }
    if (path.empty()) {
      throw none;
    }
    target.grpc_target = "unix:" + path;
    return target;
  }
  auto authority = address;
  target.kind = Target::Kind::kPlain;
  if (StartsWith(address, "https://")) {
    target.kind = Target::Kind::kTls;
    authority = address.substr(8);
  } else if (StartsWith(address, "http://")) {
    authority = address.substr(7);
  }
  while (!authority.empty() && authority.back() == '/') {
    authority.pop_back();
  }
  std::string host;
  if (!SplitHost(authority, host)) {
    throw none;
  }
  target.grpc_target = authority;
  target.local = IsLoopback(host);
  return target;
}

Target Resolve(const Connection& connection, const Environment& environment) {
  const Announced announced(RuntimeFolder(environment));
  Target target =
      ParseAddress(First(connection.address, environment("SESSIOND_ADDRESS"), announced.Address()));
  if (target.kind == Target::Kind::kUnix) {
    return target;
  }
  if (!connection.token.empty()) {
    target.token = connection.token;
  } else if (!connection.token_file.empty()) {
    target.token_file = connection.token_file;
  } else if (target.token = environment("SESSIOND_TOKEN"); target.token.empty()) {
    target.token_file = First(environment("SESSIOND_TOKEN_FILE"), announced.TokenFile());
  }
  const bool token = !target.token.empty() || !target.token_file.empty();
  if (token && target.kind == Target::Kind::kPlain && !target.local) {
    throw AddressError("a token would cross the network in the clear to " + target.address +
                       ": use https://" + target.grpc_target);
  }
  target.tls_ca =
      First(connection.tls_ca, environment("SESSIOND_TLS_CA"), announced.Text("tls_ca"));
  target.tls_certificate = First(connection.tls_certificate, environment("SESSIOND_TLS_CERT"));
  target.tls_key = First(connection.tls_key, environment("SESSIOND_TLS_KEY"));
  if (target.tls_certificate.empty() != target.tls_key.empty()) {
    throw AddressError(
        "a client certificate needs its key, and the key its certificate: give both");
  }
  return target;
}

std::string FromProcess(const std::string& name) {
  // A program that changes its environment from other threads has to see to that itself.
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

bool ReadStripped(const std::string& path, std::string& content) {
  std::ifstream file(path, std::ios::binary);
  content.assign(std::istreambuf_iterator<char>(file), {});
  if (file.bad() || !file.is_open()) {
    return false;
  }
  const char* const kSpace = " \t\r\n";
  content.erase(0, content.find_first_not_of(kSpace));
  content.erase(content.find_last_not_of(kSpace) + 1);
  return true;
}

}  // namespace sessiond::detail
