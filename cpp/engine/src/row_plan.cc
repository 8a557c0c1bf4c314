// row_plan.cc: lookups that fill a plan. Each part is searched under its own lock, its values copied to a compact
// block; then rows are pooled out of the block in order of occurrence.
#include "engine/row_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <shared_mutex>

#include "engine/table.h"
#include "engine/table_image.h"
#include "kernels/kernels.h"
#include "row_plan_content.h"
#include "rows.h"

namespace engine {

namespace {

// Ids whose values are located before they are read.
constexpr std::size_t kBlockIds = 1024;
// Values between the fetch of one and its use. Most are in the cache of another thread.
#if defined(__x86_64__)
constexpr std::size_t kValuesAhead = 48;
#else
constexpr std::size_t kValuesAhead = 24;
#endif
// Distinct ids whose buckets are fetched together, and whose rows are read together.
constexpr std::size_t kStride = 64;
constexpr std::size_t kReadIds = 1024;
// Parts that one piece of work searches: enough of them for a few strides of distinct ids.
constexpr std::size_t kMostParts = 16;
constexpr std::size_t kSearchIds = 128;

std::size_t parts_together(std::size_t ids) {
  return std::bit_floor(std::clamp<std::size_t>(kSearchIds * kParts / std::max<std::size_t>(1, ids), 1, kMostParts));
}

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

template <class Width>
void Table::read_values(const std::byte* row, std::int64_t id, float* out, std::span<const float> scales,
                        Width width) const {
  if (row != nullptr && schema_.is_plain()) {
    copy_row(out, reinterpret_cast<const float*>(row), width);
  } else if (row != nullptr) {
    schema_.read(row, out, scales);
  } else if (config_.miss_is_initial) {
    schema_.read_initial(id, out, scales);
  } else {
    std::fill_n(out, width.value, 0.0F);
  }
}

void Table::plan_part(RowPlan& plan, std::size_t number) const {
  RowPlan::Content& content = *plan.content_;
  DistinctIds& distinct = content.parts[number];
  const Partition::Group group = content.grouped.gather(number);
  if (group.ids.empty()) return;
  const Part& part = *parts_[number];
  float* const values = content.values_of(number, schema_.dim());
  const std::vector<float> scales = schema_.is_plain() ? std::vector<float>() : this->scales();
  const std::size_t bytes = schema_.value_bytes();
  // Rows of the distinct ids that are searched and not read yet, by number: at most two chunks.
  constexpr std::size_t kRing = 2 * kSearchChunk;
  std::array<const std::byte*, kRing> rows;
  const bool is_plain = schema_.is_plain() && !config_.miss_is_initial;
  const std::shared_lock lock(part.mutex);
  content.histories[number] = part.index.history();
  with_width(schema_.dim(), [&](auto width) {
    search_ids(
        part.index, group.ids, distinct,
        [&](std::size_t i, std::uint32_t row)
            __attribute__((always_inline)) { rows[i % kRing] = row == kNoRow ? nullptr : part.rows.at(row); },
        // Few instructions per row: a fetch occupies the processor's window until its page walk is done.
        [&](std::size_t begin, std::size_t end) __attribute__((always_inline)) {
          for (std::size_t i = begin; i < std::min(end, begin + kAhead); ++i) prefetch_row(rows[i % kRing], bytes);
          if (!is_plain) {
            for (std::size_t i = begin; i < end; ++i) {
              if (i + kAhead < end) prefetch_row(rows[(i + kAhead) % kRing], bytes);
              read_values(rows[i % kRing], distinct.ids[i], values + i * width.value, scales, width);
            }
            return;
          }
          for (std::size_t i = begin; i < end; ++i) {
            if (i + kAhead < end) prefetch_row(rows[(i + kAhead) % kRing], width.value * sizeof(float));
            prefetch_for_write(values + (i + kAhead) * width.value);
            const auto* const row = reinterpret_cast<const float*>(rows[i % kRing]);
            if (row != nullptr) [[likely]] {
              copy_row(values + i * width.value, row, width);
            } else {
              std::fill_n(values + i * width.value, width.value, 0.0F);
            }
          }
        });
  });
  if (image_) image_->check_whole();  // a file that was cut off gives zeros
}

void Table::plan_distinct(const LookupJob& job, std::size_t begin, std::size_t end) const {
  RowPlan::Content& content = *job.plan->content_;
  const Partition& grouped = content.grouped;
  const std::size_t last = grouped.begin(end);
  if (grouped.begin(begin) == last) return;
  for (std::size_t part = begin; part < end; ++part) grouped.gather(part);
  // In falling order, as every thread that takes several parts.
  std::array<std::shared_lock<SharedMutex>, kMostParts> locks;
  for (std::size_t part = end; part-- > begin;) {
    content.parts[part].count = grouped.group(part).ids.size();
    if (content.parts[part].count == 0) continue;
    locks[part - begin] = std::shared_lock(parts_[part]->mutex);
    content.histories[part] = parts_[part]->index.history();
  }
  const std::int64_t* const ids = grouped.ids().data();
  const std::uint32_t* const targets = grouped.targets();
  RowHandle* const handles = content.handles.get(0);
  const std::vector<float> scales = schema_.is_plain() ? std::vector<float>() : this->scales();
  const std::size_t bytes = schema_.value_bytes();
  std::array<const std::byte*, kReadIds> rows;
  std::array<const Part*, kStride> owners;
  std::array<Index::Place, kStride> places;
  std::array<std::uint32_t, kStride> displaced;
  std::size_t number = begin;  // part of the current id
  for (std::size_t first = grouped.begin(begin); first < last; first += kReadIds) {
    const std::size_t count = std::min(kReadIds, last - first);
    for (std::size_t from = 0; from < count; from += kStride) {
      const std::size_t some = std::min(kStride, count - from);
      const std::size_t at = first + from;
      for (std::size_t i = 0; i < some; ++i) {
        while (at + i >= grouped.begin(number + 1)) ++number;
        content.ids.get(0)[at + i] = ids[at + i];
        content.numbers.get(0)[at + i] = static_cast<std::uint32_t>(at + i - grouped.begin(number));
        owners[i] = parts_[number].get();
        places[i] = owners[i]->index.view().place(ids[at + i]);
        prefetch(places[i].bucket);
      }
      const auto note = [&](std::size_t i, std::uint32_t row) __attribute__((always_inline)) {
        handles[at + i] = {.row = row, .count = 1};
        rows[from + i] = row == kNoRow ? nullptr : owners[i]->rows.at(row);
      };
      std::size_t displacements = 0;
      for (std::size_t i = 0; i < some; ++i) {
        bool continues = false;
        note(i, owners[i]->index.view().row_at(places[i], continues));
        // Perhaps in the next bucket, which is another line to wait for. Later, with the others.
        displaced[displacements] = static_cast<std::uint32_t>(i);
        displacements += continues ? 1 : 0;
        if (continues) Index::fetch_next(places[i]);
      }
      for (std::size_t k = 0; k < displacements; ++k) {
        const std::size_t i = displaced[k];
        note(i, owners[i]->index.find_displaced(places[i], ids[at + i]));
      }
    }
    for (std::size_t i = 0; i < std::min(kAhead, count); ++i) prefetch_row(rows[i], bytes);
    with_width(schema_.dim(), [&](auto width) {
      for (std::size_t i = 0; i < count; ++i) {
        if (i + kAhead < count) prefetch_row(rows[i + kAhead], bytes);
        read_values(rows[i], ids[first + i], job.out + targets[first + i] * width.value, scales, width);
        if (job.found != nullptr) job.found[targets[first + i]] = rows[i] != nullptr;
      }
    });
  }
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
    for (std::size_t i = 0; i < std::min(kValuesAhead, count); ++i)
      prefetch_row(values[i], width.value * sizeof(float));
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
  // The update reads them. The piece behind this one has the offset between both.
  if (!bags.offsets.empty()) {
    const std::size_t end = piece.units.end + (piece.units.end == bags.units() ? 1 : 0);
    std::copy(bags.offsets.begin() + piece.units.begin, bags.offsets.begin() + end,
              job.plan->content_->offsets.begin() + piece.units.begin);
  }
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
  struct Search {
    const LookupJob* job;
    std::size_t begin;  // parts
    std::size_t end;
    std::size_t size;  // ids
  };
  std::vector<Search> searches;
  std::vector<PlannedPiece> pieces;
  for (const LookupJob* job : jobs) {
    RowPlan::Content& content = *job->plan->content_;
    content.reserve(job->is_distinct ? 0 : job->table->schema_.dim());
    content.offsets.resize(job->bags.offsets.size());  // pool_planned fills it
    content.bags = job->bags;
    content.bags.ids = content.grouped.ids();
    content.bags.offsets = content.offsets;
    const std::size_t together = job->is_distinct ? parts_together(job->bags.ids.size()) : 1;
    for (std::size_t part = 0; part < kParts; part += together) {
      const std::size_t size = content.grouped.begin(part + together) - content.grouped.begin(part);
      searches.push_back({job, part, part + together, size});
    }
    if (job->is_distinct) continue;  // the search fills the output
    for (const PartitionPiece& piece : content.grouped.pieces()) pieces.push_back({job, &piece});
  }
  pool.sort_shares(searches, &Search::job);
  pool.run_in_shares(searches.size(), [&](std::size_t i) {
    const Search& search = searches[i];
    if (search.job->is_distinct) {
      search.job->table->plan_distinct(*search.job, search.begin, search.end);
    } else {
      search.job->table->plan_part(*search.job->plan, search.begin);
    }
  });
  return pieces;
}

}  // namespace engine
