// table.h: a collisionless embedding table: one row per 64-bit id.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <vector>

#include "engine/bags.h"
#include "engine/config.h"
#include "engine/filter.h"
#include "engine/part.h"
#include "engine/pool.h"
#include "engine/row_plan.h"
#include "engine/row_schema.h"

namespace engine {

enum class NanPolicy : std::uint8_t { kRefuse, kSkip, kApply };

struct TableConfig {
  std::string name;
  std::vector<SliceConfig> slices;
  std::uint32_t expire_days = 36500;
  std::map<std::uint32_t, std::uint32_t> slot_expire_days;
  PartConfig admission{.kind = "no_filter", .settings = {}};
  std::uint32_t occurrence_threshold = 0;  // of slots without their own threshold
  std::map<std::uint32_t, std::uint32_t> slot_thresholds;
  bool miss_is_initial = false;
  std::uint64_t max_bytes = 0;    // 0 = unbounded
  bool evicts_when_full = false;  // instead of refusing new ids
  std::uint64_t seed = 0;
  bool is_deterministic = false;
  NanPolicy nan_policy = NanPolicy::kSkip;
  std::uint64_t touched_capacity = 0;  // 0 = unbounded
  bool is_serving = false;
  bool skip_zero_rows = false;  // serving: an all-zero row is not kept
};

// Seconds by which one push may move a table's clock: a day.
inline constexpr std::int64_t kMostClockStepS = 86400;
// A save or an eviction that drops a larger share of the rows must be forced; smaller tables are not guarded.
inline constexpr double kMostExpiredShare = 0.8;
inline constexpr std::size_t kLeastGuardedRows = 1000;

// A row as raw material: id, time and the row's bytes.
struct RawRows {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> times;
  std::vector<std::byte> rows;
};

class ColumnRows;
class Table;
class TableImage;
class TableView;
class Turnstile;
class Partition;
struct PartitionPiece;

struct LookupJob {
  const Table* table = nullptr;
  Bags bags;
  float* out = nullptr;           // (targets, dim)
  std::uint8_t* found = nullptr;  // (ids), kNone only; may be null
  RowPlan* plan = nullptr;        // filled, for the update that follows; null: none follows
  bool is_distinct = false;       // kNone only: no id occurs twice, so a plan does not number them
};

struct GradientJob {
  Table* table = nullptr;
  Bags bags;
  const float* grads = nullptr;             // (targets, dim)
  std::span<const std::uint32_t> counts{};  // (ids), kNone only: sightings behind each id; empty = one each
  const float* latest = nullptr;            // (targets, dim), kNone only: values the gradient was computed at
  std::span<const float> learning_rates;    // (slices)
  std::uint32_t time_s = 0;
  std::int64_t step = 0;
  bool dedup = true;        // false: one optimizer step per occurrence
  RowPlan* plan = nullptr;  // of a lookup in the same table: its ids are the job's, and `bags` is not read
  std::optional<std::size_t> planned_rows = {};  // rows of `grads`, which must be those of the plan; null: they are
};

// Counters since the table was made.
struct TableStats {
  std::uint64_t nan_rows_skipped = 0;
  std::uint64_t ids_filtered = 0;       // answers "not yet" of the admission filter
  std::uint64_t rows_evicted = 0;       // expired
  std::uint64_t rows_evicted_full = 0;  // least recently updated, because the table was full
  std::uint64_t touched_dropped = 0;
};

class Table {
 public:
  // The state at one instant. Training continues meanwhile; the table keeps old values of changed rows until written.
  struct Cut {
    CutUse use = CutUse::kSnapshot;
    bool keeps_expired = false;  // hand out expired rows too
    std::int64_t max_time_s = 0;
    std::vector<float> scales;
    std::vector<std::byte> filter;  // of a snapshot
    std::uint64_t turn = 0;
    std::size_t rows = 0;
  };

  Table(TableConfig config, std::shared_ptr<Pool> pool);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  [[nodiscard]] const TableConfig& config() const noexcept { return config_; }
  [[nodiscard]] const RowSchema& schema() const noexcept { return schema_; }
  [[nodiscard]] Pool& pool() const noexcept { return *pool_; }

