// lookup.cc: batched reads. Blocks of ids go through two stages: find the rows (kernels/search.h), then read them,
// fetched some ids ahead. A loop that stores values that it has just loaded makes later loads wait, and a fetch waits
// for its page walk, so loops that fetch have few instructions.
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

// Ids whose rows are found before the first is read: their addresses fit the first cache, with room for rows.
constexpr std::size_t kBlockIds = 2048;
// Ids read under one hold of the locks: a fraction of a millisecond.
constexpr std::size_t kLockedIds = 8192;
// Rows between the fetch of a row and its use.
#if defined(__x86_64__)
constexpr std::size_t kRowsAhead = 32;
#else
constexpr std::size_t kRowsAhead = 24;
#endif

// Ids per piece of work. Sums never span pieces and run in order of occurrence, so pieces may follow the threads.
std::size_t piece_ids(std::size_t ids, unsigned threads) {
  return std::clamp<std::size_t>(ids / (std::size_t{threads} * 16), std::size_t{1} << 12, std::size_t{1} << 16);
}

// Where the rows of a block are; reused from call to call.
std::array<const std::byte*, kBlockIds>& thread_rows() {
  static thread_local const auto rows = std::make_unique<std::array<const std::byte*, kBlockIds>>();
  return *rows;
}

}  // namespace

// Holds all parts of a table for reading, and finds rows in them. In falling order: a write that waits for the turn of
// a lower part may hold a higher one, so a thread that takes several parts must not hold a lower one while waiting for
// a higher.
class Table::LockedParts {
 public:
  explicit LockedParts(const Table& table) noexcept : table_(table), shape_(table.parts_[0]->rows.shape()) {
    for (std::size_t number = kParts; number-- > 0;) {
      const Part& part = *table_.parts_[number];
      part.mutex.lock_shared();
      const std::span<std::byte* const> slabs = part.rows.slabs();
      places_[number] = {.buckets = part.index.view(), .slabs = slabs.empty() ? &kNoSlab : slabs.data()};
      indexes_[number] = &part.index;
    }
  }
  ~LockedParts() {
    for (const auto& part : table_.parts_) part->mutex.unlock_shared();
  }
  LockedParts(const LockedParts&) = delete;
  LockedParts& operator=(const LockedParts&) = delete;

  // Where the row of each id is, or null.
  void find_rows(std::span<const std::int64_t> ids, const std::byte** rows) const {
    kernels().find_rows({.ids = ids.data(),
                         .count = ids.size(),
                         .places = places_.data(),
                         .indexes = indexes_.data(),
                         .shape = shape_,
                         .rows = rows});
  }

 private:
  static constexpr std::byte* kNoSlab = nullptr;

  const Table& table_;
  RowStore::Shape shape_;
  std::array<PartPlace, kParts> places_;
  std::array<const Index*, kParts> indexes_;
};

template <class Width>
void Table::read_block(const LookupJob& job, UnitRange units, std::size_t first, std::span<const std::byte* const> rows,
                       Width width) const {
  const Bags& bags = job.bags;
  const bool is_plain = schema_.is_plain() && !config_.miss_is_initial;
  const std::size_t bytes = schema_.value_bytes();
  const std::vector<float> scales = schema_.is_plain() ? std::vector<float>() : this->scales();
  std::vector<float> decoded(is_plain ? 0 : width.value);
  // The values a lookup shows for the id at a position; null for nothing.
  const auto values_at = [&](std::size_t position) -> const float* {
    const std::byte* row = rows[position];
    if (schema_.is_plain() && row != nullptr) return reinterpret_cast<const float*>(row);
    if (row != nullptr) {
      schema_.read(row, decoded.data(), scales);
    } else if (config_.miss_is_initial) {
      schema_.read_initial(bags.ids[first + position], decoded.data(), scales);
    } else {
      return nullptr;
    }
    return decoded.data();
  };
  const bool adds = bags.pooling == Pooling::kSum || bags.pooling == Pooling::kMean;
  const std::size_t kept = bags.pooling == Pooling::kFirst ? bags.first_n : 1;
  for (std::size_t i = 0; i < std::min(kRowsAhead, rows.size()); ++i) prefetch_row(rows[i], bytes);
  if (adds && is_plain) {
    kernels().sum_bags({.rows = rows.data(),
                        .count = rows.size(),
                        .first = first,
                        .offsets = bags.offsets.data(),
                        .bags = units,
                        .out = job.out,
                        .width = width.value,
                        .ahead = kRowsAhead});
    return;
  }
  for (std::size_t unit = units.begin; unit < units.end; ++unit) {
    // The part of the unit that lies in this block: a bag longer than a block is added up block by block.
    const std::size_t from = std::max(first, bags.position_of(unit)) - first;
    const std::size_t to = std::min(first + rows.size(), bags.position_of(unit + 1)) - first;
    for (std::size_t position = from; position < to; ++position) {
      if (position + kRowsAhead < rows.size()) prefetch_row(rows[position + kRowsAhead], bytes);
      const std::size_t place = adds ? 0 : first + position - bags.position_of(unit);
      if (place >= kept) continue;
      const std::size_t target = unit * kept + place;
      float* out = job.out + target * width.value;
      if (!adds && !schema_.is_plain() && rows[position] != nullptr) {
        schema_.read(rows[position], out, scales);
        if (job.found != nullptr) job.found[target] = 1;
        continue;
      }
      const float* values = values_at(position);
      if (adds) {
        if (values != nullptr) add_row(out, values, width);
      } else if (values != nullptr) {
        copy_row(out, values, width);
      } else {
        std::fill_n(out, width.value, 0.0F);
      }
      if (job.found != nullptr) job.found[target] = rows[position] != nullptr;
    }
  }
}

