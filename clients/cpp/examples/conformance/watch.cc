#include <map>
#include <set>

#include "steps.h"

namespace {

namespace v1 = sessiond::v1;
using std::chrono::milliseconds;

/// How often heartbeats and reconnects are looked at while no event comes.
constexpr milliseconds kGlance{20};
constexpr std::int64_t kDeadlineMs = 60000;
constexpr std::int64_t kWatchdogMs = 45000;

sessiond::SubscribeOptions Options(const Step& step) {
  sessiond::SubscribeOptions options;
  options.after_seq = step.Number("after_seq").value_or(0);
  options.transcript_id = step.Text("transcript_id");
  options.deadline = step.Millis("deadline_ms", kDeadlineMs);
  options.resume = step.Flag("resume", true);
  options.watchdog = step.Millis("watchdog_ms", kWatchdogMs);
  return options;
}

/// One subscription, and what was seen of it so far.
class Observer {
 public:
  Observer(const sessiond::Client& client, const Step& step)
      : step_(step),
        until_(step.Part("until")),
        events_(client.Subscribe(step.Required("session_id"), Options(step))),
        last_seq_(step.Number("after_seq").value_or(0)),
        from_start_(last_seq_ == 0),
        keep_(static_cast<std::size_t>(step.Number("keep").value_or(0))) {
    for (const auto& item : step.Get("announce")) {
      announce_.insert(item.is_string() ? item.get<std::string>() : item.dump());
    }
  }

  json::Value Run() {
    try {
      return Report(Follow(), nullptr);
    } catch (const sessiond::Error& error) {
      return Report(sessiond::CodeName(error.code()), &error);
    }
  }

 private:
  std::string Follow() {
    const auto cancel_after = step_.Number("cancel_after");
    while (true) {
      if (events_.caught_up() && announce_.erase("caught_up") > 0) {
        Announce("caught_up", true);
      }
      if (Holds()) {
        return "DONE";
      }
      if (cancel_after && count_ >= *cancel_after) {
        events_.Cancel();
      }
      if (auto event = events_.Poll(kGlance)) {
        Add(std::move(*event));
      } else if (events_.over()) {
        return "OK";
      }
    }
  }

  bool Reached(const std::string& key, std::int64_t now) const {
    const auto wanted = until_.Number(key);
    return wanted && now >= *wanted;
  }

  bool Holds() const {
    return Reached("count", count_) || Reached("seq", last_seq_) ||
           kinds_.count(until_.Text("kind")) > 0 ||
           Reached("heartbeats", static_cast<std::int64_t>(events_.heartbeats())) ||
           Reached("reconnects", static_cast<std::int64_t>(events_.reconnects())) ||
           (until_.Flag("caught_up", false) && events_.caught_up());
  }

  void Add(v1::Event event) {
    if (event.seq() <= last_seq_) {
      ++repeats_;
    } else if (event.seq() != last_seq_ + 1 && !(from_start_ && !last_)) {
      ++gaps_;
    }
    ++count_;
    last_seq_ = event.seq();
    if (!last_) {
      first_ = event.seq();
    }
    ++kinds_[sessiond::Kind(event)];
    text_bytes_ += event.assistant_text().delta().size();
    text_.Add(event.assistant_text().delta());
    if (kept_.size() < keep_) {
      kept_.push_back(json::FromEvent(event));
    }
    last_ = std::move(event);
    if (announce_.erase(std::to_string(count_)) > 0) {
      Announce("events", count_);
    }
  }

  void Announce(const std::string& what, const json::Value& value) const {
    json::Print({{"progress", {{"step", step_.Required("id")}, {what, value}}}});
  }

  json::Value Report(const std::string& end, const sessiond::Error* error) {
    json::Value result = {{"end", end}};
    if (error != nullptr && error->code() != grpc::StatusCode::CANCELLED) {
      result["error"] = json::FromError(*error);
    }
    if (last_) {
      result["first"] = std::to_string(first_);
    }
    result.update({{"count", count_},
                   {"last_seq", std::to_string(last_seq_)},
                   {"gaps", gaps_},
                   {"repeats", repeats_},
                   {"head_seq", std::to_string(events_.head_seq())},
                   {"first_seq", std::to_string(events_.first_seq())},
                   {"transcript_id", events_.transcript_id()},
                   {"caught_up", events_.caught_up()},
                   {"heartbeats", events_.heartbeats()},
                   {"reconnects", events_.reconnects()},
                   {"kinds", kinds_},
                   {"text_bytes", text_bytes_},
                   {"text_sha256", text_.Hex()},
                   {"last", last_ ? json::FromEvent(*last_) : json::Value::object()},
                   {"events", kept_}});
    return result;
  }

  const Step& step_;
  const Step until_;
  sessiond::Subscription events_;
  std::int64_t last_seq_;
  const bool from_start_;
  const std::size_t keep_;
  std::set<std::string> announce_;
  std::map<std::string, std::int64_t> kinds_;
  json::Value kept_ = json::Value::array();
  Digest text_;
  std::size_t text_bytes_ = 0;
  std::int64_t count_ = 0;
  std::int64_t gaps_ = 0;
  std::int64_t repeats_ = 0;
  std::int64_t first_ = 0;
  std::optional<v1::Event> last_;
};

}  // namespace

json::Value Watch(const sessiond::Client& client, const Step& step) {
  return Observer(client, step).Run();
}
