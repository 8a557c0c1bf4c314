// events.h: settings, input events and output rows of the joiner. Times are milliseconds of event time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace joiner {

// The label of a task that a row does not teach: the lowest float32.
inline constexpr float kInvalidLabel = std::numeric_limits<float>::lowest();
inline constexpr std::size_t kMaxKeyBytes = 256;

enum class Late : std::uint8_t { kDrop, kReemit, kCorrect };

struct Settings {
  std::vector<std::vector<std::int32_t>> tasks;  // positive codes of each task
  std::int64_t window = 0;
  std::int64_t horizon = 0;
  std::int64_t orphan_hold = 0;
  std::int64_t skew = 0;
  Late late = Late::kDrop;
  bool is_fast = false;
  double sample_rate = 1.0;
  bool samples_by_weight = false;
  std::uint64_t salt = 0;
  std::size_t max_codes = 64;
  std::size_t max_orphans = 1024;
};

struct Impression {
  std::int64_t time;
  std::string_view key;  // 1 to 256 bytes
  std::uint64_t item;
  std::string_view payload;
  std::uint64_t event_id;
  std::int64_t ingest_time;  // 0: unknown
  bool is_packed = false;    // the payload was packed by the packer of the core
};

struct Action {
  std::int64_t time;
  std::string_view key;
  std::uint64_t item;
  std::int32_t code;
};

// Rows in order. Variable parts lie in shared arrays.
struct Rows {
  struct Row {
    std::int64_t time;
    std::uint64_t item;
    std::uint64_t event_id;
    std::int64_t ingest_time;
    std::int64_t cause_time;  // event time from which the row can exist
    std::size_t key_begin;  // in `bytes`; the packed payload follows the key
    std::uint32_t key_size;
    std::uint32_t payload_size;
    std::size_t codes_begin;  // in `codes`; actions, then pre_actions
    std::uint32_t actions;
    std::uint32_t pre_actions;
    std::uint32_t emission;
    float sample_rate;
    double weight;
  };

  std::vector<Row> rows;
  std::vector<float> labels;  // one per task and row
  std::vector<std::int32_t> codes;
  std::string bytes;

  [[nodiscard]] std::string_view key(const Row& row) const { return {bytes.data() + row.key_begin, row.key_size}; }
  [[nodiscard]] std::string_view packed_payload(const Row& row) const {
    return {bytes.data() + row.key_begin + row.key_size, row.payload_size};
  }
  void clear() {
    rows.clear();
    labels.clear();
    codes.clear();
    bytes.clear();
  }
};

struct Counters {
  std::uint64_t dup_impression = 0;
  std::uint64_t dup_action = 0;
  std::uint64_t late_impression = 0;
  std::uint64_t late_impression_dropped = 0;
  std::uint64_t late_dropped = 0;
  std::uint64_t late_emitted = 0;
  std::uint64_t late_no_change = 0;
  std::uint64_t orphan = 0;
  std::uint64_t action_overflow = 0;
  std::uint64_t orphan_overflow = 0;
  std::uint64_t sampled_out = 0;
  std::uint64_t early_close = 0;
};

}  // namespace joiner
