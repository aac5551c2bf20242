#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_stream.h>
#include <sessiond/subscription.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "backoff.h"
#include "channel.h"

namespace sessiond {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Time = steady_clock::time_point;

namespace {

/// What only may be a cut is taken for one this often, without a response in between.
constexpr int kMaxPerhapsCut = 10;

std::chrono::system_clock::time_point ForGrpc(Time time) {
  if (time == Time::max()) {
    return std::chrono::system_clock::time_point::max();
  }
  const auto left = std::chrono::ceil<milliseconds>(time - steady_clock::now());
  return std::chrono::system_clock::now() + left;
}

/// Where the transcript stands.
struct Position {
  std::int64_t bookmark = 0;
  std::int64_t head_seq = 0;
  std::int64_t first_seq = 0;
  std::string transcript_id;
  bool heard = false;
  std::uint64_t heartbeats = 0;

  /// Checks what the server promises; returns what it broke.
  std::optional<Error> Accept(const v1::SubscribeResponse& response) {
    if (!transcript_id.empty() && response.transcript_id() != transcript_id) {
      return Error(
          grpc::StatusCode::FAILED_PRECONDITION,
          "the transcript is " + response.transcript_id() + ", not " + transcript_id + " any more",
          "TRANSCRIPT_CHANGED");
    }
    std::int64_t last = bookmark;
    if (last == 0 && response.first_seq() > 1) {
      // From the beginning, of a transcript whose beginning is gone.
      last = response.first_seq() - 1;
    }
    for (const auto& event : response.events()) {
      if (event.seq() != ++last) {
        return Error(grpc::StatusCode::DATA_LOSS, "event " + std::to_string(event.seq()) +
                                                      " came where " + std::to_string(last) +
                                                      " must come");
      }
    }
    heard = true;
    head_seq = response.head_seq();
    first_seq = response.first_seq();
    transcript_id = response.transcript_id();
    heartbeats += response.events().empty() ? 1 : 0;
    return std::nullopt;
  }
};

/// One stream of a subscription. Its operations complete in Wait alone, one after another.
class Stream {
 public:
  enum class What { kNothing, kResponse, kEnd };

  Stream(const detail::Channel& channel, const v1::SubscribeRequest& request, Time end,
         bool wait_for_ready) {
    channel.Authenticate(context_);
    context_.set_wait_for_ready(wait_for_ready);
    if (end != Time::max()) {
      context_.set_deadline(ForGrpc(end));
    }
    reader_ = channel.sessions().AsyncSubscribe(&context_, request, &queue_, nullptr);
  }

  ~Stream() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// From any thread.
  void Cancel() { context_.TryCancel(); }

  /// What comes until then: the first response or the end.
  What Wait(Time until) {
    while (true) {
      void* tag = nullptr;
      bool ok = false;
      if (queue_.AsyncNext(&tag, &ok, ForGrpc(until)) != grpc::CompletionQueue::GOT_EVENT) {
        return What::kNothing;
      }
      if (finishing_) {
        return What::kEnd;
      }
      if (!ok) {
        finishing_ = true;
        reader_->Finish(&status_, nullptr);
      } else if (!reading_) {
        reading_ = true;
        reader_->Read(&response_, nullptr);
      } else {
        return What::kResponse;
      }
    }
  }

  v1::SubscribeResponse& response() { return response_; }
  const grpc::Status& status() const { return status_; }

  /// Asks for another response: the last one was used up.
  void More() { reader_->Read(&response_, nullptr); }

 private:
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::SubscribeResponse>> reader_;
  v1::SubscribeResponse response_;
  grpc::Status status_;
  bool reading_ = false;
  bool finishing_ = false;
};

}  // namespace

class Subscription::Impl {
 public:
  Impl(std::shared_ptr<detail::Channel> channel, std::string session_id, SubscribeOptions options)
      : channel_(std::move(channel)),
        session_id_(std::move(session_id)),
        options_(std::move(options)),
        end_(options_.deadline ? steady_clock::now() + *options_.deadline : Time::max()) {
    position_.bookmark = options_.after_seq;
    position_.transcript_id = options_.transcript_id;
  }

