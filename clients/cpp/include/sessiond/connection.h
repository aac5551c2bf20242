#pragma once

#include <stdexcept>
#include <string>

namespace sessiond {

/// Where the server is and how to be let in; what is left empty is discovered.
///
/// The address is the first that is there of `address`, SESSIOND_ADDRESS, and what a server of this
/// machine wrote to its runtime folder. The token is the first of `token`, `token_file`,
/// SESSIOND_TOKEN, SESSIOND_TOKEN_FILE, and the token file of that server; a unix socket needs
/// none.
struct Connection {
  /// `unix:///path/to/sessiond.sock`, `host:port`, or `https://host:port` for TLS. A token does not
  /// go to `host:port` unless that is this machine.
  std::string address;

  /// The bearer token itself.
  std::string token;

  /// A file with the bearer token. It is read again for every call, so that a new token needs no
  /// new client.
  std::string token_file;

  /// A PEM file with the certificates to trust, instead of SESSIOND_TLS_CA, the one that a server
  /// of this machine announces, or the system's.
  std::string tls_ca;

  /// PEM files with the client's own certificate and its key, instead of SESSIOND_TLS_CERT and
  /// SESSIOND_TLS_KEY.
  std::string tls_certificate;
  std::string tls_key;
};

/// What was given or discovered to connect with can't be used; the text says what to change.
/// Nothing was sent.
class AddressError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace sessiond