  // --- batched reads; concurrent, snapshot-safe ---
  void lookup(std::span<const std::int64_t> ids, float* out, std::uint8_t* found) const;
  void contains(std::span<const std::int64_t> ids, std::uint8_t* found) const;
  // All jobs as one piece of work. Jobs may name the same table.
  static void lookup_all(std::span<const LookupJob> jobs, Pool& pool);

  // --- batched writes; concurrent: each part of a table is changed by one thread at a time ---
  void assign(std::span<const std::int64_t> ids, const float* rows, std::uint32_t time_s);
  void assign_add(std::span<const std::int64_t> ids, const float* rows, std::uint32_t time_s);
  // Sums the gradients of equal ids in order of occurrence, then takes one optimizer step per id.
  static void apply_all(std::span<const GradientJob> jobs, Pool& pool);
  void reinitialize(std::span<const std::int64_t> ids, std::int8_t* existed);
  std::size_t erase(std::span<const std::int64_t> ids);
  // Removes rows whose last update is expire_days or more before now_s. Unless forced, throws as check_expiry.
  std::size_t evict(std::int64_t now_s, bool force = false);
  void clear();

  // --- raw rows: export, import, restore ---
  // Upserts whole rows; `rows` holds row_bytes() per id. Asks no filter. Concurrent. `moves_clock`: the newest of the
  // times becomes the clock; a caller that restores the clock by restore_extras passes false.
  void import_rows(std::span<const std::int64_t> ids, std::span<const std::uint32_t> times, const std::byte* rows,
                   bool moves_clock = true);
  // The same for rows of a file's block, where they lie; does not move the clock.
  void import_columns(std::span<const std::int64_t> ids, std::span<const std::uint32_t> times, const ColumnRows& rows);
  // Ids of one part, by row number. Concurrent.
  [[nodiscard]] std::vector<std::int64_t> part_ids(std::size_t number) const;
  // The raw rows of the given ids that are present. Concurrent.
  [[nodiscard]] RawRows raw_rows(std::span<const std::int64_t> ids) const;
  void reserve(std::size_t ids);
  // An empty serving table uses the rows of an image, where they lie. Exclusive.
  void adopt(std::unique_ptr<TableImage> image);
  // Upserts all rows, with their times, into a table of the same slices that may store them differently. Concurrent.
  // Only ids with uint64(id) mod `count` == `index`.
  void copy_to(Table& other, std::uint64_t index = 0, std::uint64_t count = 1) const;
  // Takes rows of a table of the same width, which have the form `from`, in the form of this table.
  void import_values(const RowSchema& from, std::span<const std::int64_t> ids, std::span<const std::uint32_t> times,
                     const std::byte* rows);

  // --- figures; concurrent ---
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] std::size_t memory_bytes() const;
  // The event clock: rows expire by it. A push of gradients moves it forward by at most kMostClockStepS, so that one
  // event with a wrong time cannot expire the table; only the first one sets an empty clock freely.
  [[nodiscard]] std::int64_t max_time_s() const noexcept { return max_time_s_.load(std::memory_order_relaxed); }
  // Moves the clock forward to `time_s`, however far.
  void force_clock(std::int64_t time_s) noexcept;
  // Accepts `now_s` as the clock of a save or an eviction. Throws ExpiryRefused when of at least kLeastGuardedRows rows
  // that were alive at the clock accepted last, more than kMostExpiredShare have expired. Concurrent.
  void check_expiry(std::int64_t now_s);
  // Accepts every clock from now on. Concurrent.
  void set_forces_expiry(bool forces) noexcept { forces_expiry_.store(forces, std::memory_order_relaxed); }
  [[nodiscard]] bool forces_expiry() const noexcept { return forces_expiry_.load(std::memory_order_relaxed); }
  // Calls so far that might ask the filter: where the draws of a probabilistic one stand.
  [[nodiscard]] std::uint64_t turn() const noexcept { return turn_.load(std::memory_order_relaxed); }
  [[nodiscard]] TableStats stats() const noexcept;
  // One sentence: why the id is present or absent.
  [[nodiscard]] std::string explain(std::int64_t id) const;
  [[nodiscard]] std::vector<float> scales() const;
  // Restores the state that a cut keeps beside the rows. When it throws, nothing was changed. Concurrent.
  void restore_extras(const Cut& cut);
  // Adds the counts of another shard's admission filter, saved by it. Concurrent.
  void merge_filter(std::span<const std::byte> state);
  // Bytes that the table may take from now on; 0 = unbounded. Concurrent.
  void set_budget(std::uint64_t bytes) noexcept { budget_.store(bytes, std::memory_order_relaxed); }
  // A table at its budget evicts its least recently updated rows, instead of refusing new ids. Concurrent.
  void set_evicts_when_full(bool evicts) noexcept { evicts_when_full_.store(evicts, std::memory_order_relaxed); }
  [[nodiscard]] bool evicts_when_full() const noexcept { return evicts_when_full_.load(std::memory_order_relaxed); }
  // Memory that the calling thread keeps for its next write; and gives it back.
  [[nodiscard]] static std::size_t thread_scratch_bytes() noexcept;
  static void release_thread_scratch() noexcept;
  // True when a row updated at `time_s` has expired at `now_s`.
  [[nodiscard]] bool is_expired(std::int64_t id, std::uint32_t time_s, std::int64_t now_s) const noexcept;

