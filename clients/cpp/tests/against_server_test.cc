// The library against a server of this process that plays a script over a real unix socket.

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <sessiond/client.h>

#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "folder.h"

namespace sessiond {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using Seqs = std::vector<std::int64_t>;

/// What one Subscribe says, then how it ends; without an end it stays silent.
struct Attempt {
  std::vector<v1::SubscribeResponse> responses;
  std::optional<grpc::Status> end;
};

v1::SubscribeResponse Events(const Seqs& seqs) {
  v1::SubscribeResponse response;
  response.set_transcript_id("t1");
  response.set_first_seq(1);
  for (const auto seq : seqs) {
    response.add_events()->set_seq(seq);
    response.set_head_seq(seq);
  }
  return response;
}

grpc::Status Failed(StatusCode code) { return {code, "scripted"}; }

class Script : public v1::SessionService::Service {
 public:
  grpc::Status Subscribe(grpc::ServerContext* context, const v1::SubscribeRequest* request,
                         grpc::ServerWriter<v1::SubscribeResponse>* writer) override {
    Attempt attempt;
    {
      const std::lock_guard lock(mutex_);
      subscribed_.push_back(*request);
      if (attempts_.empty()) {
        return Failed(StatusCode::NOT_FOUND);
      }
      attempt = attempts_.front();
      attempts_.pop_front();
    }
    for (const auto& response : attempt.responses) {
      writer->Write(response);
    }
    if (attempt.end) {
      return *attempt.end;
    }
    while (!context->IsCancelled()) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    const std::lock_guard lock(mutex_);
    ++left_;
    return grpc::Status::CANCELLED;
  }

  grpc::Status Send(grpc::ServerContext*, const v1::SendRequest* request,
                    v1::SendResponse* response) override {
    const std::lock_guard lock(mutex_);
    sent_.push_back(*request);
    if (!refusals_.empty()) {
      const auto refusal = refusals_.front();
      refusals_.pop_front();
      return refusal;
    }
    response->set_message_id("m1");
    return grpc::Status::OK;
  }

  void Says(std::vector<v1::SubscribeResponse> responses, std::optional<grpc::Status> end) {
    attempts_.push_back({std::move(responses), std::move(end)});
  }

  void Refuses(const grpc::Status& status) { refusals_.push_back(status); }

  std::vector<v1::SubscribeRequest> subscribed() {
    const std::lock_guard lock(mutex_);
    return subscribed_;
  }

  std::vector<v1::SendRequest> sent() {
    const std::lock_guard lock(mutex_);
    return sent_;
  }

