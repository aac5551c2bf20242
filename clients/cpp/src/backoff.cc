#include "backoff.h"

#include <algorithm>
#include <random>
#include <thread>

namespace sessiond::detail {

using std::chrono::milliseconds;

namespace {

constexpr milliseconds kLongest{5000};

double Spread() {
  thread_local std::minstd_rand random{std::random_device{}()};
  return std::uniform_real_distribution<>(0.8, 1.2)(random);
}

}  // namespace

milliseconds Backoff::Next(std::optional<milliseconds> told) {
  const auto wait = std::chrono::duration_cast<milliseconds>(next_ * Spread());
  next_ = std::min(next_ * 2, kLongest);
  return std::max(wait, told.value_or(milliseconds{0}));
}

void Patience::WaitOrThrow(const Error& error, std::chrono::steady_clock::time_point end) {
  ++failures_;
  const auto wait = backoff_.Next(error.retry_delay());
  const bool in_time = std::chrono::steady_clock::now() + wait < end;
  if (error.code() != grpc::StatusCode::UNAVAILABLE || failures_ >= kAttempts || !in_time) {
    throw error;
  }
  std::this_thread::sleep_for(wait);
}

}  // namespace sessiond::detail
