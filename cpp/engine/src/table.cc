// table.cc: a table's life, its small operations and its figures. Reads are in lookup.cc, writes in update.cc.
#include "engine/table.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "distinct_ids.h"
#include "engine/error.h"
#include "engine/fid.h"
#include "engine/table_image.h"
#include "part_update.h"
#include "partition.h"
#include "rows.h"

namespace engine {

namespace {

constexpr std::size_t kSlots = 32768;
constexpr std::int64_t kDaySeconds = 86400;
// Removals remembered per part, for explain(): 65,536 in all.
constexpr std::size_t kRemovalsKept = 1024;

std::uint64_t table_seed(const TableConfig& config) noexcept {
  std::uint64_t hash = scramble(config.seed);
  for (const char c : config.name) hash = scramble(hash ^ static_cast<unsigned char>(c));
  return hash;
}

std::vector<std::uint32_t> fill_slots(const std::map<std::uint32_t, std::uint32_t>& settings, std::uint32_t otherwise) {
  std::vector<std::uint32_t> values(kSlots, otherwise);
  for (const auto& [slot, value] : settings) {
    if (slot >= kSlots) throw ConfigError("slot must be below 32768, got " + std::to_string(slot));
    values[slot] = value;
  }
  return values;
}

std::vector<std::uint32_t> by_slot(const std::map<std::uint32_t, std::uint32_t>& settings, std::uint32_t otherwise) {
  if (settings.empty()) return {};
  return fill_slots(settings, otherwise);
}

std::vector<std::uint32_t> thresholds_of(const TableConfig& config) {
  const bool has_none = config.slot_thresholds.empty() && config.occurrence_threshold == 0;
  // The writer of a serving table has admitted its ids already: a serving table has no filter.
  if (config.is_serving || has_none) return {};
  return fill_slots(config.slot_thresholds, config.occurrence_threshold);
}

std::atomic<std::uint64_t> next_serial{1};

}  // namespace

Table::Table(TableConfig config, std::shared_ptr<Pool> pool)
    : config_(std::move(config)),
      serial_(next_serial.fetch_add(1, std::memory_order_relaxed)),
      schema_(config_.slices, table_seed(config_), config_.is_serving),
      pool_(std::move(pool)),
      arena_(schema_.value_bytes(), schema_.state_bytes()),
      thresholds_(thresholds_of(config_)),
      expire_days_(by_slot(config_.slot_expire_days, config_.expire_days)),
      scales_(std::make_unique<std::atomic<float>[]>(config_.slices.size())) {
  if (!thresholds_.empty()) filter_ = make_filter(config_.admission, table_seed(config_));
  parts_.reserve(kParts);
  for (std::size_t i = 0; i < kParts; ++i) parts_.push_back(std::make_unique<Part>(&arena_));
  for (std::size_t k = 0; k < config_.slices.size(); ++k) scales_[k] = schema_.slices()[k].compressor->initial_scale();
}

Table::~Table() = default;

// In falling order, as every hold of several parts: see LockedParts.
void Table::lock_all() noexcept {
  for (std::size_t part = kParts; part-- > 0;) parts_[part]->mutex.lock();
}

void Table::unlock_all() noexcept {
  for (const auto& part : parts_) part->mutex.unlock();
}

// Holds all parts for writing, and releases them after an exception too.
class Table::AllPartsLock {
 public:
  explicit AllPartsLock(Table& table) noexcept : table_(table) { table_.lock_all(); }
  ~AllPartsLock() { table_.unlock_all(); }
  AllPartsLock(const AllPartsLock&) = delete;
  AllPartsLock& operator=(const AllPartsLock&) = delete;