  /// Whether the server sees the client of a silent stream go, within five seconds.
  bool SeesItGo() {
    for (int i = 0; i < 1000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (left_ > 0) {
          return true;
        }
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::deque<Attempt> attempts_;
  std::deque<grpc::Status> refusals_;
  std::vector<v1::SubscribeRequest> subscribed_;
  std::vector<v1::SendRequest> sent_;
  int left_ = 0;
};

class AgainstServerTest : public testing::Test {
 protected:
  AgainstServerTest() {
    const auto address = "unix:" + folder_.In("s.sock");
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(&script_);
    server_ = builder.BuildAndStart();
    Connection connection;
    connection.address = address;
    client_.emplace(connection);
  }

  ~AgainstServerTest() override {
    client_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  Folder folder_;
  Script script_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<Client> client_;
};

/// The code of the error that an attempt ends with.
StatusCode CodeOf(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    return error.code();
  }
  return StatusCode::OK;
}

TEST_F(AgainstServerTest, ItGoesOnAfterTheLastEventItGave) {
  script_.Says({Events({1, 2, 3})}, Failed(StatusCode::UNAVAILABLE));
  script_.Says({}, Failed(StatusCode::UNKNOWN));
  script_.Says({Events({4, 5})}, grpc::Status::OK);
  auto subscription = client_->Subscribe("s1");
  Seqs seqs;
  for (const auto& event : subscription) {
    seqs.push_back(event.seq());
  }
  EXPECT_EQ(seqs, (Seqs{1, 2, 3, 4, 5}));
  EXPECT_TRUE(subscription.over());
  EXPECT_EQ(subscription.reconnects(), 2U);
  const auto asked = script_.subscribed();
  ASSERT_EQ(asked.size(), 3U);
  EXPECT_EQ(asked[0].transcript_id(), "");
  EXPECT_EQ(asked[1].after_seq(), 3);
  EXPECT_EQ(asked[2].transcript_id(), "t1");
}

TEST_F(AgainstServerTest, WithoutResumeTheFirstErrorEndsIt) {
  script_.Says({Events({1})}, Failed(StatusCode::UNAVAILABLE));
  SubscribeOptions options;
  options.resume = false;
  auto subscription = client_->Subscribe("s1", options);
  EXPECT_EQ(subscription.Next()->seq(), 1);
  EXPECT_EQ(CodeOf([&] { subscription.Next(); }), StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf([&] { subscription.Next(); }), StatusCode::UNAVAILABLE);
}

TEST_F(AgainstServerTest, APromiseThatIsBrokenIsDataLoss) {
  for (const auto& broken : {Seqs{1, 2, 4}, Seqs{1, 1}, Seqs{2}}) {
    script_.Says({Events(broken)}, std::nullopt);
    auto subscription = client_->Subscribe("s1");
    EXPECT_EQ(CodeOf([&] { subscription.Next(); }), StatusCode::DATA_LOSS);
    EXPECT_EQ(subscription.bookmark(), 0);
  }
}

TEST_F(AgainstServerTest, ASilentServerIsLeftForANewConnection) {
  script_.Says({Events({1})}, std::nullopt);
  script_.Says({Events({2})}, grpc::Status::OK);
  SubscribeOptions options;
  options.watchdog = milliseconds(300);
  auto subscription = client_->Subscribe("s1", options);
  EXPECT_EQ(subscription.Next()->seq(), 1);
  EXPECT_EQ(subscription.Next()->seq(), 2);
  EXPECT_FALSE(subscription.Next().has_value());
  EXPECT_TRUE(script_.SeesItGo());
}

TEST_F(AgainstServerTest, ADeadlineEndsItForGood) {
  script_.Says({Events({1, 2})}, std::nullopt);
  SubscribeOptions options;
  options.deadline = milliseconds(400);
  auto subscription = client_->Subscribe("s1", options);
  subscription.Next();
  subscription.Next();
  EXPECT_EQ(CodeOf([&] { subscription.Next(); }), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(script_.subscribed().size(), 1U);
}

TEST_F(AgainstServerTest, PollReturnsEmptyHandedInTime) {
  script_.Says({Events({1}), Events({})}, std::nullopt);
  auto subscription = client_->Subscribe("s1");
  EXPECT_EQ(subscription.Poll(std::chrono::seconds(10))->seq(), 1);
  while (subscription.heartbeats() == 0) {
    EXPECT_FALSE(subscription.Poll(milliseconds(10)).has_value());
  }
  EXPECT_FALSE(subscription.over());
}

TEST_F(AgainstServerTest, CancelWakesTheReaderAndReachesTheServer) {
  script_.Says({Events({1})}, std::nullopt);
  auto subscription = client_->Subscribe("s1");
  subscription.Next();
  const auto other = std::async(std::launch::async, [&] { subscription.Cancel(); });
  EXPECT_EQ(CodeOf([&] { subscription.Next(); }), StatusCode::CANCELLED);
  EXPECT_TRUE(script_.SeesItGo());
}

TEST_F(AgainstServerTest, CancelEndsABackoff) {
  for (int i = 0; i < 8; ++i) {
    script_.Says({}, Failed(StatusCode::UNAVAILABLE));
  }
  auto subscription = client_->Subscribe("s1");
  const auto other = std::async(std::launch::async, [&] {
    while (script_.subscribed().size() < 3) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    subscription.Cancel();
  });
  EXPECT_EQ(CodeOf([&] { subscription.Next(); }), StatusCode::CANCELLED);
  EXPECT_LT(script_.subscribed().size(), 5U);
}

TEST_F(AgainstServerTest, DestroyingItReachesTheServer) {
  script_.Says({Events({1})}, std::nullopt);
  client_->Subscribe("s1").Next();
  EXPECT_TRUE(script_.SeesItGo());
}

TEST_F(AgainstServerTest, ARetriedCallKeepsItsRequestId) {
  script_.Refuses(Failed(StatusCode::UNAVAILABLE));
  script_.Refuses(Failed(StatusCode::UNAVAILABLE));
  v1::SendRequest request;
  request.set_text("once");
  const auto response = client_->Retry(&v1::SessionService::Stub::Send, request);
  EXPECT_EQ(response.message_id(), "m1");
  const auto sent = script_.sent();
  ASSERT_EQ(sent.size(), 3U);
  EXPECT_EQ(sent[0].request_id().size(), 36U);
  EXPECT_EQ(sent[0].SerializeAsString(), sent[1].SerializeAsString());
  EXPECT_EQ(sent[0].SerializeAsString(), sent[2].SerializeAsString());
}

TEST_F(AgainstServerTest, ARefusalIsNotTriedAgain) {
  script_.Refuses(Failed(StatusCode::FAILED_PRECONDITION));
  v1::SendRequest request;
  request.set_request_id("mine");
  EXPECT_EQ(CodeOf([&] { client_->Retry(&v1::SessionService::Stub::Send, request); }),
            StatusCode::FAILED_PRECONDITION);
  ASSERT_EQ(script_.sent().size(), 1U);
  EXPECT_EQ(script_.sent()[0].request_id(), "mine");
}

TEST(NobodyThere, IsUnavailable) {
  Connection connection;
  connection.address = "/no/such.sock";
  const Client client(connection);
  EXPECT_EQ(
      CodeOf([&] { client.Call(&v1::SessionService::Stub::GetSession, v1::GetSessionRequest{}); }),
      StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace sessiond
