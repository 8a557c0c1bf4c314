// fan_out_test.cc: clients and listeners in one process, over real sockets.
#include "dataplane/fan_out.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <numeric>
#include <thread>

#include "dataplane/listener.h"
#include "small_shard.h"

namespace dataplane {
namespace {

using namespace std::chrono_literals;

// Shards with listeners, and a client of all of them.
class Cluster {
 public:
  explicit Cluster(std::uint32_t count, bool over_tcp = false) {
    std::vector<std::shared_ptr<Connection>> connections;
    for (std::uint32_t i = 0; i < count; ++i) {
      shards.push_back(small_shard(i, count));
      const std::string path = (std::filesystem::temp_directory_path() /
                                ("fan-out-" + std::to_string(::getpid()) + "-" + std::to_string(numbers_++)))
                                   .string();
      listeners.push_back(std::make_unique<Listener>(
          shards[i], ListenerConfig{.address = {!over_tcp, over_tcp ? "127.0.0.1" : path, 0}, .token = "token"}));
      connections.push_back(std::make_shared<Connection>(
          listeners[i]->address(),
          Hello{.shard = i, .shards = count, .tables_hash = shards[i]->tables_hash(), .token = "token"}, 5s));
    }
    fan_out = std::make_unique<FanOut>(std::move(connections), std::vector<std::uint32_t>{2, 3});
  }

  void push(std::uint64_t client, std::uint64_t sequence, const std::vector<std::int64_t>& ids, float gradient,
            bool half = false) {
    const std::vector<std::uint32_t> counts(ids.size(), 1);
    const std::vector<float> rates{1.0F};
    const std::vector<float> gradients(ids.size() * 3, gradient);
    PushCall call{.client = client, .sequence = sequence, .time_s = 1, .step = 1, .parts = {}};
    for (const std::uint32_t number : {0U, 1U}) call.parts.push_back({number, ids, counts, rates, gradients.data()});
    fan_out->push(call, half, 10s);
  }

  std::vector<float> pull(const std::vector<std::int64_t>& ids, bool half = false) {
    std::vector<float> rows(ids.size() * 5);
    const std::vector<PullPart> parts{{0, ids, rows.data()}, {1, ids, rows.data() + ids.size() * 2}};
    fan_out->pull(parts, half, 10s);
    return rows;
  }

  std::vector<std::shared_ptr<Shard>> shards;
  std::vector<std::unique_ptr<Listener>> listeners;
  std::unique_ptr<FanOut> fan_out;

