#pragma once

#include <sessiond/error.h>
#include <sessiond/v1/event.pb.h>

#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

namespace sessiond {

namespace detail {
class Channel;
}  // namespace detail

/// From where to follow a session, and for how long.
struct SubscribeOptions {
  /// Only events with a higher seq; 0 is all of them.
  std::int64_t after_seq = 0;

  /// The transcript that `after_seq` was taken from: another one fails with TRANSCRIPT_CHANGED.
  std::string transcript_id = "";

  /// How long to follow, over all connections together; for ever unless set.
  std::optional<std::chrono::milliseconds> deadline = std::nullopt;

  /// Whether to go on after a cut.
  bool resume = true;

  /// How long a silence counts as a cut: three heartbeats.
  std::chrono::milliseconds watchdog = std::chrono::seconds(45);
};

/// A session's events, in order, each once, over as many connections as it takes.
///
/// For one reader at a time; Cancel() may come from any thread. An event whose body is not set is
/// of a kind that this version does not know: its seq counts. Destroying it cancels it, at the
/// server too.
///
///     for (const auto& event : client.Subscribe("s1")) { ... }
class Subscription {
 public:
  class Iterator;

  Subscription(std::shared_ptr<detail::Channel> channel, std::string session_id,
               SubscribeOptions options);
  ~Subscription();
  Subscription(Subscription&&) noexcept;
  Subscription& operator=(Subscription&&) noexcept;
  Subscription(const Subscription&) = delete;
  Subscription& operator=(const Subscription&) = delete;

  /// Waits for the next event; nothing when the server ended the stream because the session was
  /// deleted. Throws Error when it can't go on: the session does not exist, the transcript is
  /// another one, the deadline has passed, it was cancelled. Every later call throws the same.
  std::optional<v1::Event> Next();

  /// Like Next, but does not wait longer than `patience`; nothing also when no event came in that
  /// time: see over().
  std::optional<v1::Event> Poll(std::chrono::milliseconds patience);

  /// Ends it; the server learns of it at once. Whoever reads then gets CANCELLED.
  void Cancel();

  /// The seq of the last event handed over: what to store, to go on from there another day.
  std::int64_t bookmark() const;

  /// The highest seq of the session when the server last spoke.
  std::int64_t head_seq() const;

  /// The lowest seq that the server still has.
  std::int64_t first_seq() const;

  /// Which transcript this is, to be stored beside the bookmark; empty before the first response.
  const std::string& transcript_id() const;

  /// Whether all that has happened so far was handed over.
  bool caught_up() const;

  /// Whether the server ended it, since the session was deleted.
  bool over() const;

  /// How many responses came without events.
  std::uint64_t heartbeats() const;

  /// How many times another stream was opened after the first.
  std::uint64_t reconnects() const;

  /// The events as a range that can be gone through once.
  Iterator begin();
  static Iterator end();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Goes through the events of a subscription once; incrementing waits, and throws Error.
class Subscription::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = v1::Event;
  using difference_type = std::ptrdiff_t;
  using pointer = const v1::Event*;
  using reference = const v1::Event&;

  Iterator() = default;
  explicit Iterator(Subscription* source) : source_(source) { ++*this; }

  reference operator*() const { return *event_; }
  pointer operator->() const { return &*event_; }
  Iterator& operator++() {
    event_ = source_->Next();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const Iterator& one, const Iterator& other) {
    return one.event_.has_value() == other.event_.has_value();
  }
  friend bool operator!=(const Iterator& one, const Iterator& other) { return !(one == other); }

 private:
  Subscription* source_ = nullptr;
  std::optional<v1::Event> event_;
};

inline Subscription::Iterator Subscription::begin() { return Iterator(this); }
inline Subscription::Iterator Subscription::end() { return {}; }

}  // namespace sessiond
