#pragma once

#include <sessiond/error.h>

#include <chrono>
#include <optional>

namespace sessiond::detail {

/// How long to wait before the next attempt: doubled each time, and a little at random so that many
/// clients do not come back in one moment.
class Backoff {
 public:
  void Reset() { next_ = kFirst; }

  /// The wait, not shorter than what the server asked for.
  std::chrono::milliseconds Next(std::optional<std::chrono::milliseconds> told);

 private:
  static constexpr std::chrono::milliseconds kFirst{100};

  std::chrono::milliseconds next_ = kFirst;
};

/// Waits a few times for a server that is away.
class Patience {
 public:
  /// Waits, if another attempt is worth it before `end`, else throws `error`.
  void WaitOrThrow(const Error& error, std::chrono::steady_clock::time_point end);

 private:
  static constexpr int kAttempts = 5;

  Backoff backoff_;
  int failures_ = 0;
};

}  // namespace sessiond::detail
