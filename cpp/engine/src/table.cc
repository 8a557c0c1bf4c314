// table.cc: a table's life, its small operations and its figures. Reads are in lookup.cc, writes in update.cc.
#include "engine/table.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "engine/error.h"
#include "engine/fid.h"
#include "engine/table_image.h"
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

std::vector<std::uint32_t> by_slot(const std::map<std::uint32_t, std::uint32_t>& settings, std::uint32_t otherwise) {
  if (settings.empty()) return {};
  std::vector<std::uint32_t> values(kSlots, otherwise);
  for (const auto& [slot, value] : settings) {
    if (slot >= kSlots) throw ConfigError("slot must be below 32768, got " + std::to_string(slot));
    values[slot] = value;
  }
  return values;
}

}  // namespace

Table::Table(TableConfig config, std::shared_ptr<Pool> pool)
    : config_(std::move(config)),
      schema_(config_.slices, table_seed(config_), config_.is_serving),
      pool_(std::move(pool)),
      arena_(rows_per_slab(schema_.row_bytes()) * schema_.row_bytes()),
      // Whoever writes to a serving table has decided already: nobody is turned away there.
      thresholds_(config_.is_serving ? std::vector<std::uint32_t>() : by_slot(config_.slot_thresholds, 0)),
      expire_days_(by_slot(config_.slot_expire_days, config_.expire_days)),
      scales_(std::make_unique<std::atomic<float>[]>(config_.slices.size())) {
  if (!thresholds_.empty()) filter_ = make_filter(config_.admission, table_seed(config_));
  shards_.reserve(kShards);
  for (std::size_t i = 0; i < kShards; ++i) shards_.push_back(std::make_unique<Shard>(schema_.row_bytes(), &arena_));
  for (std::size_t k = 0; k < config_.slices.size(); ++k) scales_[k] = schema_.slices()[k].compressor->initial_scale();
}

Table::~Table() = default;

// In falling order, as every hold of several parts: see ReadLock.
void Table::lock_all() noexcept {
  for (std::size_t part = kShards; part-- > 0;) shards_[part]->mutex.lock();
}

void Table::unlock_all() noexcept {
  for (const auto& shard : shards_) shard->mutex.unlock();
}

std::size_t Table::evict(std::int64_t now_s) {
  std::atomic<std::size_t> evicted{0};
  pool_->run(kShards, [&](std::size_t part) {
    Shard& shard = *shards_[part];
    const std::unique_lock lock(shard.mutex);
    std::vector<std::int64_t> expired;
    shard.index.for_each([&](std::int64_t id, std::uint32_t, std::uint32_t time) {
      if (is_expired(id, time, now_s)) expired.push_back(id);
    });
    for (const std::int64_t id : expired) {
      remove(shard, shard.index.find(id, mix(static_cast<std::uint64_t>(id))), Removal::Reason::kExpired, now_s);
    }
    if (!expired.empty()) shard.index.shrink();
    evicted.fetch_add(expired.size(), std::memory_order_relaxed);
  });
  rows_evicted_.fetch_add(evicted, std::memory_order_relaxed);
  return evicted;
}

void Table::clear() {
  no_cut_.acquire();  // a running snapshot still needs the rows
  lock_all();
  for (const auto& shard : shards_) {
    shard->index.for_each([&](std::int64_t id, std::uint32_t row, std::uint32_t) {
      if (is_tracking_.load(std::memory_order_relaxed)) touch(*shard, id, row);
    });
    shard->index.clear();
    shard->rows.clear();
    shard->touched.rows.clear();
    shard->removals.clear();
    shard->removal_count = 0;
  }
  arena_.clear();
  image_.reset();
  if (filter_) filter_->clear();
  max_time_s_ = 0;
  turn_ = 0;
  for (std::size_t k = 0; k < config_.slices.size(); ++k) scales_[k] = schema_.slices()[k].compressor->initial_scale();
  unlock_all();
  no_cut_.release();
}

