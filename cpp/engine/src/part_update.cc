// part_update.cc: the passes of a write: resolve all ids, sum all gradients, step all rows, stamp all times.
//
// While ids are resolved, the time field of an index entry holds the place of its id in the list of unique ids. A place
// is believed only if the list points back to the entry, so the field needs no clearing and no second hash table is
// needed to find duplicates.
#include "part_update.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "rows.h"

namespace engine {

namespace {

// Rows handed to an optimizer at a time: few enough that they are still in cache for the next slice.
constexpr std::size_t kStride = 64;

struct Scratch {
  Reused<UniqueId> uniques;
  Reused<std::uint32_t> members;
  Reused<std::uint32_t> absent;  // open-addressed: place in uniques + 1, by hash of the id
  Reused<float> sums;
  Reused<float> backward;
  Reused<float*> rows;
  Reused<const float*> grads;
  Reused<const float*> latest;
  Reused<std::int64_t> ids;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::uint64_t hash_of(std::int64_t id) noexcept { return mix(static_cast<std::uint64_t>(id)); }

// Fetches the lines that the first ids of a group need; the loop over them fetches the rest, kAhead before its use. A
// step of many small tables gives a part a few dozen ids, so the first ones are not few.
[[gnu::always_inline]] inline void fetch_first_homes(const Index& index, std::span<const std::int64_t> ids) noexcept {
  for (std::size_t i = 0; i < std::min(kAhead, ids.size()); ++i) prefetch(index.home(hash_of(ids[i])));
}

// True when every float is finite: NaN and Inf have all exponent bits set. In integers, which vectorise.
template <class Width>
bool is_finite(const float* values, Width width) noexcept {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < width.value; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & kExponent);
  }
  return largest != kExponent;
}

}  // namespace

std::size_t update_scratch_bytes() noexcept {
  const Scratch& scratch = thread_scratch();
  return scratch.uniques.bytes() + scratch.members.bytes() + scratch.absent.bytes() + scratch.sums.bytes() +
         scratch.backward.bytes() + scratch.rows.bytes() + scratch.grads.bytes() + scratch.latest.bytes() +
         scratch.ids.bytes();
}

void release_update_scratch() noexcept { thread_scratch() = Scratch(); }

PartUpdate::PartUpdate(Table& table, std::size_t part)
    : table_(table), part_(*table.parts_[part]), number_(part), lock_(part_.mutex) {}

PartUpdate::~PartUpdate() { put_times_back(); }

void PartUpdate::put_times_back() noexcept {
  for (const UniqueId& unique : uniques()) {
    if (unique.row != kNoRow) part_.index.time(unique.slot) = unique.time;
  }
  unique_count_ = 0;
}

void PartUpdate::add_unique(std::size_t occurrence, std::int64_t id, Slot slot, std::uint32_t row, bool is_new,
                            std::uint32_t target) noexcept {
  uniques_[unique_count_] = {.id = id,
                             .slot = slot,
                             .row = row,
                             .time = 0,
                             .count = 1,
                             .target = target,
                             .sum = 0,
                             .is_new = is_new,
                             .leaves = false};
  members_[occurrence] = static_cast<std::uint32_t>(unique_count_++);
}

void PartUpdate::refresh_slots() noexcept {
  for (UniqueId& unique : uniques()) {
    if (unique.row != kNoRow) unique.slot = part_.index.find(unique.id, hash_of(unique.id));
  }
}

// The id gets a row with its initial content. There must be room in the index.
void PartUpdate::make_row(UniqueId& unique, std::uint64_t hash) {
  part_.rows.reserve(1);
  const std::uint32_t row = part_.rows.take();
  for (const auto& preimages : part_.preimages) {
    if (preimages) preimages->settled.set(row);
  }
  table_.schema_.init(unique.id, part_.rows.at(row));
  unique.row = row;
  unique.is_new = true;
  unique.slot = part_.index.insert(unique.id, hash, row, static_cast<std::uint32_t>(&unique - uniques_));
}

void PartUpdate::resolve(const Partition::Group& group, const Admission& admission) {
  Scratch& scratch = thread_scratch();
  uniques_ = scratch.uniques.get(group.ids.size());
  members_ = scratch.members.get(group.ids.size());
  unique_count_ = 0;
  if (admission.asks_filter && table_.filter_) {
    resolve_filtered(group, admission);
  } else {
    resolve_open(group);
  }
}

void PartUpdate::resolve_open(const Partition::Group& group) {
  Index& index = part_.index;
  const std::size_t count = group.ids.size();
  fetch_first_homes(index, group.ids);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch(index.home(hash_of(group.ids[i + kAhead])));
    const std::int64_t id = group.ids[i];
    const std::uint64_t hash = hash_of(id);
    const Slot slot = index.find(id, hash);
    if (slot == kNoSlot) {
      if (index.reserve(1)) refresh_slots();
      add_unique(i, id, kNoSlot, kNoRow, true, group.targets[i]);
      make_row(uniques_[unique_count_ - 1], hash);
      continue;
    }
    std::uint32_t& place = index.time(slot);
    if (place < unique_count_ && uniques_[place].slot == slot) {
      members_[i] = place;
      ++uniques_[place].count;
      continue;
    }
    const std::uint32_t row = index.row(slot);
    add_unique(i, id, slot, row, false, group.targets[i]);
    uniques_[unique_count_ - 1].time = std::exchange(place, static_cast<std::uint32_t>(unique_count_ - 1));
  }
}

