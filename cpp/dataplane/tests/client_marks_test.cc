// client_marks_test.cc: a push is done once, whatever comes twice, late or at the same time.
#include "dataplane/client_marks.h"

#include <gtest/gtest.h>

#include <thread>

namespace dataplane {
namespace {

using Answer = ClientMarks::Answer;
constexpr Deadline kNever = Deadline::max();

bool applies(ClientMarks& marks, std::uint64_t client, std::uint64_t sequence) {
  if (marks.begin(client, sequence, kNever) == Answer::kRepeat) return false;
  marks.finish(client, sequence, true);
  return true;
}

TEST(ClientMarks, APushIsAppliedOnceInAnyOrder) {
  ClientMarks marks;
  for (const std::uint64_t sequence : {5U, 3U, 0U, 4096U, 9U, 4U}) {
    EXPECT_TRUE(applies(marks, 1, sequence)) << sequence;
    EXPECT_FALSE(applies(marks, 1, sequence)) << sequence;
  }
  EXPECT_TRUE(applies(marks, 1, 1));
  for (const std::uint64_t sequence : {5U, 3U, 0U, 4096U, 9U, 4U, 1U}) EXPECT_FALSE(applies(marks, 1, sequence));
  EXPECT_TRUE(applies(marks, 2, 5)) << "another client has its own sequences";
}

TEST(ClientMarks, WhatLiesBelowTheWindowIsRefused) {
  ClientMarks marks;
  EXPECT_TRUE(applies(marks, 1, 10'000));
  EXPECT_TRUE(applies(marks, 1, 10'000 - ClientMarks::kWindow));
  EXPECT_FALSE(applies(marks, 1, 10'000 - ClientMarks::kWindow));
  EXPECT_THROW(applies(marks, 1, 10'000 - ClientMarks::kWindow - 1), SequenceForgotten);
  EXPECT_TRUE(applies(marks, 1, 10'001));
  EXPECT_THROW(applies(marks, 1, 10'000 - ClientMarks::kWindow), SequenceForgotten);
  EXPECT_FALSE(applies(marks, 1, 10'000));
}

TEST(ClientMarks, AJumpBeyondTheWindowForgetsAllBelow) {
  ClientMarks marks;
  EXPECT_TRUE(applies(marks, 1, 1));
  EXPECT_TRUE(applies(marks, 1, std::uint64_t{1} << 63));
  EXPECT_THROW(applies(marks, 1, 1), SequenceForgotten);
  EXPECT_TRUE(applies(marks, 1, (std::uint64_t{1} << 63) - 1)) << "never seen, and within the window";
  EXPECT_TRUE(applies(marks, 1, ~std::uint64_t{0}));
}

TEST(ClientMarks, WhatFailedMayBeTriedAgain) {
  ClientMarks marks;
  EXPECT_EQ(marks.begin(1, 1, kNever), Answer::kApply);
  marks.finish(1, 1, false);
  EXPECT_TRUE(applies(marks, 1, 1));
}

TEST(ClientMarks, ASecondAttemptWaitsForTheFirst) {
  for (const bool first_succeeds : {true, false}) {
    ClientMarks marks;
    ASSERT_EQ(marks.begin(1, 1, kNever), Answer::kApply);
    EXPECT_THROW((void)marks.begin(1, 1, Clock::now()), Late);
    EXPECT_TRUE(applies(marks, 1, 2)) << "others do not wait";
    Answer second{};
    std::thread waiter([&] { second = marks.begin(1, 1, kNever); });
    marks.finish(1, 1, first_succeeds);
    waiter.join();
    EXPECT_EQ(second, first_succeeds ? Answer::kRepeat : Answer::kApply);
  }
}

TEST(ClientMarks, SavedAndLoadedTheyAnswerTheSame) {
  ClientMarks marks;
  for (std::uint64_t sequence = 0; sequence < 9000; sequence += sequence % 7 == 0 ? 3 : 1) applies(marks, 1, sequence);
  applies(marks, 2, 77);
  ASSERT_EQ(marks.begin(3, 1, kNever), Answer::kApply);  // under way: not done yet
  const auto saved = marks.save();
  ClientMarks loaded;
  loaded.load(saved);
  EXPECT_EQ(loaded.save(), saved);
  EXPECT_EQ(loaded.clients(), 2U);
  for (std::uint64_t sequence = 9000 - ClientMarks::kWindow; sequence < 9010; ++sequence) {
    EXPECT_EQ(applies(loaded, 1, sequence), applies(marks, 1, sequence)) << sequence;
  }
  EXPECT_FALSE(applies(loaded, 2, 77));
  EXPECT_TRUE(applies(loaded, 3, 1));
}

TEST(ClientMarks, DamagedBytesAreRefusedAndChangeNothing) {
  ClientMarks marks;
  applies(marks, 1, 5);
  applies(marks, 1, 9);
  const auto saved = marks.save();
  for (std::size_t bytes = 0; bytes < saved.size(); ++bytes) {
    EXPECT_THROW(marks.load(Bytes(saved).first(bytes)), engine::SnapshotCorrupt) << bytes;
  }
  auto longer = saved;
  longer.push_back({});
  EXPECT_THROW(marks.load(longer), engine::SnapshotCorrupt);
  auto newer = saved;
  newer[0] = std::byte{9};
  EXPECT_THROW(marks.load(newer), engine::SnapshotCorrupt);
  auto wild = saved;
  wild[wild.size() - 2] = std::byte{0xff};  // a run that is too long
  EXPECT_THROW(marks.load(wild), engine::SnapshotCorrupt);
  EXPECT_EQ(marks.save(), saved);
}

TEST(ClientMarks, TheClientThatWasSilentTheLongestIsForgotten) {
  ClientMarks marks;
  for (std::uint64_t client = 0; client < ClientMarks::kMaxClients; ++client) applies(marks, client, 1);
  EXPECT_FALSE(applies(marks, 0, 1));  // speaks again
  EXPECT_TRUE(applies(marks, 1'000'000, 1));
  EXPECT_EQ(marks.clients(), ClientMarks::kMaxClients);
  EXPECT_FALSE(applies(marks, 0, 1));
  EXPECT_TRUE(applies(marks, 1, 1)) << "forgotten";
}

TEST(ClientMarks, AClientWithARunningPushIsNotForgotten) {
  ClientMarks marks;
  for (std::uint64_t client = 0; client <= ClientMarks::kMaxClients; ++client) {
    EXPECT_EQ(marks.begin(client, 1, kNever), Answer::kApply);
  }
  for (std::uint64_t client = 0; client <= ClientMarks::kMaxClients; ++client) marks.finish(client, 1, true);
  EXPECT_EQ(marks.begin(0, 1, kNever), Answer::kRepeat);
  EXPECT_EQ(marks.begin(ClientMarks::kMaxClients, 1, kNever), Answer::kRepeat);
}

TEST(ClientMarks, ManyThreadsApplyEachPushOnce) {
  ClientMarks marks;
  std::atomic<int> applied{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (std::uint64_t sequence = 0; sequence < 2000; ++sequence) {
        if (applies(marks, 1, sequence)) ++applied;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(applied, 2000);
}

}  // namespace
}  // namespace dataplane
