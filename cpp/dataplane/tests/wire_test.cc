// wire_test.cc: claims of a request are checked against its bytes.
#include "dataplane/wire.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "small_shard.h"

namespace dataplane {
namespace {

Payload words(std::initializer_list<std::uint32_t> values) {
  Payload payload;
  for (const std::uint32_t value : values) payload.put(&value, sizeof value);
  payload.pad();
  return payload;
}

template <class Error>
void expect_refused(const Payload& payload, const std::string& reason) {
  try {
    (void)parse_pull(payload.bytes(), kSmallShapes);
    FAIL() << "the request was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

TEST(Wire, APullComesBackAsItWasSent) {
  const Payload payload = pull_of({{0, {1, -2, 3}}, {1, {}}});
  const PullRequest request = parse_pull(payload.bytes(), kSmallShapes);
  ASSERT_EQ(request.tables.size(), 2U);
  EXPECT_EQ(request.tables[0].number, 0U);
  EXPECT_TRUE(std::ranges::equal(request.tables[0].ids, std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(request.tables[1].number, 1U);
  EXPECT_TRUE(request.tables[1].ids.empty());
}

TEST(Wire, APushComesBackAsItWasSent) {
  const Payload payload = push_of(7, 8, {{0, {5}}, {1, {6, 9}}}, 0.5F, 11);
  const PushRequest request = parse_push(payload.bytes(), kSmallShapes, false);
  EXPECT_EQ(request.client, 7U);
  EXPECT_EQ(request.sequence, 8U);
  EXPECT_EQ(request.time_s, 11);
  EXPECT_EQ(request.step, 1);
  ASSERT_EQ(request.tables.size(), 2U);
  EXPECT_TRUE(std::ranges::equal(request.tables[1].ids, std::vector<std::int64_t>{6, 9}));
  EXPECT_TRUE(std::ranges::equal(request.tables[1].counts, std::vector<std::uint32_t>{1, 1}));
  EXPECT_TRUE(std::ranges::equal(request.tables[1].rates, std::vector<float>{1.0F}));
  const auto* gradients = reinterpret_cast<const float*>(request.tables[1].gradients);
  EXPECT_TRUE(std::all_of(gradients, gradients + 6, [](float value) { return value == 0.5F; }));
}

// A push and a job record behind it.
Payload push_with_record(const JobRecord& record) {
  Payload payload = push_of(7, 8, {{0, {5}}}, 0.5F);
  const auto tail = encode_job_record(record);
  payload.put(tail.data(), tail.size());
  return payload;
}

TEST(Wire, AJobRecordComesBackAsItWasSent) {
  EXPECT_FALSE(parse_push(push_of(7, 8, {{0, {5}}}, 0.5F).bytes(), kSmallShapes, false).record);
  for (const std::string& value : {std::string(), std::string("seven b"), std::string(4096, 'x')}) {
    const Payload payload = push_with_record({.key = 3, .client = 7, .revision = 9, .value = value});
    const auto record = parse_push(payload.bytes(), kSmallShapes, false).record;
    ASSERT_TRUE(record);
    EXPECT_EQ(record->key, 3U);
    EXPECT_EQ(record->client, 7U);
    EXPECT_EQ(record->revision, 9U);
    EXPECT_EQ(record->value, value);
  }
}

TEST(Wire, AJobRecordOfAnotherLengthOrPastALimitIsRefused) {
  const Payload whole = push_with_record({.key = 3, .client = 7, .revision = 9, .value = "value"});
  const std::size_t begin = push_of(7, 8, {{0, {5}}}, 0.5F).bytes().size();
  for (std::size_t bytes = begin + 1; bytes < whole.bytes().size(); ++bytes) {
    EXPECT_THROW((void)parse_push(whole.bytes().first(bytes), kSmallShapes, false), engine::ConfigError) << bytes;
  }
  Payload longer = whole;
  longer.put_array(std::vector<std::int64_t>{4});
  EXPECT_THROW((void)parse_push(longer.bytes(), kSmallShapes, false), engine::ConfigError);
  Payload other = push_of(7, 8, {{0, {5}}}, 0.5F);
  other.put_array(std::vector<std::int64_t>{0, 0, 0, 0});
  EXPECT_THROW((void)parse_push(other.bytes(), kSmallShapes, false), engine::ConfigError);
  for (const JobRecord& record : {JobRecord{.key = 65536, .client = 0, .revision = 1, .value = ""},
                                  JobRecord{.key = 0, .client = 0, .revision = 1, .value = std::string(4097, 'x')}}) {
    EXPECT_THROW((void)parse_push(push_with_record(record).bytes(), kSmallShapes, false), engine::ConfigError);
  }
}

TEST(Wire, ARequestOfAnyOtherLengthIsRefused) {
  const Payload pull = pull_of({{0, {1, 2}}, {1, {3}}});
  const Payload push = push_of(1, 1, {{0, {1}}, {1, {3}}}, 0.5F);
  for (std::size_t bytes = 0; bytes < pull.bytes().size(); ++bytes) {
    EXPECT_THROW((void)parse_pull(pull.bytes().first(bytes), kSmallShapes), engine::ConfigError) << bytes;
  }
  for (std::size_t bytes = 0; bytes < push.bytes().size(); ++bytes) {
    EXPECT_THROW((void)parse_push(push.bytes().first(bytes), kSmallShapes, false), engine::ConfigError) << bytes;
  }
  Payload longer = pull;
  longer.put_array(std::vector<std::int64_t>{4});
  EXPECT_THROW((void)parse_pull(longer.bytes(), kSmallShapes), engine::ConfigError);
  // The same bytes with the other width of floats.
  EXPECT_THROW((void)parse_push(push.bytes(), kSmallShapes, true), engine::ConfigError);
}

TEST(Wire, ARequestIsNotReadPastItsEnd) {
  const auto push = push_of(1, 1, {{0, {5}}}, -1.0F);
  for (std::size_t bytes = 1; bytes < push.bytes().size(); ++bytes) {
    try {
      (void)parse_push(push.bytes().first(bytes), kSmallShapes, false);
      ADD_FAILURE() << bytes;
    } catch (const engine::ConfigError& error) {
      EXPECT_EQ(std::string(error.what()).find("bytes more"), std::string::npos) << bytes << ": " << error.what();
    }
  }
}

TEST(Wire, AListThatCannotBeIsRefusedWithTheReason) {
  expect_refused<engine::ConfigError>(words({0, 0}), "names no table");
  expect_refused<engine::ConfigError>(words({3, 0, 0, 1, 0, 2, 0}), "names 3 tables, the server has 2");
  expect_refused<engine::ConfigError>(words({0xffffffff, 0}), "names 4294967295 tables");
  expect_refused<engine::ConfigError>(words({1, 2, 0}), "table number 2, the server's go from 0 to 1");
  expect_refused<engine::ConfigError>(words({2, 1, 0, 0, 0}), "0 comes after 1");
  expect_refused<engine::ConfigError>(words({2, 1, 0, 1, 0}), "1 comes after 1");
  expect_refused<engine::ConfigError>(words({1, 0, 0xffffffff}), "ends early: 34359738360 bytes are due");
}

TEST(Wire, APushWithAnotherNumberOfRatesIsRefused) {
  const PushRequest request{.client = 1,
                            .sequence = 1,
                            .time_s = 0,
                            .step = 0,
                            .tables = {{.number = 1, .ids = {}, .counts = {}, .rates = {}}}};
  const auto head = encode_push_list(request);
  Payload payload;
  payload.put(head.data(), head.size());
  EXPECT_THROW((void)parse_push(payload.bytes(), kSmallShapes, false), engine::DimensionMismatch);
}

TEST(Wire, AHeaderOfAnotherProtocolIsRefused) {
  FrameHeader header;
  std::memcpy(&header, "GET / HTTP/1.1\r\nHost: ab", sizeof header);
  EXPECT_THROW(check_header(header, std::size_t{1} << 32), Disconnected);
  EXPECT_THROW(check_header({.bytes = 101}, 100), Disconnected);
  EXPECT_NO_THROW(check_header({.bytes = 100}, 100));
  EXPECT_THROW(check_header({.bytes = 1, .flags = 8}, 100), Disconnected);
  EXPECT_THROW(check_header({.bytes = 1, .zero = 1}, 100), Disconnected);
}

TEST(Wire, AHelloComesBackAndNothingElseDoes) {
  const auto sent = encode_hello({.shard = 1, .shards = 3, .tables_hash = 42, .token = "secret"});
  const Hello hello = parse_hello(sent);
  EXPECT_EQ(hello.shard, 1U);
  EXPECT_EQ(hello.shards, 3U);
  EXPECT_EQ(hello.tables_hash, 42U);
  EXPECT_EQ(hello.token, "secret");
  for (std::size_t bytes = 0; bytes < sent.size(); ++bytes) {
    EXPECT_THROW((void)parse_hello(Bytes(sent).first(bytes)), Disconnected) << bytes;
  }
  for (const std::size_t place : {0U, 8U, 12U}) {  // magic, version, length of the token
    auto other = sent;
    other[place] ^= std::byte{1};
    EXPECT_THROW((void)parse_hello(other), Disconnected) << place;
  }
}

TEST(Wire, OnlyTheSameTokenIsTheSame) {
  EXPECT_TRUE(is_same_token("abc", "abc"));
  EXPECT_TRUE(is_same_token("", ""));
  for (const char* other : {"", "ab", "abd", "abcd", "Abc"}) EXPECT_FALSE(is_same_token(other, "abc")) << other;
  EXPECT_FALSE(is_same_token("abc", ""));
}

TEST(Wire, TheHashTellsNamesWidthsAndOrderApart) {
  const std::vector<std::string> names{"a", "b"};
  const std::vector<std::string> joined{"ab", ""};
  const std::uint64_t hash = hash_tables(names, std::vector<std::uint32_t>{1, 2});
  EXPECT_EQ(hash, hash_tables(names, std::vector<std::uint32_t>{1, 2}));
  EXPECT_NE(hash, hash_tables(names, std::vector<std::uint32_t>{2, 1}));
  EXPECT_NE(hash, hash_tables(joined, std::vector<std::uint32_t>{1, 2}));
  EXPECT_NE(hash, hash_tables(std::vector<std::string>{"b", "a"}, std::vector<std::uint32_t>{1, 2}));
}

TEST(Wire, AnErrorKeepsItsCodeAndText) {
  const RemoteError error = parse_error(encode_error(Code::kCapacity, "full"));
  EXPECT_EQ(error.code, Code::kCapacity);
  EXPECT_EQ(error.text, "full");
  EXPECT_EQ(encode_error(Code::kCapacity, std::string(100'000, 'x')).size(), kMaxErrorBytes);
  EXPECT_THROW((void)parse_error({}), Disconnected);
}

}  // namespace
}  // namespace dataplane
