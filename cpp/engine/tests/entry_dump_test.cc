#include "engine/entry_dump.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "engine/error.h"

namespace engine {
namespace {

using Bytes = std::vector<std::byte>;

SliceConfig slice(std::uint32_t dim, std::string kind, std::map<std::string, double> settings) {
  SliceConfig config;
  config.dim = dim;
  config.optimizer = {std::move(kind), std::move(settings)};
  return config;
}

SliceConfig sgd(std::uint32_t dim) { return slice(dim, "sgd", {}); }

SliceConfig adagrad(std::uint32_t dim) {
  return slice(dim, "adagrad", {{"initial_accumulator_value", 0.5}, {"weight_decay_factor", 0}});
}

SliceConfig ftrl(std::uint32_t dim) {
  return slice(dim, "ftrl",
               {{"beta", 0},
                {"initial_accumulator_value", 0.25},
                {"l1_regularization_strength", 0},
                {"l2_regularization_strength", 0}});
}

SliceConfig adam(std::uint32_t dim) {
  return slice(dim, "adam",
               {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay_factor", 0}, {"use_nesterov", 0}, {"epsilon", 0.01}});
}

SliceConfig moving_average(std::uint32_t dim) { return slice(dim, "moving_average", {{"momentum", 0.9}}); }
SliceConfig batch_softmax() { return slice(1, "batch_softmax", {}); }

DumpSchema schema_of(const std::vector<SliceConfig>& slices) { return make_dump_schema(slices); }

Bytes hex(std::string_view text) {
  Bytes bytes;
  int high = -1;
  for (const char c : text) {
    if (c == ' ') continue;
    const int digit = c <= '9' ? c - '0' : c - 'a' + 10;
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<std::byte>(high * 16 + digit));
      high = -1;
    }
  }
  return bytes;
}

Bytes framed(const Bytes& payload) {
  Bytes out;
  append_record(out, payload);
  return out;
}

EntryBatch decode(const DumpSchema& schema, const Bytes& bytes, bool allow_missing_state = false) {
  EntryBatch batch;
  RecordScanner scanner(bytes, 0, "file");
  decode_entries(schema, scanner, SIZE_MAX, allow_missing_state, batch);
  scanner.finish();
  return batch;
}

std::string error_of(const DumpSchema& schema, std::string_view payload, bool allow_missing_state = false) {
  try {
    decode(schema, framed(hex(payload)), allow_missing_state);
  } catch (const RecordCorrupt& error) {
    return error.what();
  }
  return "";
}

std::string payload_hex(const Bytes& record) {
  std::string text;
  for (std::size_t i = kRecordHeaderBytes; i + kRecordFooterBytes < record.size(); ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned>(record[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// id 0x0102, values 1 and 2, adagrad norms 0.5 and 0.25, time 300; by hand from the message definition.
constexpr std::string_view kAdagradEntry =
    "09 0201000000000000 15 0000803f 15 00000040 1a 0e 0a0c 0a0a 0d0000003f 0d0000803e 20 ac02";

TEST(EntryDumpTest, encodes_the_bytes_that_the_original_writes) {
  const auto schema = schema_of({adagrad(2)});
  Bytes out;
  const std::int64_t id = 0x0102;
  const std::uint32_t time_s = 300;
  const float row[] = {1.0F, 2.0F, 0.5F, 0.25F};
  encode_entries(schema, {&id, 1}, {&time_s, 1}, row, out);
  EXPECT_EQ(out, framed(hex(kAdagradEntry)));
}

TEST(EntryDumpTest, decodes_values_state_and_time) {
  const auto batch = decode(schema_of({adagrad(2)}), framed(hex(kAdagradEntry)));
  EXPECT_EQ(batch.ids, (std::vector<std::int64_t>{0x0102}));
  EXPECT_EQ(batch.times_s, (std::vector<std::uint32_t>{300}));
  EXPECT_EQ(batch.rows, (std::vector<float>{1, 2, 0.5F, 0.25F}));
  EXPECT_EQ(batch.value_counts, (std::vector<std::uint32_t>{2}));
}

TEST(EntryDumpTest, writes_fields_by_number_and_one_element_per_slice) {
  // In memory ftrl keeps norm before zero; the message has zero = 1, norm = 2. Moving average writes no element.
  const auto schema = schema_of({ftrl(1), moving_average(1), sgd(1), batch_softmax()});
  EXPECT_EQ(schema.dim, 4U);
  std::vector<float> row = schema.initial_row;
  for (std::size_t i = 0; i < 4; ++i) row[i] = 0.0F;
  const float norm = 4.0F;
  const float zero = -1.0F;
  const auto& fields = schema.slices[0].fields;
  ASSERT_EQ(fields.size(), 2U);
  EXPECT_EQ(fields[0].name, "zero");
  row[schema.slices[0].state_offset + fields[0].offset] = zero;
  row[schema.slices[0].state_offset + fields[1].offset] = norm;
  const std::int64_t step = 300;
  std::memcpy(row.data() + schema.slices[3].state_offset, &step, sizeof step);
  const std::int64_t id = -1;
  const std::uint32_t time_s = 0;
  Bytes out;
  encode_entries(schema, {&id, 1}, {&time_s, 1}, row, out);
  EXPECT_EQ(payload_hex(out),
            "09ffffffffffffffff"
            "1500000000150000000015000000001500000000"
            "1a19"
            "0a0c1a0a0d000080bf1500008040"  // ftrl
            "0a021200"                      // sgd
            "0a05720308ac02"                // batch_softmax
            "2000");
  const auto batch = decode(schema, out);
  EXPECT_EQ(batch.ids[0], -1);
  EXPECT_EQ(std::memcmp(batch.rows.data(), row.data(), row.size() * sizeof(float)), 0);
}

TEST(EntryDumpTest, many_rows_survive_the_round_trip_in_pieces) {
  const auto schema = schema_of({ftrl(1), adagrad(16), adam(7), batch_softmax()});
  std::mt19937_64 random(11);
  const std::size_t count = 200;
  std::vector<std::int64_t> ids(count);
  std::vector<std::uint32_t> times(count);
  std::vector<float> rows(count * schema.row_words);
  for (auto& id : ids) id = static_cast<std::int64_t>(random());
  for (auto& time : times) time = static_cast<std::uint32_t>(random());
  for (auto& word : rows)
    word = std::bit_cast<float>(static_cast<std::uint32_t>(random()));  // NaNs keep their bits too
  Bytes bytes;
  encode_entries(schema, ids, times, rows, bytes);
  EntryBatch batch;
  std::size_t done = 0;
  while (done < bytes.size()) {
    RecordScanner scanner({bytes.data() + done, bytes.size() - done}, done, "file");
    const std::size_t expected = std::min<std::size_t>(7, count - batch.ids.size());
    ASSERT_EQ(decode_entries(schema, scanner, 7, false, batch), expected);
    done += scanner.consumed();
  }
  EXPECT_EQ(batch.ids, ids);
  EXPECT_EQ(batch.times_s, times);
  ASSERT_EQ(batch.rows.size(), rows.size());
  EXPECT_EQ(std::memcmp(batch.rows.data(), rows.data(), rows.size() * sizeof(float)), 0);
}

TEST(EntryDumpTest, packed_floats_unknown_fields_and_any_order_are_accepted) {
  const auto batch =
      decode(schema_of({adagrad(2)}),
             framed(hex("20 ac02 1a0e 0a0c 0a0a 0a08 0000003f0000803e 28 05 31 0000000000000000 3a 02 ffff 45 00000000"
                        "12 08 0000803f00000040 09 0201000000000000")));
  EXPECT_EQ(batch.ids[0], 0x0102);
  EXPECT_EQ(batch.rows, (std::vector<float>{1, 2, 0.5F, 0.25F}));
}

TEST(EntryDumpTest, a_short_record_keeps_the_initial_row) {
  const auto schema = schema_of({adagrad(2)});
  const auto batch = decode(schema, framed(hex("09 0201000000000000 15 0000803f")), true);
  EXPECT_EQ(batch.rows, (std::vector<float>{1, 0, 0.5F, 0.5F}));
  EXPECT_EQ(batch.value_counts[0], 1U);
  EXPECT_EQ(batch.times_s[0], 0U);
}

TEST(EntryDumpTest, what_does_not_fit_is_refused_by_name) {
  const auto schema = schema_of({sgd(1), adagrad(1)});
  const auto expect = [&](std::string_view payload, std::string_view part) {
    const std::string error = error_of(schema, payload);
    EXPECT_NE(error.find(part), std::string::npos) << error << " lacks " << part;
    EXPECT_EQ(error.rfind("file: record at byte 0: ", 0), 0U) << error;
  };
  const std::string id = "09 0201000000000000 ";
  expect("", "'id' is missing");
  expect(id, "slice 1 (adagrad) has no element");
  expect(id + "1a04 0a021200", "slice 1 (adagrad) has no element");
  expect(id + "1a06 0a021200 0a00", "slice 1 (adagrad) has an empty element");
  expect(id + "1a08 0a021200 0a020a00", "slice 1 (adagrad) has 0 of 1 values of 'norm'");
  expect(id + "1a08 0a021200 0a023200", "slice 1 (adagrad) finds the state of adadelta");
  expect(id + "1a04 0a020a00", "slice 0 (sgd) finds the state of adagrad");
  expect(id + "1a11 0a021200 0a07 0a05 0d0000003f 0a021200", "more slices than the table");
  expect(id + "1a12 0a021200 0a0c 0a0a 0d0000003f 0d0000003f", "field 'norm' has more than 1 values");
  expect(id + "15 00000000 15 00000000 15 00000000", "field 'num' has more than the table's 2 values");
  expect(id + "12 0c 000000000000000000000000", "field 'num' has more than the table's 2 values");
  expect(id + "12 03 000000", "packed floats take 3 bytes");
  expect(id + "20 ffffffffffffffffff01", "'last_update_ts_sec' is -1");
  expect(id + "20 808080808001", "'last_update_ts_sec' is 34359738368");
  expect("08 01", "'id' is not a fixed64");
  expect("33", "field 6 has wire type 3");
  expect("00", "field number 0");
  expect("20 ffffffffffffffffffff01", "longer than 64 bits");
  expect("1a ffffffff0f", "needs 4294967295 bytes");
}

TEST(EntryDumpTest, another_optimizer_is_refused_even_when_state_may_be_missing) {
  EXPECT_NE(error_of(schema_of({adagrad(1)}), "09 0201000000000000 1a04 0a024a00", true).find("momentum"),
            std::string::npos);
}

TEST(EntryDumpTest, a_record_cut_at_any_byte_or_made_of_noise_is_refused_or_whole) {
  const auto schema = schema_of({ftrl(2), adam(3)});
  Bytes bytes;
  const std::int64_t id = 77;
  const std::uint32_t time_s = 1700000000;
  std::vector<float> row(schema.row_words, 1.5F);
  encode_entries(schema, {&id, 1}, {&time_s, 1}, row, bytes);
  const Bytes payload(bytes.begin() + kRecordHeaderBytes, bytes.end() - kRecordFooterBytes);
  for (std::size_t size = 0; size < payload.size(); ++size) {
    Bytes cut(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(size));
    // A cut between two whole fields is legal protobuf; only the time comes after the state, so only that may be lost.
    try {
      const auto batch = decode(schema, framed(cut));
      EXPECT_EQ(size, payload.size() - 6) << size;
      EXPECT_EQ(batch.times_s[0], 0U);
    } catch (const RecordCorrupt&) {
    }
  }
  std::mt19937_64 random(5);
  for (int round = 0; round < 20000; ++round) {
    Bytes noisy = payload;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      noisy[random() % noisy.size()] = static_cast<std::byte>(random());
    }
    if (round % 3 == 0) noisy.resize(random() % noisy.size());
    try {
      const auto batch = decode(schema, framed(noisy), round % 2 == 0);
      EXPECT_EQ(batch.rows.size(), schema.row_words);
    } catch (const RecordCorrupt&) {
    }
  }
}

TEST(EntryDumpTest, rows_of_the_wrong_width_are_refused) {
  const auto schema = schema_of({adagrad(2)});
  const std::int64_t id = 1;
  const std::uint32_t time_s = 0;
  const float row[3] = {};
  Bytes out;
  EXPECT_THROW(encode_entries(schema, {&id, 1}, {&time_s, 1}, row, out), DimensionMismatch);
}

TEST(EntryDumpTest, an_item_has_id_and_values_only) {
  Bytes out;
  const float values[] = {0.5F, 1.0F, 2.0F};
  encode_item(7, values, out);
  EXPECT_EQ(payload_hex(out),
            "090700000000000000"
            "150000003f"
            "150000803f"
            "1500000040");
}

TEST(EntryDumpTest, metadata_survives_the_round_trip) {
  Bytes out;
  encode_metadata({"table", 300}, out);
  EXPECT_EQ(payload_hex(out), "0a057461626c6510ac02");
  RecordScanner scanner(out, 0, "meta");
  std::span<const std::byte> record;
  ASSERT_TRUE(scanner.next(record));
  const auto metadata = decode_metadata(record, scanner);
  EXPECT_EQ(metadata.table_name, "table");
  EXPECT_EQ(metadata.entries, 300U);
  EXPECT_THROW((void)decode_metadata(record.first(3), scanner), RecordCorrupt);
}

}  // namespace
}  // namespace engine