void PartUpdate::resolve_filtered(const Partition::Group& group, const Admission& admission) {
  Index& index = part_.index;
  const std::size_t count = group.ids.size();
  const std::size_t buckets = std::bit_ceil(count * 2 + 1);
  std::uint32_t* absent = thread_scratch().absent.get(buckets);
  std::fill_n(absent, buckets, 0U);
  std::size_t absent_count = 0;
  fetch_first_homes(index, group.ids);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch(index.home(hash_of(group.ids[i + kAhead])));
    const std::int64_t id = group.ids[i];
    const std::uint64_t hash = hash_of(id);
    const Slot slot = index.find(id, hash);
    if (slot != kNoSlot) {
      std::uint32_t& place = index.time(slot);
      if (place < unique_count_ && uniques_[place].row != kNoRow && uniques_[place].slot == slot) {
        members_[i] = place;
        ++uniques_[place].count;
        continue;
      }
      add_unique(i, id, slot, index.row(slot), false, group.targets[i]);
      uniques_[unique_count_ - 1].time = std::exchange(place, static_cast<std::uint32_t>(unique_count_ - 1));
      continue;
    }
    std::size_t at = hash & (buckets - 1);
    while (absent[at] != 0 && uniques_[absent[at] - 1].id != id) at = (at + 1) & (buckets - 1);
    const std::uint32_t sightings = admission.counts.empty() ? 1 : admission.counts[group.targets[i]];
    if (absent[at] == 0) {
      add_unique(i, id, kNoSlot, kNoRow, true, group.targets[i]);
      absent[at] = static_cast<std::uint32_t>(unique_count_);
      uniques_[unique_count_ - 1].time = sightings;  // an absent id has no time yet
      ++absent_count;
    } else {
      UniqueId& unique = uniques_[absent[at] - 1];
      members_[i] = absent[at] - 1;
      ++unique.count;
      unique.time += sightings;
    }
  }
  if (absent_count == 0) return;
  if (admission.order != nullptr) admission.order->wait_for(static_cast<std::uint32_t>(number_));
  if (index.reserve(absent_count)) refresh_slots();
  std::uint64_t filtered = 0;
  for (UniqueId& unique : uniques()) {
    if (unique.row != kNoRow) continue;
    const std::uint32_t threshold = table_.threshold_of(unique.id);
    const std::uint32_t sightings = std::exchange(unique.time, 0U);
    if (threshold == 0 || table_.filter_->admit(unique.id, sightings, threshold, admission.turn)) {
      make_row(unique, hash_of(unique.id));
    } else {
      ++filtered;
    }
  }
  if (admission.order != nullptr && admission.ends_turn) admission.order->pass(static_cast<std::uint32_t>(number_));
  table_.ids_filtered_.fetch_add(filtered, std::memory_order_relaxed);
}

// Arguments of the optimizers for the rows of a part, made before the first row is touched: a loop that steps rows
// then fetches and computes, and waits for nothing else.
struct PartUpdate::StepRows {
  float** rows;
  const float** grads;
  const float** latest;
  std::int64_t* ids;
  std::size_t count = 0;
};

// Turns gradients of looked-up values into gradients of stored values, where compression makes a difference.
class PartUpdate::Backward {
 public:
  explicit Backward(const Table& table)
      : schema_(table.schema_),
        scales_(schema_.is_transparent() ? std::vector<float>() : table.scales()),
        buffer_(schema_.is_transparent() ? nullptr : thread_scratch().backward.get(kStride * schema_.dim())) {}

  void transform(const RowBatch& batch, const float** grads) const noexcept {
    if (buffer_ == nullptr) return;
    const std::span<const RowSchema::Slice> slices = schema_.slices();
    for (std::size_t i = 0; i < batch.count; ++i) {
      if (i + kAhead < batch.end) prefetch_row(batch.rows[i + kAhead], schema_.row_bytes());
      float* out = buffer_ + i * schema_.dim();
      for (std::size_t k = 0; k < slices.size(); ++k) {
        const std::size_t at = slices[k].value_offset;
        slices[k].compressor->backward(batch.rows[i] + at, grads[i] + at, out + at, slices[k].dim, scales_[k]);
      }
      grads[i] = out;
    }
  }

 private:
  const RowSchema& schema_;
  std::vector<float> scales_;
  float* buffer_;
};