 private:
  static inline int numbers_ = 0;
};

std::vector<std::int64_t> spread_ids(std::size_t count) {
  std::vector<std::int64_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int64_t>(i * 2654435761U) - 1'000'000;
  return ids;
}

class FanOutTest : public testing::TestWithParam<std::tuple<std::uint32_t, bool, bool>> {};

TEST_P(FanOutTest, RowsComeBackInTheCallersOrder) {
  const auto [count, half, over_tcp] = GetParam();
  Cluster cluster(count, over_tcp);
  const auto ids = spread_ids(20'011);
  // Every id gets a different row: the number of its place, in steps that a half can tell.
  for (std::size_t bit = 0; bit < 4; ++bit) {
    std::vector<std::int64_t> some;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if ((i >> bit & 1U) != 0) some.push_back(ids[i]);
    }
    cluster.push(1, bit, some, -static_cast<float>(1U << bit), half);
  }
  const auto rows = cluster.pull(ids, half);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(rows[i * 2], static_cast<float>(i % 16));
    ASSERT_EQ(rows[ids.size() * 2 + i * 3 + 2], static_cast<float>(i % 16));
  }
}

INSTANTIATE_TEST_SUITE_P(Servers, FanOutTest,
                         testing::Combine(testing::Values(1U, 2U, 3U), testing::Bool(), testing::Bool()));

TEST(FanOut, ManyThreadsShareTheConnections) {
  Cluster cluster(2);
  const auto ids = spread_ids(4000);
  std::vector<std::thread> threads;
  for (std::uint64_t client = 0; client < 4; ++client) {
    threads.emplace_back([&, client] {
      for (std::uint64_t sequence = 0; sequence < 10; ++sequence) {
        cluster.push(client, sequence, ids, -1.0F);
        (void)cluster.pull(ids);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(cluster.pull(ids), std::vector<float>(ids.size() * 5, 40.0F));
}

TEST(FanOut, APartialFailureNamesTheServerAndARetryAppliesOnlyThere) {
  Cluster cluster(2);
  const std::vector<std::int64_t> ids{0, 1, 2, 3};
  (void)cluster.pull(ids);
  const std::string address = cluster.listeners[1]->address();
  cluster.listeners[1].reset();
  try {
    cluster.push(1, 1, ids, -1.0F);
    FAIL() << "a server was gone";
  } catch (const CallFailed& failed) {
    ASSERT_EQ(failed.failures.size(), 1U);
    EXPECT_EQ(failed.failures[0].server, 1U);
    EXPECT_EQ(failed.failures[0].address, address);
    EXPECT_TRUE(failed.failures[0].may_retry);
    EXPECT_TRUE(failed.failures[0].is_surely_not_applied);
    EXPECT_NE(std::string(failed.what()).find(address), std::string::npos);
  }
  EXPECT_THROW((void)cluster.pull(ids), CallFailed);
  cluster.listeners[1] = std::make_unique<Listener>(
      cluster.shards[1], ListenerConfig{.address = Address::parse(address), .token = "token"});
  cluster.push(1, 1, ids, -1.0F);
  EXPECT_EQ(cluster.pull(ids), std::vector<float>(ids.size() * 5, 1.0F));
}

TEST(FanOut, ARemoteErrorKeepsItsTextAndTheConnection) {
  Cluster cluster(1);
  const std::vector<std::int64_t> ids{1};
  const std::vector<float> gradients(3), no_rates;
  const std::vector<std::uint32_t> counts{1};
  const PushCall call{
      .client = 1, .sequence = 1, .time_s = 1, .step = 1, .parts = {{0, ids, counts, no_rates, gradients.data()}}};
  for (int i = 0; i < 2; ++i) {
    try {
      cluster.fan_out->push(call, false, 5s);
      FAIL();
    } catch (const CallFailed& failed) {
      EXPECT_EQ(failed.worst().kind, Failure::Kind::kRemote);
      EXPECT_EQ(failed.worst().code, Code::kDimension);
      EXPECT_TRUE(failed.worst().is_surely_not_applied);
      EXPECT_FALSE(failed.worst().may_retry);
    }
  }
  EXPECT_EQ(cluster.listeners[0]->connections(), 1U);
}

TEST(FanOut, AShardThatWaitsTooLongAnswersLate) {
  Cluster cluster(1);
  std::atomic<bool> has_timed_out{false};
  {
    const std::unique_lock cut(cluster.shards[0]->push_lock());
    const std::vector<std::int64_t> ids{1};
    const std::vector<float> gradients(3), rates{1.0F};
    const std::vector<std::uint32_t> counts{1};
    const PushCall call{
        .client = 1, .sequence = 1, .time_s = 1, .step = 1, .parts = {{0, ids, counts, rates, gradients.data()}}};
    try {
      cluster.fan_out->push(call, false, 50ms);
    } catch (const CallFailed& failed) {
      has_timed_out = failed.worst().kind == Failure::Kind::kTimeout;
      EXPECT_TRUE(failed.worst().may_retry);
      EXPECT_FALSE(failed.worst().is_surely_not_applied);
    }
    std::this_thread::sleep_for(500ms);  // the server's deadline counts from the arrival, and passes later
  }
  EXPECT_TRUE(has_timed_out);
  cluster.push(1, 1, {1}, -1.0F);
  EXPECT_EQ(cluster.pull({1}), std::vector<float>(5, 1.0F)) << "the late push was dropped";
}

TEST(FanOut, AListenerClosesWhileItIsBusy) {
  Cluster cluster(2);
  const auto ids = spread_ids(50'000);
  std::atomic<int> calls{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      try {
        for (;;) {
          (void)cluster.pull(ids);
          ++calls;
        }
      } catch (const CallFailed& failed) {
        EXPECT_TRUE(failed.worst().may_retry);
      }
    });
  }
  while (calls < 6) std::this_thread::yield();
  cluster.listeners[0]->close();
  cluster.listeners[0]->close();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(cluster.listeners[0]->connections(), 0U);
}

TEST(FanOut, ConnectionsMustComeInTheOrderOfTheirShards) {
  const auto make = [](std::uint32_t shard, std::uint32_t shards) {
    return std::make_shared<Connection>("unix:/nowhere",
                                        Hello{.shard = shard, .shards = shards, .tables_hash = 0, .token = {}}, 1s);
  };
  EXPECT_NO_THROW(FanOut({make(0, 2), make(1, 2)}, {1}));
  EXPECT_THROW(FanOut({make(1, 2), make(0, 2)}, {1}), engine::ConfigError);
  EXPECT_THROW(FanOut({make(0, 2)}, {1}), engine::ConfigError);
  EXPECT_THROW(FanOut({}, {1}), engine::ConfigError);
  EXPECT_THROW(FanOut({make(0, 1)}, {0}), engine::ConfigError);
}

TEST(Address, IsAPathOrAHostAndPort) {
  EXPECT_EQ(Address::parse("unix:/a/b").host, "/a/b");
  EXPECT_EQ(Address::parse("tcp:localhost:80").port, 80);
  EXPECT_EQ(Address::parse("tcp:[::1]:80").host, "::1");
  EXPECT_EQ(Address::parse("tcp:[::1]:80").text(), "tcp:[::1]:80");
  for (const char* wrong :
       {"", "unix:", "tcp:", "tcp:a", "tcp::1", "tcp:a:", "tcp:a:x", "tcp:a:65536", "tcp:[]:1", "http://a:1"}) {
    EXPECT_THROW((void)Address::parse(wrong), engine::ConfigError) << wrong;
  }
}

}  // namespace
}  // namespace dataplane