  std::optional<v1::Event> Take(Time until) {
    while (!over_ && !HasEvent() && !Cancelled()) {
      const Time now = steady_clock::now();
      if (now >= end_) {
        Finish(Error(grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline has passed"));
      } else if (!stream_ && now >= open_at_) {
        Open();
      } else if (!Step(now, until)) {
        return std::nullopt;
      }
    }
    if (Cancelled()) {
      Finish(Error(grpc::StatusCode::CANCELLED, "cancelled by the caller"));
    }
    if (failure_) {
      throw Error(*failure_);
    }
    if (!HasEvent()) {
      return std::nullopt;
    }
    v1::Event event = std::move(*batch_.mutable_events(taken_++));
    position_.bookmark = event.seq();
    return event;
  }

  void Cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (stream_) {
      stream_->Cancel();
    }
    woken_.notify_all();
  }

  const Position& position() const { return position_; }
  bool over() const { return over_ && !failure_; }
  std::uint64_t reconnects() const { return streams_ == 0 ? 0 : streams_ - 1; }

 private:
  bool HasEvent() const { return taken_ < batch_.events_size(); }

  bool Cancelled() {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }

  /// Waits for what comes next; false: `until` has come.
  bool Step(Time now, Time until) {
    if (!stream_) {
      std::unique_lock lock(mutex_);
      woken_.wait_until(lock, std::min({open_at_, end_, until}), [this] { return cancelled_; });
      return steady_clock::now() < until || cancelled_ || steady_clock::now() >= open_at_;
    }
    const Time silent_at = heard_at_ + options_.watchdog;
    switch (stream_->Wait(std::min({silent_at, end_, until}))) {
      case Stream::What::kResponse:
        Receive();
        return true;
      case Stream::What::kEnd:
        Ended(stream_->status());
        return true;
      default:
        break;
    }
    now = steady_clock::now();
    if (now >= silent_at && now < end_) {
      Silent();
      return true;
    }
    return now < until;
  }

  void Open() {
    v1::SubscribeRequest request;
    request.set_session_id(session_id_);
    request.set_after_seq(position_.bookmark);
    request.set_transcript_id(position_.transcript_id);
    heard_at_ = steady_clock::now();
    ++streams_;
    try {
      Replace(std::make_unique<Stream>(*channel_, request, end_, streams_ > 1));
    } catch (const Error& error) {
      Finish(error);
    }
  }

  void Receive() {
    heard_at_ = steady_clock::now();
    perhaps_cut_ = 0;
    if (const auto broken = position_.Accept(stream_->response())) {
      Finish(*broken);
      return;
    }
    if (!stream_->response().events().empty()) {
      backoff_.Reset();
    }
    batch_ = std::move(stream_->response());
    taken_ = 0;
    stream_->More();
  }

  void Ended(const grpc::Status& status) {
    if (status.ok()) {
      Finish(std::nullopt);
    } else {
      Broke(Error(status));
    }
  }

  void Silent() {
    // A connection that swallows everything would swallow the next stream too.
    channel_ = std::make_shared<detail::Channel>(channel_->target());
    Broke(Error(grpc::StatusCode::UNAVAILABLE,
                "nothing was heard for " + std::to_string(options_.watchdog.count()) + " ms"));
  }

  void Broke(const Error& error) {
    if (!options_.resume || !Heals(error)) {
      Finish(error);
      return;
    }
    open_at_ = steady_clock::now() + backoff_.Next(error.retry_delay());
    Replace(nullptr);
  }

  bool Heals(const Error& error) {
    const auto code = error.code();
    const bool name_of_a_cut = code == grpc::StatusCode::INTERNAL ||
                               code == grpc::StatusCode::UNKNOWN ||
                               code == grpc::StatusCode::CANCELLED;
    if (name_of_a_cut && error.reason_name().empty()) {
      return ++perhaps_cut_ <= kMaxPerhapsCut;
    }
    return code == grpc::StatusCode::UNAVAILABLE || (position_.heard && error.retry_delay());
  }

  void Finish(std::optional<Error> error) {
    if (over_) {
      return;
    }
    over_ = true;
    failure_ = std::move(error);
    Replace(nullptr);
  }

  void Replace(std::unique_ptr<Stream> stream) {
    const std::lock_guard lock(mutex_);
    stream_ = std::move(stream);
    if (stream_ && cancelled_) {
      stream_->Cancel();
    }
  }

  std::shared_ptr<detail::Channel> channel_;
  const std::string session_id_;
  const SubscribeOptions options_;
  const Time end_;
  Position position_;
  detail::Backoff backoff_;
  v1::SubscribeResponse batch_;
  int taken_ = 0;
  Time open_at_ = Time::min();
  Time heard_at_;
  std::uint64_t streams_ = 0;
  int perhaps_cut_ = 0;
  bool over_ = false;
  std::optional<Error> failure_;

  /// Guards what Cancel touches: `cancelled_`, and `stream_` against being replaced.
  std::mutex mutex_;
  std::condition_variable woken_;
  bool cancelled_ = false;
  std::unique_ptr<Stream> stream_;
};

Subscription::Subscription(std::shared_ptr<detail::Channel> channel, std::string session_id,
                           SubscribeOptions options)
    : impl_(std::make_unique<Impl>(std::move(channel), std::move(session_id), std::move(options))) {
}

Subscription::~Subscription() = default;
Subscription::Subscription(Subscription&&) noexcept = default;
Subscription& Subscription::operator=(Subscription&&) noexcept = default;

std::optional<v1::Event> Subscription::Next() { return impl_->Take(Time::max()); }

std::optional<v1::Event> Subscription::Poll(milliseconds patience) {
  return impl_->Take(steady_clock::now() + patience);
}

void Subscription::Cancel() { impl_->Cancel(); }

std::int64_t Subscription::bookmark() const { return impl_->position().bookmark; }

std::int64_t Subscription::head_seq() const { return impl_->position().head_seq; }

std::int64_t Subscription::first_seq() const { return impl_->position().first_seq; }

const std::string& Subscription::transcript_id() const { return impl_->position().transcript_id; }

bool Subscription::caught_up() const {
  const Position& position = impl_->position();
  return position.heard && position.bookmark >= position.head_seq;
}

bool Subscription::over() const { return impl_->over(); }

std::uint64_t Subscription::heartbeats() const { return impl_->position().heartbeats; }

std::uint64_t Subscription::reconnects() const { return impl_->reconnects(); }

}  // namespace sessiond
