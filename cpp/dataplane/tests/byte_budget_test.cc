// byte_budget_test.cc: requests share the budget, wait for it, and give it back.
#include "dataplane/byte_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "dataplane/error.h"

namespace dataplane {
namespace {

using namespace std::chrono_literals;

TEST(ByteBudget, ARequestWaitsUntilAnotherGivesItsShareBack) {
  ByteBudget budget(100);
  std::optional<ByteBudget::Share> first = budget.take(60, Clock::now() + 10s);
  std::atomic<bool> has_second{false};
  std::thread second([&] {
    const auto share = budget.take(60, Clock::now() + 10s);
    has_second = true;
  });
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(has_second);
  EXPECT_EQ(budget.used(), 60U);
  first.reset();
  second.join();
  EXPECT_TRUE(has_second);
  EXPECT_EQ(budget.used(), 0U);
}

TEST(ByteBudget, RequestsMayFillTheBudgetToItsLastByte) {
  ByteBudget budget(100);
  const auto first = budget.take(60, Clock::now() + 10s);
  const auto second = budget.take(40, Clock::now() + 10s);
  EXPECT_EQ(budget.used(), 100U);
}

TEST(ByteBudget, ARequestThatFindsNoRoomInTimeIsLate) {
  ByteBudget budget(100);
  const auto all = budget.take(100, Clock::now() + 10s);
  EXPECT_THROW((void)budget.take(1, Clock::now() + 5ms), Late);
  EXPECT_EQ(budget.used(), 100U);
}

TEST(ByteBudget, ARequestLargerThanTheBudgetIsServedAlone) {
  ByteBudget budget(100);
  {
    const auto large = budget.take(1000, Clock::now() + 10s);
    EXPECT_THROW((void)budget.take(1, Clock::now() + 5ms), Late);
  }
  const auto small = budget.take(1, Clock::now() + 10s);
  EXPECT_THROW((void)budget.take(1000, Clock::now() + 5ms), Late);
}

}  // namespace
}  // namespace dataplane
