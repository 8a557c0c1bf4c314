// part_update.cc: the passes of a write to one part: find or make all rows; then, stride by stride, sum gradients, step
// rows and stamp times.
//
// Each pass is a separate loop: a loop that waits for rows must do nothing else.
#include "part_update.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/kernels.h"
#include "row_columns.h"
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
  Reused<RowWords> rows;

  [[nodiscard]] std::size_t bytes() const noexcept {
    return distinct.bytes() + handles.bytes() + numbers.bytes() + sightings.bytes() + starts.bytes() + targets.bytes() +
           sums.bytes() + backward.bytes() + rows.bytes();
  }
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// Inline: the compiler drops calls of a function that only fetches, because it changes nothing.
[[gnu::always_inline]] inline void fetch_words(const RowWords& row, const RowSchema& schema) noexcept {
  prefetch_row(row.values, schema.value_bytes());
  prefetch_row(row.state, schema.state_bytes());
}

}  // namespace

std::size_t update_scratch_bytes() noexcept { return thread_scratch().bytes(); }

void release_update_scratch() noexcept { thread_scratch() = Scratch(); }

PartUpdate::PartUpdate(Table& table, std::size_t part)
    : table_(table), part_(*table.parts_[part]), number_(part), lock_(part_.mutex) {}

// A write that broke off has changed rows that it did not note.
PartUpdate::~PartUpdate() {
  if (std::uncaught_exceptions() > exceptions_) table_.drop_notes(1);
}

void PartUpdate::resolve(const Partition::Group& group, const Admission& admission) {
  Scratch& scratch = thread_scratch();
  distinct_ = {.ids = scratch.distinct.get(group.ids.size()),
               .handles = scratch.handles.get(group.ids.size()),
               .numbers = scratch.numbers.get(group.ids.size())};
  search_ids(part_.index, group.ids, distinct_, [](std::size_t, std::uint32_t) {}, [](std::size_t, std::size_t) {});
  std::size_t absent = 0;
  for_each([&](std::int64_t, const RowHandle& handle) { absent += handle.row == kNoRow ? 1 : 0; });
  admit_absent(absent, group.targets, admission);
}

void PartUpdate::resolve(RowPlan& plan, const Admission& admission) {
  RowPlan::Content& content = *plan.content_;
  distinct_ = content.parts[number_];
  const Index& index = part_.index;
  Index::History& searched = content.histories[number_];
  const bool has_left = searched.leaves != index.history().leaves;
  const bool has_grown = searched.inserts != index.history().inserts;
  std::size_t absent = 0;
  for (std::size_t i = 0; i < distinct_.count; ++i) {
    RowHandle& handle = distinct_.handles[i];
    handle.is_new = handle.leaves = handle.is_refused = false;
    if (has_left || (has_grown && handle.row == kNoRow)) {
      if (i + kAhead < distinct_.count) index.fetch(distinct_.ids[i + kAhead]);
      handle.row = index.find(distinct_.ids[i]);
    }
    absent += handle.row == kNoRow ? 1 : 0;
  }
  admit_absent(absent, content.grouped.group(number_).targets, admission);
  searched = index.history();
}

// A row that no cut has to keep. Its content is undefined.
std::uint32_t PartUpdate::take_row() {
  if (part_.rows.room() == 0) part_.rows.reserve(1);
  for (const auto& preimages : part_.preimages) {
    if (preimages) preimages->settled.reserve(part_.rows.end() + 1);
  }
  const std::uint32_t row = part_.rows.take();
  for (const auto& preimages : part_.preimages) {
    if (preimages) preimages->settled.set(row);
  }
  return row;
}

// Adds an absent id with such a row.
std::uint32_t PartUpdate::add_row(std::int64_t id) {
  part_.index.reserve(1);
  const std::uint32_t row = take_row();
  try {
    part_.index.insert(id, row);
  } catch (...) {
    part_.rows.free(row);
    throw;
  }
  return row;
}

// Every admitted id gets a row with its initial content.
void PartUpdate::make_rows() {
  for_each([&](std::int64_t id, RowHandle& handle) {
    if (!handle.is_new) return;
    handle.row = add_row(id);
    init(id, handle);
    part_.rows.set_time(handle.row, 0);
  });
}

