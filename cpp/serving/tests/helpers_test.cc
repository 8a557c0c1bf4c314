// helpers_test.cc: the helping thread does offered work once, on another processor, or gives it back.
#include "serving/helpers.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace serving {
namespace {

class Work final : public SideWork {
 public:
  void help() noexcept override {
    processor = sched_getcpu();
    ++calls;
    while (is_held.load()) std::this_thread::yield();
    is_done = true;
  }

  std::atomic<int> processor{-1};
  std::atomic<int> calls{0};
  std::atomic<bool> is_held{false};
  std::atomic<bool> is_done{false};
};

template <class Condition>
bool comes_true(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  do {
    if (condition()) return true;
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

bool has_two_processors() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) >= 2;
}

TEST(HelpingThreadTest, EveryOfferIsBegunOrWithdrawnOnce) {
  if (!has_two_processors()) GTEST_SKIP() << "the process has one processor";
  HelpingThread helper;
  for (int i = 0; i < 2000; ++i) {
    Work work;
    ASSERT_TRUE(comes_true([&] { return helper.offer(work); }));
    if (helper.withdraw(work)) {
      EXPECT_EQ(work.calls, 0);
    } else {
      ASSERT_TRUE(comes_true([&] { return work.is_done.load(); }));
      EXPECT_EQ(work.calls, 1);
    }
  }
  Work last;
  ASSERT_TRUE(comes_true([&] { return helper.offer(last); }));
  ASSERT_TRUE(comes_true([&] { return last.is_done.load(); }));
  EXPECT_FALSE(helper.withdraw(last));
}

TEST(HelpingThreadTest, ABusyThreadTakesNoSecondOffer) {
  if (!has_two_processors()) GTEST_SKIP() << "the process has one processor";
  HelpingThread helper;
  Work first;
  Work second;
  first.is_held = true;
  ASSERT_TRUE(helper.offer(first));
  EXPECT_FALSE(helper.offer(second));
  ASSERT_TRUE(comes_true([&] { return first.calls == 1; }));
  EXPECT_FALSE(helper.offer(second));
  first.is_held = false;
  ASSERT_TRUE(comes_true([&] { return helper.offer(second); }));
  ASSERT_TRUE(comes_true([&] { return second.is_done.load(); }));
}

TEST(HelpingThreadTest, TheThreadRunsOnAnotherProcessorThanItsCaller) {
  if (!has_two_processors()) GTEST_SKIP() << "the process has one processor";
  HelpingThread helper;
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (int processor = 0, tried = 0; processor < CPU_SETSIZE && tried < 4; ++processor) {
    if (!CPU_ISSET(static_cast<unsigned>(processor), &allowed)) continue;
    ++tried;
    std::thread([&] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(static_cast<unsigned>(processor), &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
      Work work;
      ASSERT_TRUE(comes_true([&] { return helper.offer(work); }));
      ASSERT_TRUE(comes_true([&] { return work.is_done.load(); }));
      EXPECT_NE(work.processor, processor);
    }).join();
  }
}

}  // namespace
}  // namespace serving
