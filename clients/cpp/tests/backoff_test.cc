#include "backoff.h"

#include <gtest/gtest.h>

namespace sessiond::detail {
namespace {

using std::chrono::milliseconds;

TEST(Backoff, WaitsDoubleUpToFiveSecondsAndStartAnew) {
  Backoff backoff;
  for (const int expected : {100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    const auto wait = static_cast<double>(backoff.Next(std::nullopt).count()) / expected;
    EXPECT_GE(wait, 0.79) << expected;
    EXPECT_LE(wait, 1.2) << expected;
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(std::nullopt), milliseconds(120));
}

TEST(Backoff, TheServerIsObeyed) {
  Backoff backoff;
  EXPECT_EQ(backoff.Next(milliseconds(2000)), milliseconds(2000));
  EXPECT_GE(backoff.Next(milliseconds(1)), milliseconds(160));
}

}  // namespace
}  // namespace sessiond::detail