void Table::lookup_piece(const LookupJob& job, UnitRange units) const {
  const Bags& bags = job.bags;
  const std::size_t dim = schema_.dim();
  if (bags.pooling != Pooling::kNone) {
    const std::size_t rows_per_unit = bags.targets() / std::max<std::size_t>(1, bags.units());
    std::fill(job.out + units.begin * rows_per_unit * dim, job.out + units.end * rows_per_unit * dim, 0.0F);
  }
  auto& rows = thread_rows();
  std::size_t unit = units.begin;
  const std::size_t last = bags.position_of(units.end);
  for (std::size_t first = bags.position_of(units.begin); first < last;) {
    const LockedParts parts(*this);
    for (const std::size_t held_until = std::min(last, first + kLockedIds); first < held_until;) {
      const std::size_t count = std::min(kBlockIds, held_until - first);
      const std::size_t end = first + count == last ? units.end : bags.unit_from(first + count);
      parts.find_rows(bags.ids.subspan(first, count), rows.data());
      with_width(dim, [&](auto width) { read_block(job, {unit, end}, first, {rows.data(), count}, width); });
      if (image_) image_->check_whole();  // a file that was cut off gives zeros
      first += count;
      // A bag that continues in the next block is handled there too.
      unit = end > units.begin && bags.position_of(end) > first ? end - 1 : end;
    }
  }
  if (bags.pooling == Pooling::kMean) divide_by_length(bags, units, job.out, dim);
}

void Table::lookup_all(std::span<const LookupJob> jobs, Pool& pool) {
  struct Piece {
    const LookupJob* job;
    UnitRange units;
  };
  const Pool::Phases phases(pool);
  std::vector<Piece> pieces;
  std::vector<const LookupJob*> planned_jobs;
  std::vector<RowPlan::Use> uses;
  for (const LookupJob& job : jobs) {
    if (job.plan != nullptr) {
      uses.emplace_back(*job.plan);
      planned_jobs.push_back(&job);
      continue;
    }
    for (const UnitRange& units : cut_into_pieces(job.bags, piece_ids(job.bags.ids.size(), pool.threads())))
      pieces.push_back({&job, units});
  }
  std::vector<PlannedPiece> planned;
  if (!planned_jobs.empty()) planned = plan_all(planned_jobs, pool);
  pool.run(planned.size() + pieces.size(), [&](std::size_t i) {
    if (i < planned.size()) {
      planned[i].job->table->pool_planned(*planned[i].job, *planned[i].piece);
    } else {
      const Piece& piece = pieces[i - planned.size()];
      piece.job->table->lookup_piece(*piece.job, piece.units);
    }
  });
  for (const LookupJob* job : planned_jobs) job->plan->content_->table = job->table->serial_;
}

void Table::lookup(std::span<const std::int64_t> ids, float* out, std::uint8_t* found) const {
  const LookupJob job{.table = this, .bags = {.ids = ids}, .out = out, .found = found};
  lookup_all({&job, 1}, *pool_);
}

void Table::contains(std::span<const std::int64_t> ids, std::uint8_t* found) const {
  constexpr std::size_t kPieceIds = 4 * kBlockIds;
  pool_->run((ids.size() + kPieceIds - 1) / kPieceIds, [&](std::size_t piece) {
    const std::size_t end = std::min(ids.size(), (piece + 1) * kPieceIds);
    auto& rows = thread_rows();
    const LockedParts parts(*this);
    for (std::size_t begin = piece * kPieceIds; begin < end; begin += kBlockIds) {
      const std::size_t count = std::min(kBlockIds, end - begin);
      parts.find_rows(ids.subspan(begin, count), rows.data());
      for (std::size_t i = 0; i < count; ++i) found[begin + i] = rows[i] != nullptr;
    }
  });
}

RawRows Table::raw_rows(std::span<const std::int64_t> ids) const {
  RawRows found;
  for (const std::int64_t id : ids) {
    const Part& part = *parts_[part_of(mix(static_cast<std::uint64_t>(id)))];
    const std::shared_lock lock(part.mutex);
    const std::uint32_t number = part.index.find(id);
    if (number == Index::kNoRow) continue;
    found.ids.push_back(id);
    found.times.push_back(part.rows.time(number));
    schema_.append_packed(part.rows.view(number), found.rows);
    if (image_) image_->check_whole();
  }
  return found;
}

}  // namespace engine