 private:
  Table& table_;
};

void Table::check_expiry(std::int64_t now_s) {
  const std::int64_t accepted_s = accepted_clock_s_.load(std::memory_order_relaxed);
  if (!forces_expiry_.load(std::memory_order_relaxed)) {
    // Ids are spread over the parts by their hash, so one part of a large table is a fair sample of it.
    const ExpiryCount sample = count_expiry(0, accepted_s, now_s);
    if (sample.alive < kLeastGuardedRows || sample.share() > kMostExpiredShare * 0.9) {
      std::array<ExpiryCount, kParts> counts;
      pool_->run(kParts, [&](std::size_t part) { counts[part] = count_expiry(part, accepted_s, now_s); });
      ExpiryCount all;
      for (const ExpiryCount& count : counts) {
        all.alive += count.alive;
        all.expired += count.expired;
      }
      if (all.alive >= kLeastGuardedRows && all.share() > kMostExpiredShare) {
        throw ExpiryRefused("table '" + config_.name + "': the clock " + std::to_string(now_s) + " drops " +
                            std::to_string(all.expired) + " of " + std::to_string(all.alive) +
                            " rows, expected at most " + std::to_string(static_cast<int>(kMostExpiredShare * 100)) +
                            " %; check the event times, or force it (force_expiry). Nothing was changed");
      }
    }
  }
  accept_clock(now_s);
}

Table::ExpiryCount Table::count_expiry(std::size_t number, std::int64_t accepted_s, std::int64_t now_s) const {
  const Part& part = *parts_[number];
  const std::shared_lock lock(part.mutex);
  ExpiryCount count;
  part.index.for_each([&](std::int64_t id, std::uint32_t row) {
    const std::uint32_t time = part.rows.time(row);
    if (accepted_s != 0 && is_expired(id, time, accepted_s)) return;
    ++count.alive;
    count.expired += is_expired(id, time, now_s) ? 1 : 0;
  });
  return count;
}

void Table::accept_clock(std::int64_t time_s) noexcept {
  std::int64_t accepted = accepted_clock_s_.load(std::memory_order_relaxed);
  while (accepted < time_s && !accepted_clock_s_.compare_exchange_weak(accepted, time_s, std::memory_order_relaxed)) {
  }
}

std::size_t Table::evict(std::int64_t now_s, bool force) {
  if (force) {
    accept_clock(now_s);
  } else {
    check_expiry(now_s);
  }
  std::atomic<std::size_t> evicted{0};
  pool_->run(kParts, [&](std::size_t number) {
    Part& part = *parts_[number];
    const std::unique_lock lock(part.mutex);
    std::vector<std::int64_t> expired;
    part.index.for_each([&](std::int64_t id, std::uint32_t row) {
      if (is_expired(id, part.rows.time(row), now_s)) expired.push_back(id);
    });
    for (const std::int64_t id : expired) remove(part, id, Removal::Reason::kExpired, now_s);
    if (!expired.empty()) part.index.shrink();
    evicted.fetch_add(expired.size(), std::memory_order_relaxed);
  });
  rows_evicted_.fetch_add(evicted, std::memory_order_relaxed);
  return evicted;
}

void Table::clear() {
  forbid_cuts();  // a running snapshot or segment still needs the rows
  struct AllowCuts {
    Table& table;
    ~AllowCuts() {
      for (auto& no_cut : table.no_cut_) no_cut.release();
    }
  } const allow_cuts{*this};
  const AllPartsLock lock(*this);
  // Notes first: a failed allocation leaves the rows, and notes too many do no harm.
  for (const auto& part : parts_) {
    part->index.for_each([&](std::int64_t id, std::uint32_t row) {
      if (is_tracking_.load(std::memory_order_relaxed)) touch(*part, id, row);
    });
  }
  for (const auto& part : parts_) {
    part->index.clear();
    part->rows.clear();
    part->touched.rows.clear();
    part->removals.clear();
    part->removal_count = 0;
    part->eviction_hand = 0;
  }
  arena_.clear();
  image_.reset();
  if (filter_) filter_->clear();
  max_time_s_ = 0;
  accepted_clock_s_ = 0;
  turn_ = 0;
  for (std::size_t k = 0; k < config_.slices.size(); ++k) scales_[k] = schema_.slices()[k].compressor->initial_scale();
}

bool Table::is_expired(std::int64_t id, std::uint32_t time_s, std::int64_t now_s) const noexcept {
  const std::uint32_t days = expire_days_.empty() ? config_.expire_days : expire_days_[slot_v2(id)];
  return now_s - static_cast<std::int64_t>(time_s) >= static_cast<std::int64_t>(days) * kDaySeconds;
}

std::uint32_t Table::threshold_of(std::int64_t id) const noexcept {
  return thresholds_.empty() ? 0 : thresholds_[slot_v2(id)];
}

// --- bookkeeping of changes; the part is locked for writing ---

void Table::preserve(Part& part, std::int64_t id, std::uint32_t row, std::uint32_t time) const {
  for (const auto& preimages : part.preimages) {
    if (!preimages || preimages->settled.test(row)) continue;
    // In this order, a failed allocation leaves the row to the cut.
    preimages->settled.reserve(row + 1);
    preimages->rows.resize(preimages->entries.size() * schema_.row_bytes());  // drops the bytes of a failed call
    schema_.append_packed(part.rows.view(row), preimages->rows);
    preimages->entries.push_back({id, time});
    preimages->settled.set(row);
  }
}

void Table::touch(Part& part, std::int64_t id, std::uint32_t row) {
  TouchedIds& touched = part.touched;
  const std::uint64_t generation = touched_generation_.load(std::memory_order_relaxed);
  if (touched.generation != generation) {
    touched.ids.clear();
    touched.rows.clear();
    touched.generation = generation;
  }
  if (touched.rows.test(row)) return;
  touched.ids.push_back(id);  // before the bit: a failed allocation must not leave a bit without an id
  touched.rows.set(row);
  const std::uint64_t count = touched_count_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (config_.touched_capacity != 0 && count > config_.touched_capacity) drop_notes(0);
}

// Each part sees that its generation is over.
void Table::drop_notes(std::uint64_t missing) noexcept {
  if (!is_tracking_.load(std::memory_order_relaxed)) return;
  const std::uint64_t noted = touched_count_.exchange(0, std::memory_order_relaxed);
  touched_dropped_.fetch_add(noted + missing, std::memory_order_relaxed);
  touched_generation_.fetch_add(1, std::memory_order_relaxed);
}

void Table::remove(Part& part, std::int64_t id, Removal::Reason reason, std::int64_t now_s) {
  const Removal removal{.id = id, .now_s = now_s, .updated_s = part.rows.time(part.index.find(id)), .reason = reason};
  if (part.removals.size() < kRemovalsKept) {
    part.removals.push_back(removal);
  } else {
    part.removals[part.removal_count % kRemovalsKept] = removal;
  }
  ++part.removal_count;
  drop(part, id);
}

void Table::drop(Part& part, std::int64_t id) {
  const std::uint32_t row = part.index.find(id);
  if (part.has_preimages()) preserve(part, id, row, part.rows.time(row));
  if (is_tracking_.load(std::memory_order_relaxed)) {
    touch(part, id, row);
    part.touched.rows.reset(row);  // the next id in this row is another one
  }
  part.index.erase(id);
  part.rows.free(row);
}

std::vector<std::int64_t> Table::drain_touched() {
  std::vector<std::int64_t> ids;
  {
    const AllPartsLock lock(*this);
    const bool was_tracking = is_tracking_.load();
    const std::uint64_t generation = touched_generation_.load();
    for (const auto& part : parts_) {
      const TouchedIds& touched = part->touched;
      if (!was_tracking) {
        part->index.for_each([&](std::int64_t id, std::uint32_t) { ids.push_back(id); });
      } else if (touched.generation == generation) {
        ids.insert(ids.end(), touched.ids.begin(), touched.ids.end());
      }
    }
    // Only now: a failed allocation above leaves all notes in their place.
    for (const auto& part : parts_) part->touched = TouchedIds{.ids = {}, .rows = {}, .generation = generation};
    is_tracking_ = true;
    touched_count_ = 0;
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// --- raw rows ---

std::vector<std::int64_t> Table::part_ids(std::size_t number) const {
  const Part& part = *parts_[number];
  const std::shared_lock lock(part.mutex);
  std::vector<std::pair<std::uint32_t, std::int64_t>> by_row;
  by_row.reserve(part.index.size());
  part.index.for_each([&](std::int64_t id, std::uint32_t row) { by_row.emplace_back(row, id); });
  std::sort(by_row.begin(), by_row.end());
  std::vector<std::int64_t> ids(by_row.size());
  std::transform(by_row.begin(), by_row.end(), ids.begin(), [](const auto& entry) { return entry.second; });
  return ids;
}

void Table::reserve(std::size_t ids) {
  pool_->run(kParts, [&](std::size_t number) {
    Part& part = *parts_[number];
    const std::unique_lock lock(part.mutex);
    const std::size_t share = ids / kParts;
    if (share > part.index.size()) part.index.reserve(share - part.index.size());
  });
}

void Table::adopt(std::unique_ptr<TableImage> image) {
  if (!schema_.is_serving() || size() != 0) {
    throw ConfigError("table '" + config_.name + "' is not an empty serving table: it cannot take an image");
  }
  clear();
  lock_all();
  try {
    for (std::size_t part = 0; part < kParts; ++part) {
      TableImage::Part from = image->take_part(part);
      parts_[part]->rows.adopt(from.rows, from.times);
      parts_[part]->index.adopt(std::move(from.index));
    }
    image_ = std::move(image);
  } catch (...) {
    unlock_all();
    clear();
    throw;
  }
  unlock_all();
  force_clock(image_->max_time_s());
}

void Table::copy_to(Table& other, std::uint64_t index, std::uint64_t count) const {
  for (std::size_t part = 0; part < kParts; ++part) {
    std::vector<std::int64_t> ids = part_ids(part);
    std::erase_if(ids, [&](std::int64_t id) { return static_cast<std::uint64_t>(id) % count != index; });
    const RawRows from = raw_rows(ids);
    other.import_values(schema_, from.ids, from.times, from.rows.data());
  }
  other.force_clock(max_time_s());
}

void Table::import_values(const RowSchema& from, std::span<const std::int64_t> ids,
                          std::span<const std::uint32_t> times, const std::byte* rows) {
  const std::size_t from_bytes = from.row_bytes();
  const std::size_t to_bytes = schema_.row_bytes();
  std::vector<float> values(from.dim());
  RawRows to;
  to.ids.reserve(ids.size());
  to.times.reserve(ids.size());
  to.rows.reserve(ids.size() * to_bytes);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    from.get(rows + i * from_bytes, values.data());
    if (config_.skip_zero_rows && is_zero_row(values.data(), values.size())) continue;
    to.ids.push_back(ids[i]);
    to.times.push_back(times[i]);
    to.rows.resize(to.rows.size() + to_bytes);
    schema_.set(to.rows.data() + to.rows.size() - to_bytes, values.data());
  }
  import_rows(to.ids, to.times, to.rows.data(), false);
}

// --- figures ---

std::size_t Table::size() const {
  std::size_t total = 0;
  for (const auto& part : parts_) {
    const std::shared_lock lock(part->mutex);
    total += part->index.size();
  }
  return total;
}

std::size_t Table::memory_bytes() const {
  std::size_t total = sizeof(Table) + (thresholds_.size() + expire_days_.size()) * sizeof(std::uint32_t);
  if (filter_) total += filter_->memory_bytes();
  for (const auto& part : parts_) {
    const std::shared_lock lock(part->mutex);
    total += sizeof(Part) + part->index.memory_bytes() + part->rows.memory_bytes() +
             part->touched.ids.capacity() * sizeof(std::int64_t) + part->touched.rows.memory_bytes() +
             part->removals.capacity() * sizeof(Removal);
    for (const auto& preimages : part->preimages) {
      if (!preimages) continue;
      total += preimages->rows.capacity() + preimages->settled.memory_bytes() +
               preimages->entries.capacity() * sizeof(Preimages::Entry);
    }
  }
  return total;
}

void Table::force_clock(std::int64_t time_s) noexcept {
  std::int64_t seen = max_time_s_.load(std::memory_order_relaxed);
  while (seen < time_s && !max_time_s_.compare_exchange_weak(seen, time_s, std::memory_order_relaxed)) {
  }
}

void Table::advance_clock(std::int64_t time_s) noexcept {
  const std::int64_t seen = max_time_s();
  force_clock(seen == 0 ? time_s : std::min(time_s, seen + kMostClockStepS));
}

// Never waits for one use while it holds the other: a delta writer takes both, one after the other.
void Table::forbid_cuts() noexcept {
  for (std::size_t first = 0;; first = 1 - first) {
    no_cut_[first].acquire();
    if (no_cut_[1 - first].try_acquire()) return;
    no_cut_[first].release();
  }
}

std::size_t Table::thread_scratch_bytes() noexcept {
  return partition_scratch_bytes() + distinct_scratch_bytes() + update_scratch_bytes();
}

void Table::release_thread_scratch() noexcept {
  release_partition_scratch();
  release_distinct_scratch();
  release_update_scratch();
}

TableStats Table::stats() const noexcept {
  return {.nan_rows_skipped = nan_rows_skipped_,
          .ids_filtered = ids_filtered_,
          .rows_evicted = rows_evicted_,
          .rows_evicted_full = rows_evicted_full_,
          .touched_dropped = touched_dropped_};
}

std::vector<float> Table::scales() const {
  std::vector<float> scales(config_.slices.size());
  for (std::size_t k = 0; k < scales.size(); ++k) scales[k] = scales_[k].load(std::memory_order_relaxed);
  return scales;
}

void Table::restore_extras(const Cut& cut) {
  if (cut.scales.size() != config_.slices.size()) {
    throw SnapshotCorrupt("table '" + config_.name + "' has " + std::to_string(config_.slices.size()) +
                          " slices, the snapshot has scales for " + std::to_string(cut.scales.size()));
  }
  // First: only this throws.
  if (filter_ && !cut.filter.empty()) filter_->load(cut.filter.data(), cut.filter.size());
  force_clock(cut.max_time_s);
  accept_clock(cut.max_time_s);
  turn_ = cut.turn;
  for (std::size_t k = 0; k < cut.scales.size(); ++k) scales_[k] = cut.scales[k];
}

void Table::merge_filter(std::span<const std::byte> state) {
  if (filter_) filter_->merge(state.data(), state.size());
}

std::string Table::explain(std::int64_t id) const {
  const Part& part = *parts_[part_of(mix(static_cast<std::uint64_t>(id)))];
  const std::shared_lock lock(part.mutex);
  const bool has_slots = !config_.slot_thresholds.empty() || !config_.slot_expire_days.empty();
  const std::string slot_text = has_slots ? "(slot " + std::to_string(slot_v2(id)) + ") " : "";
  const std::string subject = "id " + std::to_string(id) + " " + slot_text;
  const std::uint32_t days = expire_days_.empty() ? config_.expire_days : expire_days_[slot_v2(id)];
  if (const std::uint32_t row = part.index.find(id); row != Index::kNoRow) {
    const std::uint32_t time = part.rows.time(row);
    std::string text = subject + "is present: last updated at " + std::to_string(time) + ", expires at " +
                       std::to_string(time + static_cast<std::int64_t>(days) * kDaySeconds);
    if (is_expired(id, time, max_time_s())) text += " (already expired; the next evict removes it)";
    return text;
  }
  const std::uint32_t threshold = threshold_of(id);
  std::string text = subject + "is absent: ";
  for (std::size_t back = 0; back < part.removals.size(); ++back) {
    const Removal& removal = part.removals[(part.removal_count - 1 - back) % kRemovalsKept];
    if (removal.id != id) continue;
    const std::string updated = " (last updated at " + std::to_string(removal.updated_s) + ")";
    switch (removal.reason) {
      case Removal::Reason::kDeleted:
        return text + "deleted" + updated;
      case Removal::Reason::kZero:
        return text + "its values became zero, and this table keeps no zero rows" + updated;
      case Removal::Reason::kExpired:
        return text + "expired after " + std::to_string(days) + " days, evicted with the clock at " +
               std::to_string(removal.now_s) + updated;
    }
  }
  if (filter_ && threshold > 0 && config_.admission.kind == "probabilistic_filter") {
    return text + "not admitted so far; a draw at each sighting decides, with threshold " + std::to_string(threshold);
  }
  if (filter_ && threshold > 0) {
    const std::uint32_t seen = filter_->seen(id);
    return text + (seen == 0 ? "never seen" : "below threshold: seen " + std::to_string(seen) + " times") +
           ", enters after " + std::to_string(threshold) + " sightings";
  }
  if (rows_evicted_full_ > 0) return text + "never seen, or evicted because the table was full";
  if (part.removal_count > part.removals.size()) return text + "never seen, or removed longer ago than is remembered";
  return text + "never seen";
}

// --- cuts ---

Table::Cut Table::begin_cut(CutUse use) {
  const auto slot = static_cast<std::size_t>(use);
  no_cut_[slot].acquire();
  lock_all();
  Cut cut;
  cut.use = use;
  try {
    cut.max_time_s = max_time_s();
    cut.scales = scales();
    cut.turn = turn_;
    // A segment has no counts, which may be as large as the table.
    if (filter_ && use == CutUse::kSnapshot) cut.filter = filter_->save();
    for (const auto& part : parts_) {
      part->preimages[slot] = std::make_unique<Preimages>();
      part->preimages[slot]->settled.reserve(part->rows.end());
      cut.rows += part->index.size();
    }
  } catch (...) {
    unlock_all();
    end_cut(use);
    throw;
  }
  unlock_all();
  return cut;
}

void Table::visit_cut(const Cut& cut, std::size_t number, std::size_t most,
                      const std::function<void(const CutRows&)>& pack, const std::function<void()>& flush) {
  Part& part = *parts_[number];
  std::unique_ptr<Preimages>& kept = part.preimages[static_cast<std::size_t>(cut.use)];
  const auto is_left_out = [&](std::int64_t id, std::uint32_t time) {
    return !cut.keeps_expired && is_expired(id, time, cut.max_time_s);
  };
  struct Place {
    std::int64_t id;
    std::uint32_t time;
    bool is_used;
  };
  std::vector<Place> by_row;
  {
    const std::shared_lock lock(part.mutex);
    by_row.resize(part.rows.end());
    part.index.for_each([&](std::int64_t id, std::uint32_t row) {
      const std::uint32_t time = part.rows.time(row);
      const bool is_used = !kept->settled.test(row) && !is_left_out(id, time);
      by_row[row] = {.id = id, .time = time, .is_used = is_used};
    });
  }
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> times;
  std::vector<RowView> rows;
  const auto start_piece = [&] {
    ids.clear();
    times.clear();
    rows.clear();
  };
  for (std::size_t row = 0; row < by_row.size();) {
    start_piece();
    {
      const std::shared_lock lock(part.mutex);
      for (; row < by_row.size() && ids.size() < most; ++row) {
        if (!by_row[row].is_used || kept->settled.test(static_cast<std::uint32_t>(row))) continue;
        ids.push_back(by_row[row].id);
        times.push_back(by_row[row].time);
        rows.push_back(part.rows.view(static_cast<std::uint32_t>(row)));
        // Handed out: a later change needs no copy. Only writers ask, and the lock keeps them out; there is room.
        kept->settled.set(static_cast<std::uint32_t>(row));
      }
      if (!ids.empty()) pack({ids, times, rows});
    }
    if (!ids.empty()) flush();
  }
  std::unique_ptr<Preimages> preimages;
  {
    const std::unique_lock lock(part.mutex);
    preimages = std::move(kept);
    if (image_) image_->check_whole();  // a file that was cut off gave zeros
  }
  for (std::size_t i = 0; i < preimages->entries.size();) {
    start_piece();
    for (; i < preimages->entries.size() && ids.size() < most; ++i) {
      const auto& [id, time] = preimages->entries[i];
      if (is_left_out(id, time)) continue;
      ids.push_back(id);
      times.push_back(time);
      rows.push_back(schema_.packed(preimages->rows.data() + i * schema_.row_bytes()));
    }
    if (ids.empty()) continue;
    pack({ids, times, rows});
    flush();
  }
}

void Table::end_cut(CutUse use) noexcept {
  const auto slot = static_cast<std::size_t>(use);
  lock_all();
  for (const auto& part : parts_) part->preimages[slot].reset();
  unlock_all();
  no_cut_[slot].release();
}

}  // namespace engine
