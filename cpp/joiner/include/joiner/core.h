// core.h: the state of many request keys and the rules of the join.
//
// A core gives the same rows as monolith.stream.KeyRules, whose comments explain the rules. It reads no clock and draws
// no random number. One thread uses a core.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "joiner/events.h"
#include "joiner/packer.h"

namespace joiner {

struct CoreState;
struct Entry;

class Core {
 public:
  // Spilled state goes to files in `spill_folder`; without a folder, `spill` does nothing. Throws engine::IoError.
  Core(Settings settings, const std::string& spill_folder);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // --- events: rows are appended to `rows()` -------------------------------------------------------------------------
  // Throw engine::ConfigError if a key is empty or longer than kMaxKeyBytes.
  void add_impression(const Impression& impression);
  void add_action(const Action& action);
  // Raises the watermark. A lower one has no effect.
  void advance(std::int64_t watermark);

  // --- bounds --------------------------------------------------------------------------------------------------------
  // Moves impressions to disk, stubs first, then the oldest windows, until `memory()` is at most `bytes` or nothing is
  // left to move. Changes no row. Throws engine::IoError, after which the core is as before.
  void spill(std::size_t bytes);
  // Closes the `count` oldest open windows with the labels that are known, and returns how many there were.
  std::size_t close_oldest(std::size_t count);
  // Drops the `count` oldest (key, item) of waiting actions, counts their actions as overflow, and returns how many
  // (key, item) there were.
  std::size_t drop_oldest_held(std::size_t count);

  // --- snapshots -----------------------------------------------------------------------------------------------------
  // Writes the state to a new file and syncs it. Throws engine::IoError.
  void save(const std::string& path) const;
  // Fills an empty core, spilling above `memory_bytes`. Throws engine::SnapshotCorrupt or engine::IoError.
  void restore(const std::string& path, std::size_t memory_bytes);

  [[nodiscard]] Rows& rows() noexcept { return rows_; }
  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
  [[nodiscard]] const Packer& packer() const noexcept { return packer_; }
  [[nodiscard]] Packer& packer() noexcept { return packer_; }
  [[nodiscard]] std::optional<std::int64_t> watermark() const noexcept { return watermark_; }
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
  [[nodiscard]] std::size_t open_impressions() const noexcept { return open_; }
  [[nodiscard]] std::size_t held_actions() const noexcept { return held_; }
  [[nodiscard]] std::size_t entries() const noexcept { return live_; }
  // Estimated bytes in memory: entries, table, timers, payloads, actions.
  [[nodiscard]] std::size_t memory() const noexcept;
  [[nodiscard]] std::size_t held_memory() const noexcept;
  [[nodiscard]] std::uint64_t spilled_bytes() const noexcept;

 private:
  std::uint32_t find_or_add(std::string_view key, std::uint64_t item);
  void take_actions(Entry& entry, std::string_view key);
  void judge_again(Entry& entry, std::int64_t time);
  void hold(std::uint32_t slot, const Action& action);
  void take(Entry& entry, std::string_view key, std::int64_t time, std::int32_t code);
  void take_late(Entry& entry, std::string_view key, std::int64_t time, std::int32_t code);
  void learn(Entry& entry, std::string_view key, std::int64_t time, std::int32_t code);
  void close(std::uint32_t place, std::string_view key);
  void emit_first(Entry& entry, std::string_view key);
  void emit(const Entry& entry, const std::vector<float>& labels, const std::vector<std::int32_t>& actions,
            double weight, std::int64_t cause_time);
  [[nodiscard]] std::int64_t first_row_time(const Entry& entry) const;
  void labels_of(const Entry& entry, std::vector<float>& labels) const;
  void expire_impression(std::uint32_t place);
  void prune(std::uint32_t place);

  bool spill_bucket(const std::vector<std::uint32_t>& places, std::size_t bytes, bool is_close);

  Settings settings_;
  Packer packer_;
  Rows rows_;
  Counters counters_;
  std::optional<std::int64_t> watermark_;
  std::size_t open_ = 0;
  std::size_t held_ = 0;
  std::size_t held_entries_ = 0;
  std::size_t live_ = 0;
  std::size_t extras_ = 0;
  std::size_t code_times_ = 0;
  std::unique_ptr<CoreState> state_;
  std::vector<float> labels_;
  std::vector<float> new_labels_;
  std::vector<std::int32_t> codes_;
  std::vector<std::int32_t> new_codes_;
};

}  // namespace joiner
