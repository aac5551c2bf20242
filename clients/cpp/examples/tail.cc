// Prints a session's events, one line of JSON each: the history, then what happens.

#include <pthread.h>
#include <sessiond/client.h>

#include <csignal>
#include <filesystem>
#include <iostream>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "json.h"

namespace {

namespace v1 = sessiond::v1;

constexpr const char* kUsage =
    R"(usage: tail [--address ADDR] [--token-file FILE] [--tls-ca FILE]
            [--session ID | --new [--driver NAME] [--workspace DIR]]
            [--after N] [--send TEXT] [--count N])";

struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct Options {
  sessiond::Connection connection;
  std::string session;
  bool fresh = false;
  std::string driver = "echo";
  std::string workspace;
  std::int64_t after = 0;
  std::optional<std::string> send;
  std::int64_t count = std::numeric_limits<std::int64_t>::max();
};

std::int64_t Number(const std::string& flag, const std::string& text, std::int64_t least) {
  try {
    std::size_t used = 0;
    const std::int64_t number = std::stoll(text, &used);
    if (used == text.size() && number >= least) {
      return number;
    }
  } catch (const std::logic_error&) {
    // Said below, like what is only a number in part, or too small.
  }
  throw UsageError(flag + ": \"" + text + "\" is no number from " + std::to_string(least) + " on");
}

void Set(Options& options, const std::string& flag, const std::string& value) {
  if (flag == "--address") {
    options.connection.address = value;
  } else if (flag == "--token-file") {
    options.connection.token_file = value;
  } else if (flag == "--tls-ca") {
    options.connection.tls_ca = value;
  } else if (flag == "--session") {
    options.session = value;
  } else if (flag == "--driver") {
    options.driver = value;
  } else if (flag == "--workspace") {
    options.workspace = value;
  } else if (flag == "--after") {
    options.after = Number(flag, value, 0);
  } else if (flag == "--send") {
    options.send = value;
  } else if (flag == "--count") {
    options.count = Number(flag, value, 1);
  } else {
    throw UsageError("there is no " + flag);
  }
}

/// Nothing: it is help that is asked for.
std::optional<Options> Parse(int argc, char** argv) {
  Options options;
  options.workspace = std::filesystem::current_path().string();
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--new") {
      options.fresh = true;
    } else if (flag == "--help" || flag == "-h") {
      return std::nullopt;
    } else if (i + 1 == argc) {
      throw UsageError("there is no " + flag + ", or it needs a value");
    } else {
      Set(options, flag, argv[++i]);
    }
  }
  if (options.fresh != options.session.empty()) {
    throw UsageError("either --session or --new is required");
  }
  return options;
}

/// Whichever comes first, the end of the events or a signal, says how it ended and ends the
/// program.
[[noreturn]] void End(const std::string& how, const sessiond::Error* error = nullptr) {
  static std::mutex once;
  once.lock();
  json::Value line = {{"end", how}};
  if (error != nullptr) {
    line["error"] = json::FromError(*error);
  }
  json::Print(line);
  std::_Exit(error == nullptr ? 0 : 1);
}

/// Signals are taken by a thread, since a handler may do next to nothing.
void TakeSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    int number = 0;
    sigwait(&signals, &number);
    End("CANCELLED");
  }).detach();
}

std::string Create(const sessiond::Client& client, const Options& options) {
  v1::CreateSessionRequest request;
  request.set_driver(options.driver);
  request.set_workspace(options.workspace);
  return client.Retry(&v1::SessionService::Stub::CreateSession, request).session().session_id();
}

std::string Tail(const Options& options) {
  const sessiond::Client client(options.connection);
  // A server that is not there is told at once: a subscription would wait for it.
  client.Call(&v1::ServerService::Stub::GetServerInfo, v1::GetServerInfoRequest());
  const std::string session = options.fresh ? Create(client, options) : options.session;
  if (options.send) {
    v1::SendRequest request;
    request.set_session_id(session);
    request.set_text(*options.send);
    client.Retry(&v1::SessionService::Stub::Send, request);
  }
  sessiond::SubscribeOptions from;
  from.after_seq = options.after;
  auto events = client.Subscribe(session, from);
  for (std::int64_t number = 0; number < options.count; ++number) {
    const auto event = events.Next();
    if (!event) {
      return "OK";
    }
    json::Value line = {{"seq", std::to_string(event->seq())}, {"kind", sessiond::Kind(*event)}};
    if (const auto text = json::Text(*event)) {
      line["text"] = *text;
    }
    json::Print(line);
  }
  return "DONE";
}

}  // namespace

int main(int argc, char** argv) {
  TakeSignals();
  try {
    const auto options = Parse(argc, argv);
    if (!options) {
      std::cout << kUsage << "\n";
      return 0;
    }
    End(Tail(*options));
  } catch (const sessiond::Error& error) {
    End(sessiond::CodeName(error.code()), &error);
  } catch (const std::exception& error) {
    std::cerr << "tail: " << error.what() << "\n" << kUsage << "\n";
    return 2;
  }
}
