#include <gtest/gtest.h>
#include <sessiond/event.h>

namespace sessiond {
namespace {

TEST(Event, EveryBodyHasTheNameThatItHasInTheContract) {
  const auto* bodies = v1::Event::descriptor()->FindOneofByName("body");
  ASSERT_GT(bodies->field_count(), 30);
  for (int i = 0; i < bodies->field_count(); ++i) {
    v1::Event event;
    event.GetReflection()->MutableMessage(&event, bodies->field(i));
    EXPECT_EQ(Kind(event), bodies->field(i)->name());
  }
}

TEST(Event, ABodyOfALaterContractIsUnknownAndKeepsItsSeq) {
  v1::Event later;
  later.set_seq(7);
  later.GetReflection()->MutableUnknownFields(&later)->AddLengthDelimited(99, "");
  v1::Event event;
  ASSERT_TRUE(event.ParseFromString(later.SerializeAsString()));
  EXPECT_EQ(Kind(event), "unknown");
  EXPECT_EQ(event.seq(), 7);
}

}  // namespace
}  // namespace sessiond