  // Sorted ids changed since the last call. The first call returns all present ids and starts the tracking.
  [[nodiscard]] std::vector<std::int64_t> drain_touched();

  [[nodiscard]] AdmissionFilter* filter() const noexcept { return filter_.get(); }

  // --- snapshots: see snapshot.h ---
  // Waits while another cut of the same use exists.
  Cut begin_cut(CutUse use = CutUse::kSnapshot);
  // Rows as they were at the cut.
  struct CutRows {
    std::span<const std::int64_t> ids;
    std::span<const std::uint32_t> times;
    std::span<const RowView> rows;
  };
  // Hands out the rows of one part, expired ones only if the cut keeps them, in pieces of at most `most`. pack(rows)
  // must only copy: the part is locked for reading; flush() follows without the lock. Once per part.
  void visit_cut(const Cut& cut, std::size_t part, std::size_t most, const std::function<void(const CutRows&)>& pack,
                 const std::function<void()>& flush);
  void end_cut(CutUse use = CutUse::kSnapshot) noexcept;

 private:
  friend class PartUpdate;
  friend class TableView;

  class LockedParts;
  void lookup_piece(const LookupJob& job, UnitRange units) const;
  // Lookups with a plan, see row_plan.cc: fill all plans; then each piece of work reads values out of its plan.
  struct PlannedPiece {
    const LookupJob* job;
    const PartitionPiece* piece;
  };
  static std::vector<PlannedPiece> plan_all(std::span<const LookupJob* const> jobs, Pool& pool);
  void plan_part(RowPlan& plan, std::size_t number) const;
  // Searches the distinct ids of parts [begin, end) and copies their rows to the output.
  void plan_distinct(const LookupJob& job, std::size_t begin, std::size_t end) const;
  // Writes the values that a lookup shows for an id: those of its row, or of an absent one.
  template <class Width>
  void read_values(const std::byte* row, std::int64_t id, float* out, std::span<const float> scales, Width width) const;
  void pool_planned(const LookupJob& job, const PartitionPiece& piece) const;
  template <class Width>
  void read_planned(const LookupJob& job, const PartitionPiece& piece, Width width) const;
  // Reads the found rows of ids [first, first + rows) into the targets of their units.
  template <class Width>
  void read_block(const LookupJob& job, UnitRange units, std::size_t first, std::span<const std::byte* const> rows,
                  Width width) const;
  // Upserts whole rows, part by part, in parallel.
  template <class Rows>
  void replace_all(std::span<const std::int64_t> ids, std::span<const std::uint32_t> times, const Rows& rows);
  // Groups the ids by part and calls change(update, group) on each part, its rows resolved, in parallel.
  template <class Change>
  void change_rows(std::span<const std::int64_t> ids, bool asks_filter, Change&& change);
  struct TableWork {
    const GradientJob* job;
    const Partition* grouped;
  };
  // The ids of a job: those of its plan, in order of parts, where it has one. Throws when the plan is not the table's.
  [[nodiscard]] static Bags bags_of(const GradientJob& job);
  static void check_job(const GradientJob& job, Pool& pool);
  void apply_part(std::size_t part, std::span<const TableWork> work, std::uint64_t turn, Turnstile* order);
  // Throws CapacityExceeded when the absent ids of the call do not fit the budget. Holds the lock while near it.
  std::unique_lock<std::mutex> check_budget(std::span<const std::span<const std::int64_t>> calls);
  // Evicts rows in every part that has no room for its `absent` ids of a call, but no row of the call. False, and no
  // change, when the other rows are too few.
  [[nodiscard]] bool make_room(std::span<const std::int64_t> ids, std::span<const std::size_t> absent);
  // Evicts a share of a part, at least as much as `more` ids need, except the `kept` ids.
  void evict_oldest(Part& part, std::size_t more, std::span<const std::int64_t> kept);
  [[nodiscard]] std::uint32_t threshold_of(std::int64_t id) const noexcept;
  void advance_clock(std::int64_t time_s) noexcept;
  void accept_clock(std::int64_t time_s) noexcept;
  struct ExpiryCount {
    std::size_t alive = 0;    // at the clock accepted last
    std::size_t expired = 0;  // of them, at the new clock
    [[nodiscard]] double share() const noexcept {
      return alive == 0 ? 0.0 : static_cast<double>(expired) / static_cast<double>(alive);
    }
  };
  [[nodiscard]] ExpiryCount count_expiry(std::size_t number, std::int64_t accepted_s, std::int64_t now_s) const;
  // Waits until no cut exists, and keeps new ones out.
  void forbid_cuts() noexcept;
  void lock_all() noexcept;
  void unlock_all() noexcept;
  class AllPartsLock;
  // Bookkeeping before a row changes or leaves, and after one is made. The part is locked for writing.
  void preserve(Part& part, std::int64_t id, std::uint32_t row, std::uint32_t time) const;
  void touch(Part& part, std::int64_t id, std::uint32_t row);
  // Drops the notes of all parts, and counts them with those that are missing.
  void drop_notes(std::uint64_t missing) noexcept;
  void remove(Part& part, std::int64_t id, Removal::Reason reason, std::int64_t now_s);
  // As remove, without the note for explain(): a full table has no memory for notes.
  void drop(Part& part, std::int64_t id);

