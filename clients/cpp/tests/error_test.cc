#include <gtest/gtest.h>
#include <sessiond/error.h>

#include "rich_status.pb.h"

namespace sessiond {
namespace {

client::wire::ErrorInfo Info(const std::string& reason, const std::string& domain) {
  client::wire::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain(domain);
  (*info.mutable_metadata())["session_id"] = "s1";
  return info;
}

/// Packs a detail under the name that servers use.
void Add(client::wire::Status& status, const google::protobuf::Message& detail) {
  auto* packed = status.add_details();
  packed->set_type_url("type.googleapis.com/google.rpc." + detail.GetDescriptor()->name());
  packed->set_value(detail.SerializeAsString());
}

Error With(grpc::StatusCode code, const client::wire::Status& details) {
  return Error(grpc::Status(code, "no", details.SerializeAsString()));
}

TEST(Error, DetailsAreTyped) {
  client::wire::BadRequest request;
  auto* violation = request.add_field_violations();
  violation->set_field("text");
  violation->set_description("too long");
  client::wire::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  retry.mutable_retry_delay()->set_nanos(500000000);
  client::wire::Status details;
  Add(details, Info("QUEUE_FULL", "sessiond"));
  Add(details, request);
  Add(details, retry);

  const Error error = With(grpc::StatusCode::RESOURCE_EXHAUSTED, details);
  EXPECT_EQ(error.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.reason(), v1::ERROR_REASON_QUEUE_FULL);
  EXPECT_EQ(error.metadata().at("session_id"), "s1");
  ASSERT_EQ(error.violations().size(), 1U);
  EXPECT_EQ(error.violations()[0].field, "text");
  EXPECT_EQ(error.retry_delay(), std::chrono::milliseconds(1500));
  EXPECT_STREQ(error.what(), "RESOURCE_EXHAUSTED (QUEUE_FULL): no");
}

TEST(Error, AReasonFromTheFutureKeepsItsName) {
  client::wire::Status details;
  Add(details, Info("MOON_NOT_FOUND", "sessiond"));
  const Error error = With(grpc::StatusCode::NOT_FOUND, details);
  EXPECT_EQ(error.reason(), v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_EQ(error.reason_name(), "MOON_NOT_FOUND");
}

TEST(Error, AReasonOfAnotherDomainIsNotOurs) {
  client::wire::Status details;
  Add(details, Info("QUEUE_FULL", "example.com"));
  const Error error = With(grpc::StatusCode::INTERNAL, details);
  EXPECT_EQ(error.reason_name(), "");
  EXPECT_TRUE(error.metadata().empty());
}

TEST(Error, DetailsThatCantBeReadLeaveTheStatus) {
  const Error error(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no", "\xff\xff"));
  EXPECT_EQ(error.code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(error.message(), "no");
  EXPECT_EQ(error.retry_delay(), std::nullopt);
}

}  // namespace
}  // namespace sessiond
