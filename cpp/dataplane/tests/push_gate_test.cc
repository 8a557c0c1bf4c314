// push_gate_test.cc: a shard whose pushes are held back, admitted one by one, and released.
#include "dataplane/push_gate.h"

#include <gtest/gtest.h>

#include <future>

#include "small_shard.h"

namespace dataplane {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

constexpr Deadline kNoDeadline = Deadline::max();

TEST(PushGate, OpenItLetsEverythingThrough) {
  PushGate gate;
  EXPECT_TRUE(gate.lets_through({1, 1}));
  EXPECT_FALSE(gate.open(1)) << "there was no hold";
}

TEST(PushGate, ClosedItLetsThroughWhatWasAdmitted) {
  PushGate gate;
  gate.close(7, Clock::now() + hours(1));
  EXPECT_FALSE(gate.lets_through({1, 1}));
  const PushName admitted[] = {{2, 5}, {1, 1}};
  EXPECT_FALSE(gate.admit(8, admitted)) << "of another hold";
  EXPECT_TRUE(gate.admit(7, admitted));
  EXPECT_TRUE(gate.lets_through({1, 1}));
  EXPECT_TRUE(gate.lets_through({2, 5}));
  EXPECT_FALSE(gate.lets_through({1, 2}));
  EXPECT_TRUE(gate.open(7));
  EXPECT_FALSE(gate.open(7)) << "it ends once";
  EXPECT_TRUE(gate.lets_through({1, 2}));
}

TEST(PushGate, ANewHoldEndsTheOneBeforeAndForgetsWhatItAdmitted) {
  PushGate gate;
  const PushName admitted[] = {{1, 1}};
  gate.close(1, Clock::now() + hours(1));
  EXPECT_TRUE(gate.admit(1, admitted));
  gate.close(2, Clock::now() + hours(1));
  EXPECT_FALSE(gate.lets_through({1, 1}));
  EXPECT_FALSE(gate.open(1));
  EXPECT_FALSE(gate.lets_through({1, 1}));
  EXPECT_TRUE(gate.open(2));
}

TEST(PushGate, AHoldThatIsOverCannotBeUsed) {
  PushGate gate;
  gate.close(1, Clock::now());
  const PushName admitted[] = {{1, 1}};
  EXPECT_FALSE(gate.admit(1, admitted));
  EXPECT_FALSE(gate.open(1));
  EXPECT_TRUE(gate.lets_through({1, 1}));
}

TEST(PushGate, AWaitingPushContinuesWhenTheTimeOfAHoldEnds) {
  PushGate gate;
  const Deadline begun = Clock::now();
  gate.close(1, begun + milliseconds(20));
  gate.wait({1, 1}, begun + std::chrono::seconds(5));
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(4));
  EXPECT_TRUE(gate.lets_through({1, 1}));
}

TEST(PushGate, WhoWaitsIsWokenByTheEndTheAdmissionAndTheDeadline) {
  PushGate gate;
  gate.close(1, Clock::now() + hours(1));
  gate.wait({1, 1}, Clock::now() + milliseconds(1));
  EXPECT_FALSE(gate.lets_through({1, 1}));
  const PushName admitted[] = {{1, 1}};
  auto first = std::async(std::launch::async, [&] { gate.wait({1, 1}, kNoDeadline); });
  auto second = std::async(std::launch::async, [&] { gate.wait({1, 2}, kNoDeadline); });
  gate.admit(1, admitted);
  first.get();
  EXPECT_NE(second.wait_for(milliseconds(1)), std::future_status::ready);
  gate.open(1);
  second.get();
}

TEST(ShardHold, APushWaitsForTheEndOfAHoldAndAnAdmittedOneIsWaitedFor) {
  const auto shard = small_shard();
  const auto push = [&](std::uint64_t sequence, Deadline deadline = kNoDeadline) {
    shard->push(push_of(1, sequence, {{0, {5}}}, -1.0F).bytes(), false, deadline);
  };
  push(1);
  shard->hold_pushes(9, hours(1));
  const PushName awaited[] = {{1, 1}, {1, 3}};
  EXPECT_FALSE(shard->settle_pushes(9, awaited, Clock::now() + milliseconds(1)));
  EXPECT_THROW(push(2, Clock::now() + milliseconds(1)), Late);
  auto second = std::async(std::launch::async, [&] { push(2); });
  auto third = std::async(std::launch::async, [&] { push(3); });
  EXPECT_TRUE(shard->settle_pushes(9, awaited, kNoDeadline));
  third.get();
  EXPECT_NE(second.wait_for(milliseconds(1)), std::future_status::ready);
  EXPECT_TRUE(shard->release_pushes(9));
  second.get();
  EXPECT_EQ(pull_rows(*shard, pull_of({{0, {5}}})), (std::vector<float>{3, 3}));
}

}  // namespace
}  // namespace dataplane
