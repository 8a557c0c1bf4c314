// row_store.cc: slabs of rows and the list of freed ones.
#include "engine/row_store.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/error.h"

namespace engine {

namespace {

constexpr std::size_t kSlabBytes = std::size_t{256} << 10;
constexpr std::size_t kFirstRows = 8;
// A store grows by runs of neighbouring slabs, a thirty-second of its size long but at most two huge pages: few enough
// pages that one part of a table stays within the reach of the TLB, little enough slack.
constexpr std::size_t kGrowthShare = 32;
constexpr std::size_t kMostSlabsAtOnce = 16;
// The times move when they grow, so they grow by more.
constexpr std::size_t kTimeGrowthShare = 4;

}  // namespace

RowArena::RowArena(std::size_t value_bytes, std::size_t state_bytes)
    : slab_rows(std::bit_floor(std::max(kFirstRows, kSlabBytes / (value_bytes + state_bytes)))),
      values(slab_rows * value_bytes),
      state(slab_rows * state_bytes) {}

RowStore::RowStore(RowArena* arena)
    : values_{.arena = &arena->values, .row_bytes = arena->values.slab_bytes() / arena->slab_rows},
      state_{.arena = &arena->state, .row_bytes = arena->state.slab_bytes() / arena->slab_rows},
      shift_(static_cast<std::uint32_t>(std::countr_zero(arena->slab_rows))),
      mask_(static_cast<std::uint32_t>(arena->slab_rows - 1)) {}

std::size_t RowStore::Column::memory_bytes() const noexcept {
  return first.bytes() > 0 ? first.bytes() : (slabs.size() - adopted_slabs) * arena->slab_bytes();
}

void RowStore::Column::clear() noexcept {
  slabs.clear();
  first = Block();
  adopted_slabs = 0;
}

std::size_t RowStore::capacity_for(std::size_t rows) const noexcept {
  if (rows <= capacity_) return capacity_;
  const std::size_t slab_rows = std::size_t{mask_} + 1;
  if (rows <= slab_rows) return std::min(slab_rows, std::bit_ceil(std::max(rows, kFirstRows)));
  const std::size_t slabs = (rows + slab_rows - 1) / slab_rows;
  const std::size_t present = capacity_ / slab_rows;
  const std::size_t grown = present + std::clamp<std::size_t>(present / kGrowthShare, 1, kMostSlabsAtOnce);
  return std::max(slabs, grown) * slab_rows;
}

std::size_t RowStore::growth_bytes(std::size_t more) const noexcept {
  const std::size_t fresh = more > free_count_ ? more - free_count_ : 0;
  const std::size_t wanted = capacity_for(end_ + fresh);
  return (wanted - capacity_) * (values_.row_bytes + state_.row_bytes) + time_bytes_for(wanted) - times_.bytes();
}

std::size_t RowStore::time_bytes_for(std::size_t rows) const noexcept {
  const std::size_t bytes = rows * sizeof(std::uint32_t);
  if (bytes <= times_.bytes()) return times_.bytes();
  return Block::bytes_for(std::max(bytes, times_.bytes() + times_.bytes() / kTimeGrowthShare));
}

void RowStore::reserve_times(std::size_t rows) {
  const std::size_t wanted = time_bytes_for(rows);
  if (wanted == times_.bytes()) return;
  Block grown(wanted);
  if (has_times_) std::memcpy(grown.data(), times_.data(), times_.bytes());
  times_ = std::move(grown);
}

void RowStore::reserve(std::size_t more) {
  const std::size_t fresh = more > free_count_ ? more - free_count_ : 0;
  const std::size_t wanted = capacity_for(end_ + fresh);
  if (wanted == capacity_) return;
  if (wanted >= kNone) throw CapacityExceeded("a part holds at most 4.2e9 rows; split the table");
  reserve_times(wanted);
  reserve(values_, wanted);
  reserve(state_, wanted);
  capacity_ = wanted;
}

// Makes room in one column. If the system has no memory, the column may have grown; the rows are as before.
void RowStore::reserve(Column& column, std::size_t rows) const {
  if (column.row_bytes == 0) return;
  const std::size_t slab_rows = std::size_t{mask_} + 1;
  if (capacity_ < slab_rows) {
    const bool is_full_size = rows >= slab_rows;
    Block small(is_full_size ? 0 : rows * column.row_bytes);
    std::byte* slab = is_full_size ? column.arena->take(1).data : small.data();
    if (end_ > 0) std::memcpy(slab, column.slabs[0], end_ * column.row_bytes);
    column.slabs.assign(1, slab);
    column.first = std::move(small);
    column.adopted_slabs = 0;
  }
  while (column.slabs.size() * slab_rows < rows) {
    const SlabArena::Run run = column.arena->take(rows / slab_rows - column.slabs.size());
    for (std::size_t i = 0; i < run.slabs; ++i) column.slabs.push_back(run.data + i * column.arena->slab_bytes());
  }
}

void RowStore::adopt(std::byte* rows, std::span<const std::uint32_t> times) {
  adopt_rows(rows, times.size());
  reserve_times(times.size());
  has_times_ = std::any_of(times.begin(), times.end(), [](std::uint32_t time_s) { return time_s != 0; });
  if (has_times_) std::memcpy(times_.data(), times.data(), times.size_bytes());
}

void RowStore::adopt_rows(std::byte* rows, std::size_t count) {
  const std::size_t slab_rows = std::size_t{mask_} + 1;
  if (count < slab_rows) {  // the first slab moves when it grows
    values_.adopted_slabs = count > 0 ? 1 : 0;
    values_.slabs.assign(values_.adopted_slabs, rows);
    capacity_ = count;
    end_ = static_cast<std::uint32_t>(count);
    return;
  }
  values_.adopted_slabs = count / slab_rows;
  for (std::size_t slab = 0; slab < values_.adopted_slabs; ++slab)
    values_.slabs.push_back(rows + slab * slab_rows * values_.row_bytes);
  const std::size_t adopted = capacity_ = values_.adopted_slabs * slab_rows;
  end_ = static_cast<std::uint32_t>(adopted);
  if (count == adopted) return;
  reserve(count - adopted);
  std::memcpy(at(end_), rows + adopted * values_.row_bytes, (count - adopted) * values_.row_bytes);
  end_ = static_cast<std::uint32_t>(count);
}

std::uint32_t RowStore::take() noexcept {
  if (free_ == kNone) return end_++;
  const std::uint32_t row = free_;
  std::memcpy(&free_, at(row), sizeof free_);
  --free_count_;
  return row;
}

void RowStore::free(std::uint32_t row) noexcept {
  std::memcpy(at(row), &free_, sizeof free_);
  free_ = row;
  ++free_count_;
}

void RowStore::clear() noexcept {
  values_.clear();
  state_.clear();
  times_ = Block();
  has_times_ = false;
  capacity_ = 0;
  end_ = 0;
  free_ = kNone;
  free_count_ = 0;
}

}  // namespace engine