// Whether a gradient may be applied. One with NaN or Inf leaves its row as it was, and a new row goes again.
bool PartUpdate::admits(UniqueId& unique, const float* grad) noexcept {
  if (table_.config_.nan_policy == NanPolicy::kApply) return true;
  bool is_sound = false;
  with_width(table_.schema_.dim(), [&](auto width) { is_sound = is_finite(grad, width); });
  if (is_sound) return true;
  unique.leaves = unique.is_new;
  unique.count = 0;
  table_.nan_rows_skipped_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

// Sums the gradients of ids that occur more than once. An id that occurs once is stepped with its gradient in place.
const float* PartUpdate::sum_gradients(const Partition::Group& group, const GradientJob& job) {
  if (unique_count_ == group.ids.size()) return nullptr;
  const std::size_t dim = table_.schema_.dim();
  std::uint32_t sums = 0;
  for (UniqueId& unique : uniques()) {
    if (unique.count > 1) unique.sum = sums++;
  }
  float* sum = thread_scratch().sums.get(sums * dim);
  std::memset(sum, 0, sums * dim * sizeof(float));
  with_width(dim, [&](auto width) {
    for (std::size_t i = 0; i < group.ids.size(); ++i) {
      if (i + kAhead < group.ids.size()) prefetch(job.grads + group.targets[i + kAhead] * width.value);
      const UniqueId& unique = member(i);
      if (unique.count > 1) add_row(sum + unique.sum * width.value, job.grads + group.targets[i] * width.value, width);
    }
  });
  return sum;
}

PartUpdate::StepRows PartUpdate::collect_rows(const Partition::Group& group, const GradientJob& job) {
  const std::size_t dim = table_.schema_.dim();
  const float* sums = sum_gradients(group, job);
  Scratch& scratch = thread_scratch();
  StepRows step{.rows = scratch.rows.get(unique_count_),
                .grads = scratch.grads.get(unique_count_),
                .latest = job.latest == nullptr ? nullptr : scratch.latest.get(unique_count_),
                .ids = scratch.ids.get(unique_count_)};
  for (std::size_t i = 0; i < unique_count_; ++i) {
    if (i + kAhead < unique_count_) {
      const UniqueId& later = uniques_[i + kAhead];
      if (later.count == 1) prefetch_row(job.grads + later.target * dim, dim * sizeof(float));
    }
    UniqueId& unique = uniques_[i];
    const float* grad = unique.count > 1 ? sums + unique.sum * dim : job.grads + unique.target * dim;
    if (unique.row == kNoRow || !admits(unique, grad)) continue;
    preserve(unique);
    step.rows[step.count] = reinterpret_cast<float*>(row(unique));
    step.grads[step.count] = grad;
    if (step.latest != nullptr) step.latest[step.count] = job.latest + unique.target * dim;
    step.ids[step.count++] = unique.id;
  }
  return step;
}

void PartUpdate::step(const Partition::Group& group, const GradientJob& job) {
  const RowSchema& schema = table_.schema_;
  const StepRows step = collect_rows(group, job);
  const Backward backward(table_);
  for (std::size_t i = 0; i < std::min(kAhead, step.count); ++i) prefetch_row(step.rows[i], schema.row_bytes());
  for (std::size_t begin = 0; begin < step.count; begin += kStride) {
    RowBatch batch{.count = std::min(kStride, step.count - begin),
                   .end = step.count - begin,
                   .rows = step.rows + begin,
                   .grads = step.grads + begin,
                   .latest = step.latest == nullptr ? nullptr : step.latest + begin,
                   .ids = step.ids + begin,
                   .fetched_bytes = schema.row_bytes()};
    backward.transform(batch, step.grads + begin);
    const std::span<const RowSchema::Slice> slices = schema.slices();
    for (std::size_t k = 0; k < slices.size(); ++k) {
      batch.value_offset = slices[k].value_offset;
      batch.state_offset = slices[k].state_offset;
      slices[k].optimizer->step(
          batch, {.learning_rate = job.learning_rates[k], .step = job.step, .seed = table_.config_.seed + k});
      batch.fetched_bytes = 0;  // the first slice has fetched whole rows
    }
  }
}

void PartUpdate::finish(std::optional<std::uint32_t> time_s) {
  const bool tracks = table_.is_tracking_.load(std::memory_order_relaxed);
  bool any_leaves = false;
  for (UniqueId& unique : uniques()) {
    if (unique.row == kNoRow) continue;
    any_leaves = any_leaves || unique.leaves;
    if (unique.count != 0) unique.time = time_s.value_or(unique.time);
    if (tracks && unique.count != 0 && !unique.leaves) table_.touch(part_, unique.id, unique.row);
  }
  const std::span<UniqueId> done = uniques();
  put_times_back();
  if (!any_leaves) return;
  for (const UniqueId& unique : done) {
    if (!unique.leaves) continue;
    const Slot slot = part_.index.find(unique.id, hash_of(unique.id));
    if (unique.is_new) {
      part_.index.erase(slot);  // as if it had never come
      part_.rows.free(unique.row);
    } else {
      table_.remove(part_, slot, Removal::Reason::kZero, 0);
    }
  }
}

}  // namespace engine