  TableConfig config_;
  const std::uint64_t serial_;  // differs from that of every other table of the process
  std::atomic<std::uint64_t> budget_{config_.max_bytes};
  std::atomic<bool> evicts_when_full_{config_.evicts_when_full};
  RowSchema schema_;
  std::shared_ptr<Pool> pool_;
  RowArena arena_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::unique_ptr<AdmissionFilter> filter_;
  std::vector<std::uint32_t> thresholds_;   // by slot; empty = all zero
  std::vector<std::uint32_t> expire_days_;  // by slot; empty = config_.expire_days
  std::unique_ptr<std::atomic<float>[]> scales_;
  std::atomic<std::int64_t> max_time_s_{0};
  std::atomic<std::int64_t> accepted_clock_s_{0};  // of the last save, eviction or restore
  std::atomic<bool> forces_expiry_{false};
  std::atomic<std::uint64_t> turn_{0};  // numbers the calls that may ask the filter
  std::mutex budget_mutex_;
  // Per use, taken from begin_cut to end_cut, which may be different threads.
  std::array<std::binary_semaphore, kCutUses> no_cut_{std::binary_semaphore{1}, std::binary_semaphore{1}};
  std::atomic<bool> is_tracking_{false};
  std::atomic<std::uint64_t> touched_count_{0};
  std::atomic<std::uint64_t> touched_generation_{0};
  std::atomic<std::uint64_t> nan_rows_skipped_{0};
  std::atomic<std::uint64_t> ids_filtered_{0};
  std::atomic<std::uint64_t> rows_evicted_{0};
  std::atomic<std::uint64_t> rows_evicted_full_{0};
  std::atomic<std::uint64_t> touched_dropped_{0};
  std::unique_ptr<const TableImage> image_;  // source of the adopted parts
};

}  // namespace engine