// Marks the absent ids that may enter as new. Returns how many do.
std::size_t PartUpdate::ask_filter(std::span<const std::uint32_t> targets, const Admission& admission) {
  std::uint32_t* seen = nullptr;
  if (!admission.counts.empty()) {
    seen = thread_scratch().sightings.get(distinct_.count);
    std::fill_n(seen, distinct_.count, 0U);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      std::uint32_t& sum = seen[distinct_.numbers[i]];
      sum += std::min(admission.counts[targets[i]], std::numeric_limits<std::uint32_t>::max() - sum);
    }
  }
  const auto turn = static_cast<std::uint32_t>(number_);
  if (admission.order != nullptr) admission.order->wait_for(turn);
  std::array<Sighting, kStride> asked;
  std::array<RowHandle*, kStride> handles;
  std::array<bool, kStride> is_admitted;
  std::size_t count = 0;
  std::size_t admitted = 0;
  const auto ask = [&] {
    table_.filter_->admit({asked.data(), count}, admission.turn, is_admitted.data());
    for (std::size_t k = 0; k < count; ++k) {
      handles[k]->is_new = is_admitted[k];
      admitted += is_admitted[k] ? 1 : 0;
    }
    count = 0;
  };
  for (std::size_t i = 0; i < distinct_.count; ++i) {
    RowHandle& handle = distinct_.handles[i];
    if (handle.row != kNoRow) continue;
    const std::uint32_t threshold = table_.threshold_of(distinct_.ids[i]);
    if (threshold == 0) {
      handle.is_new = true;
      ++admitted;
      continue;
    }
    handles[count] = &handle;
    asked[count++] = {distinct_.ids[i], seen == nullptr ? handle.count : seen[i], threshold};
    if (count == kStride) ask();
  }
  ask();
  if (admission.order != nullptr && admission.ends_turn) admission.order->pass(turn);
  return admitted;
}

