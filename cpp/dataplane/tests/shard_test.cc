// shard_test.cc: pull and push, whichever transport carries them.
#include "dataplane/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <shared_mutex>
#include <thread>

#include "engine/half.h"
#include "small_shard.h"

namespace dataplane {
namespace {

constexpr Deadline kNever = Deadline::max();

std::vector<std::int64_t> range(std::int64_t count) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(Shard, APullReturnsTheRowsOfAllTablesInOrder) {
  const auto shard = small_shard();
  shard->push(push_of(1, 1, {{0, {5}}}, -1.0F).bytes(), false, kNever);
  shard->push(push_of(1, 2, {{1, {5, 6}}}, -2.0F).bytes(), false, kNever);
  const auto rows = pull_rows(*shard, pull_of({{0, {4, 5}}, {1, {6}}}));
  EXPECT_EQ(rows, (std::vector<float>{0, 0, 1, 1, 2, 2, 2}));
  EXPECT_TRUE(pull_rows(*shard, pull_of({{0, {}}})).empty());
}

Payload push_with_record(std::uint64_t sequence, std::uint64_t revision, const std::string& value,
                         std::int64_t id = 5) {
  Payload payload = push_of(1, sequence, {{0, {id}}}, -1.0F);
  const auto tail = encode_job_record({.key = 2, .client = 1, .revision = revision, .value = value});
  payload.put(tail.data(), tail.size());
  return payload;
}

TEST(Shard, APushReplacesItsJobRecordWithItsRowsAndOnce) {
  const auto shard = small_shard();
  shard->push(push_with_record(1, 1, "first").bytes(), false, kNever);
  shard->push(push_with_record(2, 2, "second").bytes(), false, kNever);
  shard->push(push_with_record(1, 1, "first").bytes(), false, kNever);
  ASSERT_EQ(shard->records().all().size(), 1U);
  EXPECT_EQ(shard->records().all()[0].value, "second");
  EXPECT_EQ(pull_rows(*shard, pull_of({{0, {5}}})), (std::vector<float>{2, 2}));
}

TEST(Shard, ARefusedPushLeavesTheJobRecord) {
  const auto shard = small_shard(0, 2);
  shard->push(push_with_record(1, 1, "first", 4).bytes(), false, kNever);
  EXPECT_THROW(shard->push(push_with_record(2, 2, "second", 5).bytes(), false, kNever), engine::ConfigError);
  EXPECT_THROW(shard->push(push_with_record(3, 3, "third", 4).bytes(), false, Clock::now()), Late);
  EXPECT_EQ(shard->records().all()[0].value, "first");
  EXPECT_THROW(small_shard(1, 2)->push(push_with_record(1, 1, "first").bytes(), false, kNever), engine::ConfigError);
}

TEST(Shard, ALateUpdateOfTheSameClientIsIgnored) {
  const auto shard = small_shard();
  shard->put_record({.key = 2, .client = 1, .revision = 2, .value = "newer"});
  shard->put_record({.key = 2, .client = 1, .revision = 1, .value = "older"});
  EXPECT_EQ(shard->records().all()[0].value, "newer");
  shard->put_record({.key = 2, .client = 9, .revision = 1, .value = "of another client"});
  shard->put_record({.key = 1, .client = 1, .revision = 1, .value = "of another key"});
  ASSERT_EQ(shard->records().all().size(), 2U);
  EXPECT_EQ(shard->records().all()[1].value, "of another client");
  EXPECT_THROW(shard->put_record({.key = 65536, .client = 1, .revision = 3, .value = ""}), engine::ConfigError);
  shard->records().replace({{.key = 7, .client = 1, .revision = 3, .value = "restored"}});
  ASSERT_EQ(shard->records().all().size(), 1U);
  EXPECT_EQ(shard->records().all()[0].key, 7U);
}

TEST(Shard, AJobRecordDoesNotChangeWhilePushesArePaused) {
  const auto shard = small_shard();
  std::thread writer;
  {
    const std::lock_guard no_push(shard->push_lock());
    writer = std::thread([&] { shard->put_record({.key = 2, .client = 1, .revision = 1, .value = "value"}); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(shard->records().all().empty());
  }
  writer.join();
  EXPECT_EQ(shard->records().all().size(), 1U);
}

TEST(Shard, APullOfManyPiecesIsOneReply) {
  const auto shard = small_shard();
  const auto ids = range(200'000);
  shard->push(push_of(1, 1, {{0, ids}, {1, ids}}, -1.0F).bytes(), false, kNever);
  const auto rows = pull_rows(*shard, pull_of({{0, ids}, {1, ids}}));
  EXPECT_EQ(rows, std::vector<float>(ids.size() * 5, 1.0F));
}

// Every row holds its id, twice.
std::shared_ptr<Shard> shard_of_own_ids(const std::vector<std::int64_t>& ids) {
  const auto table = small_table("item", 2, std::make_shared<engine::Pool>(4));
  std::vector<float> rows;
  for (const std::int64_t id : ids) rows.insert(rows.end(), 2, static_cast<float>(id));
  table->assign(ids, rows.data(), 1);
  return std::make_shared<Shard>(0, 1, std::vector{table}, std::vector<std::string>{"item"});
}

TEST(Shard, PiecesOfSeveralThreadsAreHandedOutInOrder) {
  auto ids = range(700'000);  // more than the window of a reply
  const auto shard = shard_of_own_ids(ids);
  std::reverse(ids.begin(), ids.end());
  const auto rows = pull_rows(*shard, pull_of({{0, ids}}));
  ASSERT_EQ(rows.size(), 2 * ids.size());
  for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], static_cast<float>(ids[i / 2])) << i;
  VectorSink halves;
  ids.resize(100'000);
  const Payload pull = pull_of({{0, ids}});
  shard->pull(shard->read_pull(pull.bytes()), true, kNever, halves);
  ASSERT_EQ(halves.rows.size(), 4 * ids.size());
  for (std::size_t i = 0; i < 2 * ids.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, halves.rows.data() + 2 * i, sizeof half);
    ASSERT_EQ(half, engine::half_from_float(static_cast<float>(ids[i / 2]))) << i;
  }
}

TEST(Shard, ASinkThatFailsEndsThePull) {
  class Broken final : public RowSink {
   public:
    std::byte* room(std::size_t bytes) override {
      rows_.resize(bytes);
      return rows_.data();
    }
    void filled(std::size_t) override {
      ++calls;
      throw Disconnected("gone");
    }
    int calls = 0;

   private:
    std::vector<std::byte> rows_;
  };
  const auto ids = range(300'000);
  const auto shard = shard_of_own_ids(ids);
  const Payload pull = pull_of({{0, ids}});
  Broken sink;
  EXPECT_THROW(shard->pull(shard->read_pull(pull.bytes()), false, kNever, sink), Disconnected);
  EXPECT_EQ(sink.calls, 1);
  EXPECT_EQ(shard->pull_stats().errors.load(), 1U);
  EXPECT_EQ(pull_rows(*shard, pull_of({{0, {7}}})), (std::vector<float>{7, 7}));
}

TEST(Shard, HalvesTravelBothWays) {
  const auto shard = small_shard();
  PushRequest request{.client = 1, .sequence = 1, .time_s = 0, .step = 0, .tables = {}};
  const std::vector<std::int64_t> ids{8};
  const std::vector<float> rates{1.0F};
  request.tables.push_back({1, ids, {}, rates, nullptr});
  const auto head = encode_push_list(request);
  Payload payload;
  payload.put(head.data(), head.size());
  payload.put_array(ids);
  payload.put_array(std::vector<std::uint32_t>{1});
  payload.put_array(rates);
  payload.put_array(std::vector<std::uint16_t>(3, engine::half_from_float(-0.5F)));
  shard->push(payload.bytes(), true, kNever);
  EXPECT_EQ(pull_rows(*shard, pull_of({{1, ids}})), std::vector<float>(3, 0.5F));
  VectorSink sink;
  const Payload pull = pull_of({{1, ids}});
  shard->pull(shard->read_pull(pull.bytes()), true, kNever, sink);
  ASSERT_EQ(sink.rows.size(), 6U);
  EXPECT_EQ(std::memcmp(sink.rows.data(), std::vector<std::uint16_t>(3, engine::half_from_float(0.5F)).data(), 6), 0);
}

TEST(Shard, ARepeatedPushIsAppliedOnce) {
  const auto shard = small_shard();
  for (int i = 0; i < 3; ++i) shard->push(push_of(1, 1, {{0, {5}}}, -1.0F).bytes(), false, kNever);
  EXPECT_EQ(pull_rows(*shard, pull_of({{0, {5}}})), (std::vector<float>{1, 1}));
  EXPECT_EQ(shard->repeats(), 2U);
}

TEST(Shard, ConcurrentPushesAndTheirRepeatsAddUp) {
  const auto shard = small_shard();
  const auto ids = range(3000);
  std::vector<std::thread> threads;
  for (std::uint64_t client = 0; client < 4; ++client) {
    threads.emplace_back([&, client] {
      for (std::uint64_t sequence = 0; sequence < 20; ++sequence) {
        // Two threads share each client, so that every push is made twice, often at the same time.
        shard->push(push_of(client / 2, sequence, {{0, ids}, {1, ids}}, -1.0F).bytes(), false, kNever);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pull_rows(*shard, pull_of({{0, ids}, {1, ids}})), std::vector<float>(ids.size() * 5, 40.0F));
  EXPECT_EQ(shard->repeats(), 40U);
}

TEST(Shard, LateWorkIsNotDone) {
  const auto shard = small_shard();
  const Payload push = push_of(1, 1, {{0, {5}}}, -1.0F);
  EXPECT_THROW(shard->push(push.bytes(), false, Clock::now()), Late);
  const Payload pull = pull_of({{0, {5}}});
  VectorSink sink;
  EXPECT_THROW(shard->pull(shard->read_pull(pull.bytes()), false, Clock::now(), sink), Late);
  EXPECT_TRUE(sink.rows.empty());
  EXPECT_EQ(shard->lates(), 2U);
  EXPECT_EQ(pull_rows(*shard, pull), (std::vector<float>{0, 0}));
  shard->push(push.bytes(), false, kNever);
  EXPECT_EQ(pull_rows(*shard, pull), (std::vector<float>{1, 1}));
  EXPECT_EQ(shard->push_stats().count, 2U);
  EXPECT_EQ(shard->push_stats().errors, 1U);
}

TEST(Shard, IdsOfAnotherShardAreRefused) {
  const auto shard = small_shard(1, 3);
  EXPECT_NO_THROW(shard->push(push_of(1, 1, {{0, {1, 4, 1'000'000}}}, 1.0F).bytes(), false, kNever));
  EXPECT_THROW(shard->push(push_of(1, 2, {{0, {1, 2}}}, 1.0F).bytes(), false, kNever), engine::ConfigError);
  EXPECT_THROW((void)shard->read_pull(pull_of({{1, {3}}}).bytes()), engine::ConfigError);
  EXPECT_EQ(shard->table_figures()[0].rows, 3U);
}

TEST(Shard, AnIdBelongsToItsUnsignedRemainder) {
  for (const std::uint64_t shards : {1U, 2U, 3U, 7U, 8U}) {
    const ShardMap map(shards);
    for (const std::int64_t id : {std::int64_t{0}, std::int64_t{5}, std::int64_t{-1}, INT64_MIN, INT64_MAX}) {
      EXPECT_EQ(map.shard_of(id), static_cast<std::uint64_t>(id) % shards);
    }
  }
}

TEST(Shard, ARefusedPushMayBeSentAgain) {
  const auto shard = small_shard(0, 1, 1 << 20);
  EXPECT_THROW(shard->push(push_of(1, 1, {{0, range(100'000)}}, 1.0F).bytes(), false, kNever),
               engine::CapacityExceeded);
  EXPECT_EQ(shard->table_figures()[0].rows, 0U);
  shard->push(push_of(1, 1, {{0, {5}}}, -1.0F).bytes(), false, kNever);
  EXPECT_EQ(pull_rows(*shard, pull_of({{0, {5}}})), (std::vector<float>{1, 1}));
}

TEST(Shard, TimesAndStepsThatDoNotFitAreRefused) {
  const auto shard = small_shard();
  for (const std::int64_t time : {std::int64_t{-1}, std::int64_t{1} << 32}) {
    EXPECT_THROW(shard->push(push_of(1, 1, {{0, {5}}}, 1.0F, time).bytes(), false, kNever), engine::ConfigError);
  }
}

TEST(Shard, WhileThePushLockIsHeldNothingChanges) {
  const auto shard = small_shard();
  std::thread pusher;
  {
    const std::unique_lock cut(shard->push_lock());
    const auto marks = shard->marks().save();
    pusher = std::thread([&] { shard->push(push_of(1, 1, {{0, {5}}}, -1.0F).bytes(), false, kNever); });
    EXPECT_EQ(pull_rows(*shard, pull_of({{0, {5}}})), (std::vector<float>{0, 0})) << "pulls continue";
    EXPECT_EQ(shard->marks().save(), marks);
  }
  pusher.join();
  EXPECT_EQ(pull_rows(*shard, pull_of({{0, {5}}})), (std::vector<float>{1, 1}));
}

TEST(Shard, TablesMustComeSortedAndNamed) {
  const auto pool = std::make_shared<engine::Pool>(1);
  const auto make = [&](std::uint32_t index, std::uint32_t count, std::vector<std::string> names) {
    return Shard(index, count, {small_table("a", 1, pool), small_table("b", 1, pool)}, std::move(names));
  };
  EXPECT_THROW(make(0, 1, {"b", "a"}), engine::ConfigError);
  EXPECT_THROW(make(0, 1, {"a", "a"}), engine::ConfigError);
  EXPECT_THROW(make(0, 1, {"a"}), engine::ConfigError);
  EXPECT_THROW(make(2, 2, {"a", "b"}), engine::ConfigError);
  EXPECT_THROW(make(0, 0, {"a", "b"}), engine::ConfigError);
  EXPECT_NE(make(0, 1, {"a", "b"}).instance(), make(0, 1, {"a", "b"}).instance());
}

TEST(Shard, AReplyThatIsTooLargeIsRefusedBeforeItsRowsAreRead) {
  const auto shard = small_shard();
  const Payload payload = pull_of({{0, std::vector<std::int64_t>(1000, 7)}});
  const PullRequest request = shard->read_pull(payload.bytes());
  EXPECT_NO_THROW(shard->check_reply(request, false, 8000, "max_message_bytes"));
  EXPECT_NO_THROW(shard->check_reply(request, true, 4000, "max_message_bytes"));
  EXPECT_THROW(shard->check_reply(request, false, 7999, "max_message_bytes"), engine::ConfigError);
}

TEST(Shard, APushWithARateThatIsNotFiniteIsRefusedAndMayBeSentAgain) {
  const auto shard = small_shard();
  EXPECT_THROW(shard->push(push_of(1, 1, {{0, {5}}}, -1.0F, 1, std::nanf("")).bytes(), false, kNever),
               engine::ConfigError);
  EXPECT_EQ(pull_rows(*shard, pull_of({{0, {5}}})), (std::vector<float>{0, 0}));
  shard->push(push_of(1, 1, {{0, {5}}}, -1.0F).bytes(), false, kNever);
  EXPECT_EQ(pull_rows(*shard, pull_of({{0, {5}}})), (std::vector<float>{1, 1}));
}

}  // namespace
}  // namespace dataplane
