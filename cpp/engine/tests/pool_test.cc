// pool_test.cc: every piece runs once, from many callers together, through errors, resizing and forks.
#include "engine/pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/shared_mutex.h"

namespace engine {
namespace {

TEST(Pool, EveryPieceRunsExactlyOnce) {
  for (const unsigned threads : {1U, 2U, 5U}) {
    Pool pool(threads);
    for (const std::size_t pieces : {0U, 1U, 2U, 7U, 1000U}) {
      std::vector<std::atomic<int>> runs(pieces);
      pool.run(pieces, [&](std::size_t i) { ++runs[i]; });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
      pool.run_in_shares(pieces, [&](std::size_t i) { ++runs[i]; });
      for (const auto& count : runs) EXPECT_EQ(count, 2);
    }
  }
}

TEST(Pool, CallersFromManyThreadsAndNestedCallsAllFinish) {
  Pool pool(3);
  std::atomic<int> runs{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        pool.run_in_shares(4, [&](std::size_t) { pool.run(3, [&](std::size_t) { ++runs; }); });
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(runs, 4 * 50 * 12);
}

TEST(Pool, TheFirstErrorReachesTheCallerAndThePoolGoesOn) {
  Pool pool(2);
  EXPECT_THROW(pool.run(100,
                        [](std::size_t i) {
                          if (i == 3) throw std::runtime_error("three");
                        }),
               std::runtime_error);
  EXPECT_THROW(pool.run_in_shares(100, [](std::size_t) { throw std::runtime_error("any"); }), std::runtime_error);
  std::atomic<int> runs{0};
  pool.run(10, [&](std::size_t) { ++runs; });
  EXPECT_EQ(runs, 10);
}

TEST(Pool, ResizingWhileCallsRunLosesNothing) {
  Pool pool(2);
  std::atomic<bool> done{false};
  std::thread resizer([&] {
    for (unsigned n = 1; !done; n = n % 4 + 1) pool.resize(n);
  });
  std::atomic<int> runs{0};
  for (int i = 0; i < 200; ++i) pool.run(20, [&](std::size_t) { ++runs; });
  done = true;
  resizer.join();
  EXPECT_EQ(runs, 4000);
}

// The threads of a pool: each takes one piece and waits for the others.
std::set<std::thread::id> team_of(Pool& pool) {
  std::set<std::thread::id> team;
  std::mutex mutex;
  std::barrier all_came(pool.threads());
  pool.run(pool.threads(), [&](std::size_t) {
    all_came.arrive_and_wait();
    const std::lock_guard lock(mutex);
    team.insert(std::this_thread::get_id());
  });
  return team;
}

TEST(Pool, ResizingToTheSameNumberKeepsTheThreads) {
  Pool pool(3);
  const auto team = team_of(pool);
  EXPECT_EQ(team.size(), 3);
  pool.resize(3);
  EXPECT_EQ(team_of(pool), team);
  pool.resize(2);
  EXPECT_EQ(team_of(pool).size(), 2);
}

TEST(Pool, AThreadBeginsWithTheSameShareInEveryRun) {
  constexpr std::size_t kThreads = 3;
  Pool pool(kThreads);
  std::array<std::thread::id, kThreads> first;
  for (int run = 0; run < 5; ++run) {
    std::array<std::thread::id, 2 * kThreads> takers;
    std::barrier all_came(kThreads);
    pool.run_in_shares(takers.size(), [&](std::size_t i) {
      takers[i] = std::this_thread::get_id();
      if (i % 2 == 0) all_came.arrive_and_wait();  // the first of a share: no thread continues before all have one
    });
    for (std::size_t i = 0; i < kThreads; ++i) {
      if (run == 0) first[i] = takers[2 * i];
      EXPECT_EQ(takers[2 * i], first[i]);
    }
    EXPECT_EQ(takers[0], std::this_thread::get_id());
  }
}

TEST(Pool, TheLargestPiecesOfAnOwnerComeFirstInTheirShare) {
  struct Piece {
    int owner;
    std::size_t size;
    int name;
  };
  std::vector<Piece> pieces{{7, 1, 0}, {7, 3, 1}, {7, 2, 2}, {8, 9, 3}, {8, 1, 4}, {8, 1, 5}, {8, 5, 6}};
  Pool(2).sort_shares(pieces, &Piece::owner);
  std::vector<int> names;
  for (const Piece& piece : pieces) names.push_back(piece.name);
  EXPECT_EQ(names, (std::vector<int>{1, 2, 0, 3, 6, 4, 5}));
  std::vector<Piece> none;
  Pool(2).sort_shares(none, &Piece::owner);
}

#ifdef __linux__
// The threads of this process that run or are about to, the caller apart.
std::size_t other_running_threads() {
  std::size_t running = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const std::size_t name_end = stat.rfind(')');
    running += name_end != std::string::npos && stat.at(name_end + 2) == 'R' ? 1 : 0;
  }
  return running;
}

TEST(Pool, ThreadsSleepSomeTimeAfterCallsThatFollowedEachOther) {
  Pool pool(3);
  for (int call = 0; call < 100; ++call) {
    const Pool::Phases phases(pool);
    for (int run = 0; run < 2; ++run) team_of(pool);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (other_running_threads() != 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "a thread still spins";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(team_of(pool).size(), 3);  // and they wake up
}
#endif

#ifndef __SANITIZE_THREAD__  // the sanitizer cannot follow threads across a fork
std::atomic<int> parallel_calls{0};

// Another library with separate threads.
void call_in_parallel(void (*work)(void*), void* argument, unsigned threads, unsigned) {
  ++parallel_calls;
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(work, argument);
  work(argument);
  for (auto& other : others) other.join();
}

TEST(Pool, BorrowedThreadsRunThePiecesOfTheirThreadOnly) {
  Pool pool(2);
  parallel_calls = 0;
  std::atomic<int> runs{0};
  const auto count = [&](std::size_t) { ++runs; };
  {
    const Pool::BorrowedThreads loan(call_in_parallel, 3);
    pool.run(1000, count);
    EXPECT_EQ(runs, 1000);
    EXPECT_EQ(parallel_calls, 1);
    EXPECT_THROW(pool.run(10, [](std::size_t) { throw std::runtime_error("ten"); }), std::runtime_error);
    std::thread([&] { pool.run(100, count); }).join();
    EXPECT_EQ(parallel_calls, 2) << "a thread without a loan has used the borrowed threads";
  }
  pool.run(100, count);
  EXPECT_EQ(runs, 1200);
  EXPECT_EQ(parallel_calls, 2) << "the loan has ended";
}

TEST(Pool, AForkedChildLeavesBorrowedThreadsAlone) {
  Pool pool(2);
  const Pool::BorrowedThreads loan(call_in_parallel, 2);
  parallel_calls = 0;
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> runs{0};
    pool.run(100, [&](std::size_t) { ++runs; });
    _exit(runs == 100 && parallel_calls == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Pool, AForkedChildGetsItsOwnThreads) {
  Pool pool(2);
  pool.run(8, [](std::size_t) {});
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> runs{0};
    pool.run(100, [&](std::size_t) { ++runs; });
    _exit(runs == 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Pool, AChildOfABusyProcessDoesNotInheritALock) {
  Pool pool(3);
  std::atomic<bool> is_over{false};
  std::thread busy([&] {
    while (!is_over) pool.run(4, [](std::size_t) {});
  });
  for (int round = 0; round < 200; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a child that hangs ends with a signal
      std::atomic<int> runs{0};
      pool.run(10, [&](std::size_t) { ++runs; });
      _exit(runs == 10 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "round " << round;
  }
  is_over = true;
  busy.join();
}
#endif

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve terabytes
TEST(Pool, APoolThatCannotStartAllItsThreadsLeavesNone) {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto count = threads();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit small{.rlim_cur = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20),
                     .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &small), 0);
  rlimit now{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &now), 0);
  if (now.rlim_cur != small.rlim_cur) GTEST_SKIP() << "this system does not limit memory; QEMU does not";
  bool has_failed = false;
  try {
    const Pool pool(1000);
  } catch (const std::system_error&) {
    has_failed = true;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(has_failed);
  EXPECT_EQ(threads(), count);
}
#endif

TEST(SharedMutex, WritersExcludeAllOthersAndNoThreadStarves) {
  SharedMutex mutex;
  long one = 0;
  long other = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const std::unique_lock lock(mutex);
        ++one;
        ++other;
      }
    });
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const std::shared_lock lock(mutex);
        ASSERT_EQ(one, other);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(one, 4000);
}

// Two writers, one of which always waits: a reader needs a turn between them.
TEST(SharedMutex, WritersThatNeverPauseLetReadersIn) {
  SharedMutex mutex;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> writers;
  for (int t = 0; t < 2; ++t) {
    writers.emplace_back([&] {
      while (!is_over) {
        const std::unique_lock lock(mutex);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  std::atomic<int> reads{0};
  std::thread reader([&] {
    for (int i = 0; i < 20; ++i) {
      const std::shared_lock lock(mutex);
      ++reads;
    }
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (reads < 20 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(reads, 20);
  is_over = true;
  reader.join();
  for (auto& writer : writers) writer.join();
}

// Readers whose holds overlap, so that one is always in: a writer needs a turn too.
TEST(SharedMutex, ReadersThatNeverPauseLetWritersIn) {
  SharedMutex mutex;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!is_over) {
        const std::shared_lock lock(mutex);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  for (int i = 0; i < 20; ++i) const std::unique_lock lock(mutex);
  is_over = true;
  for (auto& reader : readers) reader.join();
}

}  // namespace
}  // namespace engine