void PartUpdate::admit_absent(std::size_t absent, std::span<const std::uint32_t> targets, const Admission& admission) {
  if (absent == 0) return;
  if (!admission.asks_filter || !table_.filter_) {
    for_each([](std::int64_t, RowHandle& handle) { handle.is_new = handle.row == kNoRow; });
    make_rows();
    return;
  }
  const std::size_t admitted = ask_filter(targets, admission);
  table_.ids_filtered_.fetch_add(absent - admitted, std::memory_order_relaxed);
  make_rows();
}

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
      if (i + kAhead < batch.end) prefetch_row(batch.rows[i + kAhead].values, schema_.value_bytes());
      float* out = buffer_ + i * schema_.dim();
      for (std::size_t k = 0; k < slices.size(); ++k) {
        const std::size_t at = slices[k].value_offset;
        slices[k].compressor->backward(batch.rows[i].values + at, grads[i] + at, out + at, slices[k].dim, scales_[k]);
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
  any_leaves_ = any_leaves_ || handle.leaves;
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

// The rows of the distinct ids, null for an id without one. Made before the first row is touched: a loop that steps
// rows then fetches and computes, and waits for nothing else.
const RowWords* PartUpdate::locate_rows() {
  RowWords* const rows = thread_scratch().rows.get(distinct_.count);
  const RowStore::Places places = part_.rows.places();
  const DistinctIds distinct = distinct_;
  bool all_present = true;
  for (std::size_t i = 0; i < distinct.count; ++i) {
    const std::uint32_t row = distinct.handles[i].row;
    if (row == kNoRow) {
      rows[i] = {};
      all_present = false;
    } else {
      rows[i] = {.values = reinterpret_cast<float*>(places.at(row)),
                 .state = reinterpret_cast<float*>(places.state_at(row))};
    }
  }
  all_present_ = all_present;
  return rows;
}

// Up to kStride distinct ids that are stepped together: their gradients, and the arguments of their optimizers.
class PartUpdate::Stride {
 public:
  Stride(PartUpdate& update, const GradientJob& job, std::span<const std::uint32_t> targets, const RowWords* rows)
      : update_(update),
        job_(job),
        dim_(update.table_.schema_.dim()),
        checks_(update.table_.config_.nan_policy != NanPolicy::kApply),
        target_(targets.data()),
        targets_end_(targets.data() + targets.size()),
        rows_(rows),
        sums_(thread_scratch().sums.get(kStride * dim_)) {}

  // Sums the gradients of ids [begin, begin + count), those of an id that occurs once are used in place. Leaves out ids
  // without a row and gradients that are refused.
  RowBatch collect(std::size_t begin, std::size_t count) {
    const DistinctIds& distinct = update_.distinct_;
    const std::uint32_t* const first_target = target_;
    const bool all_finite = kernels().sum_gradients({.grads = job_.grads,
                                                     .targets = target_,
                                                     .occurrences = static_cast<std::size_t>(targets_end_ - target_),
                                                     .handles = distinct.handles + begin,
                                                     .distinct = count,
                                                     .width = dim_,
                                                     .sums = sums_,
                                                     .out = grads_.data(),
                                                     .is_finite = checks_ ? is_finite_.data() : nullptr,
                                                     .times = update_.part_.rows.stored_times()});
    for (std::size_t i = begin; i < begin + count; ++i) target_ += distinct.handles[i].count;
    RowBatch batch{.count = count,
                   .end = distinct.count - begin,
                   .rows = rows_ + begin,
                   .grads = grads_.data(),
                   .latest = nullptr,
                   .ids = distinct.ids + begin,
                   .fetched_value_bytes = update_.table_.schema_.value_bytes(),
                   .fetched_state_bytes = update_.table_.schema_.state_bytes()};
    const bool is_plain = all_finite && update_.all_present_ && job_.latest == nullptr;
    if (is_plain && !update_.part_.has_preimages()) return batch;
    batch.count = pick(begin, count, first_target);
    batch.end = batch.count;
    batch.rows = picked_rows_.data();
    batch.ids = picked_ids_.data();
    if (job_.latest != nullptr) batch.latest = latest_.data();
    return batch;
  }

  // The gradients of the batch, which a caller may replace.
  [[nodiscard]] const float** grads() noexcept { return grads_.data(); }

 private:
  // Closes the gaps of the rows that are left out. Returns how many are stepped.
  std::size_t pick(std::size_t begin, std::size_t count, const std::uint32_t* target) {
    const DistinctIds& distinct = update_.distinct_;
    std::size_t picked = 0;
    for (std::size_t i = 0; i < count; ++i) {
      RowHandle& handle = distinct.handles[begin + i];
      const std::uint32_t first = *target;
      target += handle.count;
      if (handle.row == kNoRow) continue;
      if (checks_ && is_finite_[i] == 0) {
        update_.refuse(handle);
        continue;
      }
      update_.preserve(distinct.ids[begin + i], handle);
      picked_rows_[picked] = rows_[begin + i];
      grads_[picked] = grads_[i];
      if (job_.latest != nullptr) latest_[picked] = job_.latest + first * dim_;
      picked_ids_[picked++] = distinct.ids[begin + i];
    }
    if (picked > 0) fetch_words(picked_rows_[0], update_.table_.schema_);
    return picked;
  }

  PartUpdate& update_;
  const GradientJob& job_;
  std::size_t dim_;
  bool checks_;
  const std::uint32_t* target_;
  const std::uint32_t* targets_end_;
  const RowWords* rows_;
  float* sums_;
  std::array<const float*, kStride> grads_;
  std::array<std::uint8_t, kStride> is_finite_;
  std::array<RowWords, kStride> picked_rows_;
  std::array<const float*, kStride> latest_;
  std::array<std::int64_t, kStride> picked_ids_;
};

void PartUpdate::step(const Partition::Group& group, const GradientJob& job) {
  const RowSchema& schema = table_.schema_;
  const RowWords* const rows = locate_rows();
  for (std::size_t i = 0; i < std::min(kAhead, distinct_.count); ++i) fetch_words(rows[i], schema);
  Stride stride(*this, job, sort_targets(group), rows);
  const Backward backward(table_);
  for (std::size_t begin = 0; begin < distinct_.count; begin += kStride) {
    const std::size_t count = std::min(kStride, distinct_.count - begin);
    RowBatch batch = stride.collect(begin, count);
    backward.transform(batch, stride.grads());
    const std::span<const RowSchema::Slice> slices = schema.slices();
    for (std::size_t k = 0; k < slices.size(); ++k) {
      batch.value_offset = slices[k].value_offset;
      batch.state_offset = slices[k].state_offset;
      slices[k].optimizer->step(
          batch, {.learning_rate = job.learning_rates[k], .step = job.step, .seed = table_.config_.seed + k});
      batch.fetched_value_bytes = batch.fetched_state_bytes = 0;  // the first slice has fetched whole rows
    }
    stamp_rows(begin, begin + count, job.time_s);
  }
}

// Stamps ids [begin, end).
void PartUpdate::stamp_rows(std::size_t begin, std::size_t end, std::uint32_t time_s) noexcept {
  for (std::size_t i = begin; i < end; ++i) {
    const RowHandle& handle = distinct_.handles[i];
    if (handle.row != kNoRow && !handle.is_refused) part_.rows.set_time(handle.row, time_s);
  }
}

void PartUpdate::replace(const Partition::Group& group, std::span<const std::uint32_t> times, const std::byte* rows) {
  const RowSchema& schema = table_.schema_;
  replace_rows(group, times, [&](std::size_t number, std::byte* values, std::byte* state) {
    const RowView row = schema.packed(rows + number * schema.row_bytes());
    std::memcpy(values, row.values, schema.value_bytes());
    if (schema.state_bytes() > 0) std::memcpy(state, row.state, schema.state_bytes());
  });
}

void PartUpdate::replace(const Partition::Group& group, std::span<const std::uint32_t> times, const ColumnRows& rows) {
  replace_rows(group, times,
               [&](std::size_t number, std::byte* values, std::byte* state) { rows.copy(number, values, state); });
}

template <class Copy>
void PartUpdate::replace_rows(const Partition::Group& group, std::span<const std::uint32_t> times, Copy&& copy) {
  Index& index = part_.index;
  const bool is_tracking = table_.is_tracking_.load(std::memory_order_relaxed);
  // Rows are copied behind a loop that finds them: a search would wait for the stores of the copy before.
  std::array<std::uint32_t, kStride> rows;
  for (std::size_t begin = 0; begin < group.ids.size(); begin += kStride) {
    const std::size_t end = std::min(begin + kStride, group.ids.size());
    std::size_t found = begin;
    const auto copy_found = [&] {
      for (std::size_t i = begin; i < found; ++i) {
        const std::uint32_t row = rows[i - begin];
        part_.rows.set_time(row, times[group.targets[i]]);
        copy(group.targets[i], part_.rows.at(row), part_.rows.state_at(row));
      }
    };
    try {
      for (; found < end; ++found) {
        if (found + kAhead < group.ids.size()) index.fetch(group.ids[found + kAhead]);
        const std::int64_t id = group.ids[found];
        std::uint32_t row = index.find(id);
        if (row == kNoRow) {
          row = add_row(id);
        } else if (part_.has_preimages()) {
          table_.preserve(part_, id, row, part_.rows.time(row));
        }
        rows[found - begin] = row;
        prefetch_for_write(part_.rows.at(row));
        prefetch_for_write(part_.rows.state_at(row));
      }
    } catch (...) {
      copy_found();  // the index has these ids
      throw;
    }
    copy_found();
    // After all copies: a note may fail.
    for (std::size_t i = begin; is_tracking && i < end; ++i) table_.touch(part_, group.ids[i], rows[i - begin]);
  }
}

void PartUpdate::finish(std::optional<std::uint32_t> time_s) {
  if (time_s) {
    for (std::size_t i = 0; i < distinct_.count; ++i) {
      any_leaves_ = any_leaves_ || distinct_.handles[i].leaves;
      stamp_rows(i, i + 1, *time_s);
    }
  }
  if (table_.is_tracking_.load(std::memory_order_relaxed)) {
    for_each([&](std::int64_t id, const RowHandle& handle) {
      if (handle.row != kNoRow && !handle.is_refused && !handle.leaves) table_.touch(part_, id, handle.row);
    });
  }
  if (!std::exchange(any_leaves_, false)) return;
  for_each([&](std::int64_t id, const RowHandle& handle) {
    if (!handle.leaves) return;
    if (handle.is_new) {
      part_.index.erase(id);  // as if it had never come
      part_.rows.free(handle.row);
    } else {
      table_.remove(part_, id, Removal::Reason::kZero, 0);
    }
  });
}

}  // namespace engine
