// row_plan.cc: lookups that fill a plan. Each part is searched under its own lock, its values copied to a compact
// block; then rows are pooled out of the block in order of occurrence.
#include "engine/row_plan.h"

#include <algorithm>
#include <array>
#include <shared_mutex>

#include "engine/table.h"
#include "engine/table_image.h"
#include "kernels/kernels.h"
#include "row_plan_content.h"
#include "rows.h"

namespace engine {

namespace {

// Ids whose values are located before they are read.
constexpr std::size_t kBlockIds = 256;
constexpr std::size_t kValuesAhead = 24;

}  // namespace

RowPlan::RowPlan() : content_(std::make_unique<Content>()) {}
RowPlan::~RowPlan() = default;

bool RowPlan::is_filled() const noexcept { return content_->table != 0; }
std::size_t RowPlan::occurrences() const noexcept { return content_->grouped.ids().size(); }
std::size_t RowPlan::targets() const noexcept { return content_->bags.targets(); }
std::uint32_t RowPlan::first_n() const noexcept {
  return content_->bags.pooling == Pooling::kFirst ? content_->bags.first_n : 0;
}
std::size_t RowPlan::memory_bytes() const noexcept {
  const Content& content = *content_;
  return content.grouped.memory_bytes() + content.offsets.capacity() * sizeof(std::int64_t) + content.ids.bytes() +
         content.handles.bytes() + content.numbers.bytes() + content.values.bytes();
}

void Table::plan_part(RowPlan& plan, std::size_t number) const {
  RowPlan::Content& content = *plan.content_;
  DistinctIds& distinct = content.parts[number];
  const Partition::Group group = content.grouped.group(number);
  if (group.ids.empty()) return;
  const Part& part = *parts_[number];
  float* const values = content.values_of(number, schema_.dim());
  const bool is_plain = schema_.is_plain();
  const std::vector<float> scales = is_plain ? std::vector<float>() : this->scales();
  const std::size_t bytes = schema_.is_serving() ? schema_.row_bytes() : schema_.dim() * sizeof(float);
  const std::shared_lock lock(part.mutex);
  content.moves[number] = part.index.moves();
  with_width(schema_.dim(), [&](auto width) {
    search_ids(
        part.index, group.ids, distinct,
        [&](std::uint32_t row) __attribute__((always_inline)) {
          if (row != kNoRow) prefetch_row(part.rows.at(row), bytes);
        },
        [&](std::size_t i) __attribute__((always_inline)) {
          float* out = values + i * width.value;
          const std::uint32_t row = distinct.handles[i].row;
          if (row != kNoRow && is_plain) {
            copy_row(out, reinterpret_cast<const float*>(part.rows.at(row)), width);
          } else if (row != kNoRow) {
            schema_.read(part.rows.at(row), out, scales);
          } else if (config_.miss_is_initial) {
            schema_.read_initial(distinct.ids[i], out, scales);
          } else {
            std::fill_n(out, width.value, 0.0F);
          }
        });
  });
  if (image_) image_->check_whole();  // a file that was cut off gives zeros
}

// Adds or copies the values of a piece's occurrences to their targets, in order of occurrence. Adding the zeros of an
// absent id changes no bit: a sum that starts from zero is never a negative zero.
template <class Width>
void Table::read_planned(const LookupJob& job, const PartitionPiece& piece, Width width) const {
  RowPlan::Content& content = *job.plan->content_;
  const Bags& bags = job.bags;
  std::array<std::size_t, kParts> next = piece.next;
  std::array<const float*, kParts> bases;
  for (std::size_t part = 0; part < kParts; ++part) bases[part] = content.values_of(part, width.value);
  const std::uint32_t* const numbers = content.numbers.get(0);
  const auto take_number = [&](std::size_t part) __attribute__((always_inline)) { return numbers[next[part]++]; };

  if (bags.pooling == Pooling::kFirst) {
    std::fill(job.out + piece.units.begin * bags.first_n * width.value,
              job.out + piece.units.end * bags.first_n * width.value, 0.0F);
    bags.for_each(piece.units.begin, piece.units.end, [&](std::int64_t id, std::uint32_t target) {
      const std::size_t part = part_of(mix(static_cast<std::uint64_t>(id)));
      copy_row(job.out + target * width.value, bases[part] + take_number(part) * width.value, width);
    });
    return;
  }
  const std::uint8_t* const parts = content.grouped.parts();
  const std::size_t last = bags.position_of(piece.units.end);
  std::array<const std::byte*, kBlockIds> values;
  std::size_t unit = piece.units.begin;
  for (std::size_t first = bags.position_of(unit); first < last; first += kBlockIds) {
    const std::size_t count = std::min(kBlockIds, last - first);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t part = parts[first + i];
      const std::uint32_t number = take_number(part);
      values[i] = reinterpret_cast<const std::byte*>(bases[part] + number * width.value);
      if (job.found != nullptr) job.found[first + i] = content.parts[part].handles[number].row != kNoRow;
    }
    if (bags.pooling == Pooling::kNone) {
      for (std::size_t i = 0; i < count; ++i) {
        if (i + kValuesAhead < count) prefetch_row(values[i + kValuesAhead], width.value * sizeof(float));
        copy_row(job.out + (first + i) * width.value, reinterpret_cast<const float*>(values[i]), width);
      }
      continue;
    }
    // A bag that began in an earlier block continues its sum.
    while (bags.position_of(unit + 1) <= first) ++unit;
    std::size_t end = unit + 1;
    while (end < piece.units.end && bags.position_of(end) < first + count) ++end;
    kernels().sum_bags({.rows = values.data(),
                        .count = count,
                        .first = first,
                        .offsets = bags.offsets.data(),
                        .bags = {unit, end},
                        .out = job.out,
                        .width = width.value,
                        .ahead = kValuesAhead});
    unit = end - 1;
  }
}