bool Table::is_expired(std::int64_t id, std::uint32_t time_s, std::int64_t now_s) const noexcept {
  const std::uint32_t days = expire_days_.empty() ? config_.expire_days : expire_days_[slot_v2(id)];
  return now_s - static_cast<std::int64_t>(time_s) >= static_cast<std::int64_t>(days) * kDaySeconds;
}

std::uint32_t Table::threshold_of(std::int64_t id) const noexcept {
  return thresholds_.empty() ? 0 : thresholds_[slot_v2(id)];
}

// --- bookkeeping of changes; the part is locked for writing ---

void Table::preserve(Shard& shard, std::int64_t id, std::uint32_t row, std::uint32_t time) const {
  Preimages& preimages = *shard.preimages;
  if (preimages.settled.test(row)) return;
  preimages.settled.set(row);
  const std::byte* bytes = shard.rows.at(row);
  preimages.entries.push_back({id, time});
  preimages.rows.insert(preimages.rows.end(), bytes, bytes + schema_.row_bytes());
}

void Table::touch(Shard& shard, std::int64_t id, std::uint32_t row) {
  TouchedIds& touched = shard.touched;
  const std::uint64_t generation = touched_generation_.load(std::memory_order_relaxed);
  if (touched.generation != generation) {
    touched.ids.clear();
    touched.rows.clear();
    touched.generation = generation;
  }
  if (touched.rows.test(row)) return;
  touched.rows.set(row);
  touched.ids.push_back(id);
  const std::uint64_t count = touched_count_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (config_.touched_capacity != 0 && count > config_.touched_capacity) {
    // Everything noted so far is dropped, in every part: each part sees that its generation is over.
    touched_dropped_.fetch_add(count, std::memory_order_relaxed);
    touched_count_.store(0, std::memory_order_relaxed);
    touched_generation_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Table::remove(Shard& shard, Slot slot, Removal::Reason reason, std::int64_t now_s) {
  const std::int64_t id = shard.index.id(slot);
  const std::uint32_t row = shard.index.row(slot);
  const std::uint32_t time = shard.index.time(slot);
  if (shard.preimages) preserve(shard, id, row, time);
  if (is_tracking_.load(std::memory_order_relaxed)) {
    touch(shard, id, row);
    shard.touched.rows.reset(row);  // the next id in this row is another one
  }
  const Removal removal{.id = id, .now_s = now_s, .updated_s = time, .reason = reason};
  if (shard.removals.size() < kRemovalsKept) {
    shard.removals.push_back(removal);
  } else {
    shard.removals[shard.removal_count % kRemovalsKept] = removal;
  }
  ++shard.removal_count;
  shard.index.erase(slot);
  shard.rows.free(row);
}

std::vector<std::int64_t> Table::drain_touched() {
  std::vector<std::int64_t> ids;
  lock_all();
  const bool was_tracking = is_tracking_.exchange(true);
  const std::uint64_t generation = touched_generation_.load();
  for (const auto& shard : shards_) {
    TouchedIds& touched = shard->touched;
    if (!was_tracking) {
      shard->index.for_each([&](std::int64_t id, std::uint32_t, std::uint32_t) { ids.push_back(id); });
    } else if (touched.generation == generation) {
      ids.insert(ids.end(), touched.ids.begin(), touched.ids.end());
    }
    touched = TouchedIds{.ids = {}, .rows = {}, .generation = generation};
  }
  touched_count_ = 0;
  unlock_all();
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// --- raw rows ---

std::vector<std::int64_t> Table::shard_ids(std::size_t part) const {
  const Shard& shard = *shards_[part];
  const std::shared_lock lock(shard.mutex);
  std::vector<std::pair<std::uint32_t, std::int64_t>> by_row;
  by_row.reserve(shard.index.size());
  shard.index.for_each([&](std::int64_t id, std::uint32_t row, std::uint32_t) { by_row.emplace_back(row, id); });
  std::sort(by_row.begin(), by_row.end());
  std::vector<std::int64_t> ids(by_row.size());
  std::transform(by_row.begin(), by_row.end(), ids.begin(), [](const auto& entry) { return entry.second; });
  return ids;
}

void Table::reserve(std::size_t ids) {
  pool_->run(kShards, [&](std::size_t part) {
    Shard& shard = *shards_[part];
    const std::unique_lock lock(shard.mutex);
    const std::size_t share = ids / kShards;
    if (share > shard.index.size()) shard.index.reserve(share - shard.index.size());
  });
}

void Table::adopt(std::unique_ptr<const TableImage> image) {
  if (!schema_.is_serving() || size() != 0) {
    throw ConfigError("table '" + config_.name + "' is not an empty serving table: it cannot take an image");
  }
  clear();
  lock_all();
  image_ = std::move(image);
  try {
    for (std::size_t part = 0; part < kShards; ++part) {
      const TableImage::Part& from = image_->parts()[part];
      shards_[part]->rows.adopt(from.rows, from.count);
      shards_[part]->index.adopt(from.buckets, from.count);
    }
  } catch (...) {
    unlock_all();
    clear();
    throw;
  }
  unlock_all();
  see_time(image_->max_time_s());
}

void Table::copy_to(Table& other) const {
  const std::size_t from_bytes = schema_.row_bytes();
  const std::size_t to_bytes = other.schema_.row_bytes();
  std::vector<float> values(schema_.dim());
  for (std::size_t part = 0; part < kShards; ++part) {
    const RawRows from = raw_rows(shard_ids(part));
    RawRows to;
    for (std::size_t i = 0; i < from.ids.size(); ++i) {
      schema_.get(from.rows.data() + i * from_bytes, values.data());
      if (other.config_.skip_zero_rows && is_zero_row(values.data(), values.size())) continue;
      to.ids.push_back(from.ids[i]);
      to.times.push_back(from.times[i]);
      to.rows.resize(to.rows.size() + to_bytes);
      other.schema_.set(to.rows.data() + to.rows.size() - to_bytes, values.data());
    }
    other.import_rows(to.ids, to.times, to.rows.data());
  }
}

// --- figures ---

std::size_t Table::size() const {
  std::size_t total = 0;
  for (const auto& shard : shards_) {
    const std::shared_lock lock(shard->mutex);
    total += shard->index.size();
  }
  return total;
}

std::size_t Table::memory_bytes() const {
  std::size_t total = sizeof(Table) + (thresholds_.size() + expire_days_.size()) * sizeof(std::uint32_t);
  if (filter_) total += filter_->memory_bytes();
  for (const auto& shard : shards_) {
    const std::shared_lock lock(shard->mutex);
    total += sizeof(Shard) + shard->index.memory_bytes() + shard->rows.memory_bytes() +
             shard->touched.ids.capacity() * sizeof(std::int64_t) + shard->touched.rows.memory_bytes() +
             shard->removals.capacity() * sizeof(Removal);
    if (shard->preimages) {
      total += shard->preimages->rows.capacity() + shard->preimages->settled.memory_bytes() +
               shard->preimages->entries.capacity() * sizeof(Preimages::Entry);
    }
  }
  return total;
}

void Table::see_time(std::int64_t time_s) noexcept {
  std::int64_t seen = max_time_s_.load(std::memory_order_relaxed);
  while (seen < time_s && !max_time_s_.compare_exchange_weak(seen, time_s, std::memory_order_relaxed)) {
  }
}

TableStats Table::stats() const noexcept {
  return {.nan_rows_skipped = nan_rows_skipped_,
          .ids_filtered = ids_filtered_,
          .rows_evicted = rows_evicted_,
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
  see_time(cut.max_time_s);
  turn_ = cut.turn;
  for (std::size_t k = 0; k < cut.scales.size(); ++k) scales_[k] = cut.scales[k];
  if (filter_ && !cut.filter.empty()) filter_->load(cut.filter.data(), cut.filter.size());
}

void Table::merge_filter(std::span<const std::byte> state) {
  if (filter_) filter_->merge(state.data(), state.size());
}

std::string Table::explain(std::int64_t id) const {
  const std::uint64_t hash = mix(static_cast<std::uint64_t>(id));
  const Shard& shard = *shards_[shard_of(hash)];
  const std::shared_lock lock(shard.mutex);
  const std::string who = "id " + std::to_string(id) + " (slot " + std::to_string(slot_v2(id)) + ") ";
  const std::uint32_t days = expire_days_.empty() ? config_.expire_days : expire_days_[slot_v2(id)];
  const Slot slot = shard.index.find(id, hash);
  if (slot != kNoSlot) {
    const std::uint32_t time = shard.index.time(slot);
    std::string text = who + "is present: last updated at " + std::to_string(time) + ", expires at " +
                       std::to_string(time + static_cast<std::int64_t>(days) * kDaySeconds);
    if (is_expired(id, time, max_time_s())) text += " (already expired; the next evict removes it)";
    return text;
  }
  const std::uint32_t threshold = threshold_of(id);
  std::string text = who + "is absent: ";
  for (std::size_t back = 0; back < shard.removals.size(); ++back) {
    const Removal& removal = shard.removals[(shard.removal_count - 1 - back) % kRemovalsKept];
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
  if (shard.removal_count > shard.removals.size()) return text + "never seen, or removed longer ago than is remembered";
  return text + "never seen";
}

// --- cuts ---

Table::Cut Table::begin_cut() {
  no_cut_.acquire();
  lock_all();
  Cut cut;
  try {
    cut.max_time_s = max_time_s();
    cut.scales = scales();
    cut.turn = turn_;
    if (filter_) cut.filter = filter_->save();
    for (const auto& shard : shards_) {
      shard->preimages = std::make_unique<Preimages>();
      shard->preimages->settled.reserve(shard->rows.end());
      cut.rows += shard->index.size();
    }
  } catch (...) {
    unlock_all();
    end_cut();
    throw;
  }
  unlock_all();
  return cut;
}

void Table::visit_cut(const Cut& cut, std::size_t part, std::size_t most,
                      const std::function<void(const CutRows&)>& pack, const std::function<void()>& flush) {
  Shard& shard = *shards_[part];
  struct Place {
    std::int64_t id;
    std::uint32_t time;
    bool is_used;
  };
  std::vector<Place> by_row;
  {
    const std::shared_lock lock(shard.mutex);
    by_row.resize(shard.rows.end());
    shard.index.for_each([&](std::int64_t id, std::uint32_t row, std::uint32_t time) {
      const bool is_used = !shard.preimages->settled.test(row) && !is_expired(id, time, cut.max_time_s);
      by_row[row] = {.id = id, .time = time, .is_used = is_used};
    });
  }
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> times;
  std::vector<const std::byte*> rows;
  const auto start_piece = [&] {
    ids.clear();
    times.clear();
    rows.clear();
  };
  for (std::size_t row = 0; row < by_row.size();) {
    start_piece();
    {
      const std::shared_lock lock(shard.mutex);
      for (; row < by_row.size() && ids.size() < most; ++row) {
        if (!by_row[row].is_used || shard.preimages->settled.test(static_cast<std::uint32_t>(row))) continue;
        ids.push_back(by_row[row].id);
        times.push_back(by_row[row].time);
        rows.push_back(shard.rows.at(static_cast<std::uint32_t>(row)));
        // Handed out: a later change needs no copy. Only writers ask, and the lock keeps them out; there is room.
        shard.preimages->settled.set(static_cast<std::uint32_t>(row));
      }
      if (!ids.empty()) pack({ids, times, rows});
    }
    if (!ids.empty()) flush();
  }
  std::unique_ptr<Preimages> preimages;
  {
    const std::unique_lock lock(shard.mutex);
    preimages = std::move(shard.preimages);
  }
  for (std::size_t i = 0; i < preimages->entries.size();) {
    start_piece();
    for (; i < preimages->entries.size() && ids.size() < most; ++i) {
      const auto& [id, time] = preimages->entries[i];
      if (is_expired(id, time, cut.max_time_s)) continue;
      ids.push_back(id);
      times.push_back(time);
      rows.push_back(preimages->rows.data() + i * schema_.row_bytes());
    }
    if (ids.empty()) continue;
    pack({ids, times, rows});
    flush();
  }
}

void Table::end_cut() noexcept {
  lock_all();
  for (const auto& shard : shards_) shard->preimages.reset();
  unlock_all();
  no_cut_.release();
}

}  // namespace engine
