// part_update.cc: the passes of a write to one part: find or make all rows, sum all gradients, step all rows, stamp all
// times.
//
// Each pass is a loop of its own: a loop that waits for rows must do nothing else.
#include "part_update.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"
#include "row_plan_content.h"
#include "rows.h"

namespace engine {

namespace {

// Rows handed to an optimizer at a time: few enough that they are still in cache for the next slice.
constexpr std::size_t kStride = 64;

struct Scratch {
  Reused<std::int64_t> distinct;
  Reused<RowHandle> handles;
  Reused<std::uint32_t> numbers;
  Reused<std::uint32_t> sightings;
  Reused<std::uint32_t> starts;
  Reused<std::uint32_t> targets;
  Reused<float> sums;
  Reused<float> backward;
  Reused<float*> rows;
  Reused<const float*> grads;
  Reused<std::uint8_t> is_finite;
  Reused<const float*> latest;
  Reused<std::int64_t> ids;

  [[nodiscard]] std::size_t bytes() const noexcept {
    return distinct.bytes() + handles.bytes() + numbers.bytes() + sightings.bytes() + starts.bytes() + targets.bytes() +
           sums.bytes() + backward.bytes() + rows.bytes() + grads.bytes() + is_finite.bytes() + latest.bytes() +
           ids.bytes();
  }
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::uint64_t hash_of(std::int64_t id) noexcept { return mix(static_cast<std::uint64_t>(id)); }

}  // namespace

std::size_t update_scratch_bytes() noexcept { return thread_scratch().bytes(); }

void release_update_scratch() noexcept { thread_scratch() = Scratch(); }

PartUpdate::PartUpdate(Table& table, std::size_t part)
    : table_(table), part_(*table.parts_[part]), number_(part), lock_(part_.mutex) {}

void PartUpdate::resolve(const Partition::Group& group, const Admission& admission) {
  Scratch& scratch = thread_scratch();
  distinct_ = {.ids = scratch.distinct.get(group.ids.size()),
               .handles = scratch.handles.get(group.ids.size()),
               .numbers = scratch.numbers.get(group.ids.size())};
  search_ids(part_.index, group.ids, distinct_, [](std::uint32_t) {}, [](std::size_t) {});
  admit_absent(group.targets, admission);
}

void PartUpdate::resolve(RowPlan& plan, const Admission& admission) {
  RowPlan::Content& content = *plan.content_;
  distinct_ = content.parts[number_];
  const Index& index = part_.index;
  const bool has_moved = content.moves[number_] != index.moves();
  for (std::size_t i = 0; i < distinct_.count; ++i) {
    RowHandle& handle = distinct_.handles[i];
    handle.is_new = handle.leaves = handle.is_refused = false;
    // An id that was absent may have come since.
    if (!has_moved && handle.row != kNoRow) continue;
    if (i + kAhead < distinct_.count) prefetch(index.home(hash_of(distinct_.ids[i + kAhead])));
    handle.slot = index.find(distinct_.ids[i], hash_of(distinct_.ids[i]));
    handle.row = handle.slot == kNoSlot ? kNoRow : index.row(handle.slot);
  }
  admit_absent(content.grouped.group(number_).targets, admission);
  content.moves[number_] = index.moves();
}

void PartUpdate::refresh_slots() noexcept {
  for_each([&](std::int64_t id, RowHandle& handle) {
    if (handle.row != kNoRow) handle.slot = part_.index.find(id, hash_of(id));
  });
}

// A row that no cut has to keep. Its content is undefined.
std::uint32_t PartUpdate::take_row() {
  if (part_.rows.room() == 0) part_.rows.reserve(1);
  const std::uint32_t row = part_.rows.take();
  for (const auto& preimages : part_.preimages) {
    if (preimages) preimages->settled.set(row);
  }
  return row;
}

// The id gets a row with its initial content. There must be room in the index.
void PartUpdate::make_row(std::size_t number) {
  const std::int64_t id = distinct_.ids[number];
  const std::uint32_t row = take_row();
  table_.schema_.init(id, part_.rows.at(row));
  RowHandle& handle = distinct_.handles[number];
  handle.row = row;
  handle.is_new = true;
  handle.slot = part_.index.insert(id, hash_of(id), row, 0);
}

void PartUpdate::admit_absent(std::span<const std::uint32_t> targets, const Admission& admission) {
  std::size_t absent = 0;
  for_each([&](std::int64_t, const RowHandle& handle) { absent += handle.row == kNoRow ? 1 : 0; });
  if (absent == 0) return;
  Index& index = part_.index;
  if (!admission.asks_filter || !table_.filter_) {
    for (std::size_t i = 0; i < distinct_.count; ++i) {
      if (distinct_.handles[i].row != kNoRow) continue;
      if (index.reserve(1)) refresh_slots();
      make_row(i);
    }
    return;
  }
  std::uint32_t* sightings = nullptr;
  if (!admission.counts.empty()) {
    sightings = thread_scratch().sightings.get(distinct_.count);
    std::fill_n(sightings, distinct_.count, 0U);
    for (std::size_t i = 0; i < targets.size(); ++i) sightings[distinct_.numbers[i]] += admission.counts[targets[i]];
  }
  if (admission.order != nullptr) admission.order->wait_for(static_cast<std::uint32_t>(number_));
  if (index.reserve(absent)) refresh_slots();
  std::uint64_t filtered = 0;
  for (std::size_t i = 0; i < distinct_.count; ++i) {
    if (distinct_.handles[i].row != kNoRow) continue;
    const std::int64_t id = distinct_.ids[i];
    const std::uint32_t threshold = table_.threshold_of(id);
    const std::uint32_t seen = sightings == nullptr ? distinct_.handles[i].count : sightings[i];
    if (threshold == 0 || table_.filter_->admit(id, seen, threshold, admission.turn)) {
      make_row(i);
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

// A gradient with NaN or Inf leaves its row as it was, and removes a new row.
void PartUpdate::refuse(RowHandle& handle) noexcept {
  handle.leaves = handle.is_new;
  handle.is_refused = true;
  table_.nan_rows_skipped_.fetch_add(1, std::memory_order_relaxed);
}

// The targets of a group in order of their distinct ids, those of one id in order of occurrence.
std::span<const std::uint32_t> PartUpdate::sort_targets(const Partition::Group& group) {
  if (distinct_.count == group.ids.size()) return group.targets;
  Scratch& scratch = thread_scratch();
  std::uint32_t* starts = scratch.starts.get(distinct_.count);
  std::uint32_t* targets = scratch.targets.get(group.ids.size());
  std::uint32_t start = 0;
  for (std::size_t i = 0; i < distinct_.count; ++i) {
    starts[i] = start;
    start += distinct_.handles[i].count;
  }
  for (std::size_t i = 0; i < group.ids.size(); ++i) targets[starts[distinct_.numbers[i]]++] = group.targets[i];
  return {targets, group.ids.size()};
}

// Sums the gradients of ids that occur more than once. An id that occurs once is stepped with its gradient in place.
PartUpdate::StepRows PartUpdate::collect_rows(const Partition::Group& group, const GradientJob& job) {
  const std::span<const std::uint32_t> targets = sort_targets(group);
  const std::size_t dim = table_.schema_.dim();
  Scratch& scratch = thread_scratch();
  StepRows step{.rows = scratch.rows.get(distinct_.count),
                .grads = scratch.grads.get(distinct_.count),
                .latest = job.latest == nullptr ? nullptr : scratch.latest.get(distinct_.count),
                .ids = scratch.ids.get(distinct_.count)};
  const bool checks = table_.config_.nan_policy != NanPolicy::kApply;
  std::uint8_t* const is_finite = checks ? scratch.is_finite.get(distinct_.count) : nullptr;
  kernels().sum_gradients({.grads = job.grads,
                           .targets = targets.data(),
                           .occurrences = targets.size(),
                           .handles = distinct_.handles,
                           .distinct = distinct_.count,
                           .width = dim,
                           // An id with a sum has two occurrences or more.
                           .sums = scratch.sums.get((group.ids.size() - distinct_.count) * dim),
                           .out = step.grads,
                           .is_finite = is_finite});
  const std::uint32_t* target = targets.data();
  for (std::size_t i = 0; i < distinct_.count; ++i) {
    RowHandle& handle = distinct_.handles[i];
    const std::uint32_t first = *target;
    target += handle.count;
    if (handle.row == kNoRow) continue;
    if (checks && is_finite[i] == 0) {
      refuse(handle);
      continue;
    }
    preserve(handle);
    step.rows[step.count] = reinterpret_cast<float*>(row(handle));
    step.grads[step.count] = step.grads[i];  // rows that are left out close up
    if (step.latest != nullptr) step.latest[step.count] = job.latest + first * dim;
    step.ids[step.count++] = distinct_.ids[i];
  }
  return step;
}

void PartUpdate::step(const Partition::Group& group, const GradientJob& job) {
  const RowSchema& schema = table_.schema_;
  const StepRows step = collect_rows(group, job);
  const Backward backward(table_);
  for (std::size_t i = 0; i < std::min(kAhead, step.count); ++i) prefetch_row(step.rows[i], schema.row_bytes());
  // The first buckets that `finish` stamps: a plan has not touched them in this call.
  for (std::size_t i = 0; i < std::min(kAhead, distinct_.count); ++i) part_.index.fetch(distinct_.handles[i].slot);
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

void PartUpdate::replace(const Partition::Group& group, std::span<const std::uint32_t> times, const std::byte* rows) {
  Index& index = part_.index;
  const std::size_t row_bytes = table_.schema_.row_bytes();
  const bool is_tracking = table_.is_tracking_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < group.ids.size(); ++i) {
    if (i + kAhead < group.ids.size()) prefetch(index.home(hash_of(group.ids[i + kAhead])));
    const std::int64_t id = group.ids[i];
    const std::uint64_t hash = hash_of(id);
    const std::uint32_t time = times[group.targets[i]];
    const Slot slot = index.find(id, hash);
    std::uint32_t row;
    if (slot == kNoSlot) {
      if (index.room() == 0) index.reserve(1);
      row = take_row();
      index.insert(id, hash, row, time);
    } else {
      row = index.row(slot);
      if (part_.has_preimages()) table_.preserve(part_, id, row, index.time(slot));
      index.time(slot) = time;
    }
    std::memcpy(part_.rows.at(row), rows + group.targets[i] * row_bytes, row_bytes);
    if (is_tracking) table_.touch(part_, id, row);
  }
}

void PartUpdate::finish(std::optional<std::uint32_t> time_s) {
  bool any_leaves = false;
  for (std::size_t i = 0; i < distinct_.count; ++i) {
    if (i + kAhead < distinct_.count) part_.index.fetch(distinct_.handles[i + kAhead].slot);
    const RowHandle& handle = distinct_.handles[i];
    any_leaves = any_leaves || handle.leaves;
    if (time_s && handle.row != kNoRow && !handle.is_refused) stamp(handle, *time_s);
  }
  if (table_.is_tracking_.load(std::memory_order_relaxed)) {
    for_each([&](std::int64_t id, const RowHandle& handle) {
      if (handle.row != kNoRow && !handle.is_refused && !handle.leaves) table_.touch(part_, id, handle.row);
    });
  }
  if (!any_leaves) return;
  for_each([&](std::int64_t id, const RowHandle& handle) {
    if (!handle.leaves) return;
    const Slot slot = part_.index.find(id, hash_of(id));
    if (handle.is_new) {
      part_.index.erase(slot);  // as if it had never come
      part_.rows.free(handle.row);
    } else {
      table_.remove(part_, slot, Removal::Reason::kZero, 0);
    }
  });
}

}  // namespace engine