void Table::pool_planned(const LookupJob& job, const PartitionPiece& piece) const {
  const std::size_t dim = schema_.dim();
  const Bags& bags = job.bags;
  const bool adds = bags.pooling == Pooling::kSum || bags.pooling == Pooling::kMean;
  if (adds) std::fill(job.out + piece.units.begin * dim, job.out + piece.units.end * dim, 0.0F);
  with_width(dim, [&](auto width) { read_planned(job, piece, width); });
  if (bags.pooling == Pooling::kMean) divide_by_length(bags, piece.units, job.out, dim);
}

std::vector<Table::PlannedPiece> Table::plan_all(std::span<const LookupJob* const> jobs, Pool& pool) {
  std::vector<Bags> calls;
  std::vector<Partition*> grouped;
  for (const LookupJob* job : jobs) {
    RowPlan::Content& content = *job->plan->content_;
    content.table = 0;  // not filled, should anything throw
    calls.push_back(job->bags);
    grouped.push_back(&content.grouped);
  }
  Partition::group_all(calls, grouped, pool);
  std::vector<PlannedPiece> pieces;
  for (const LookupJob* job : jobs) {
    RowPlan::Content& content = *job->plan->content_;
    content.reserve(job->table->schema_.dim());
    content.offsets.assign(job->bags.offsets.begin(), job->bags.offsets.end());
    content.bags = job->bags;
    content.bags.ids = content.grouped.ids();
    content.bags.offsets = content.offsets;
    for (const PartitionPiece& piece : content.grouped.pieces()) pieces.push_back({job, &piece});
  }
  pool.run(jobs.size() * kParts,
           [&](std::size_t i) { jobs[i / kParts]->table->plan_part(*jobs[i / kParts]->plan, i % kParts); });
  for (const LookupJob* job : jobs) job->plan->content_->table = job->table->serial_;
  return pieces;
}

}  // namespace engine
