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
// A store grows by runs of neighbouring slabs, a thirty-second of its size long but at most a huge page: few enough
// pages that one part of a table stays within the reach of the TLB, little enough slack.
constexpr std::size_t kGrowthShare = 32;
constexpr std::size_t kMostSlabsAtOnce = 8;
// The times move when they grow, so they grow by more.
constexpr std::size_t kTimeGrowthShare = 4;

}  // namespace

std::size_t rows_per_slab(std::size_t row_bytes) noexcept {
  return std::bit_floor(std::max(kFirstRows, kSlabBytes / row_bytes));
}

RowStore::RowStore(std::size_t row_bytes, SlabArena* arena)
    : row_bytes_(row_bytes),
      arena_(arena),
      shift_(static_cast<std::uint32_t>(std::countr_zero(rows_per_slab(row_bytes)))),
      mask_(static_cast<std::uint32_t>(rows_per_slab(row_bytes) - 1)) {}

std::size_t RowStore::capacity_for(std::size_t rows) const noexcept {
  if (rows <= capacity_) return capacity_;
  const std::size_t slab_rows = std::size_t{mask_} + 1;
  if (rows <= slab_rows) return std::min(slab_rows, std::bit_ceil(std::max(rows, kFirstRows)));
  const std::size_t slabs = (rows + slab_rows - 1) / slab_rows;
  const std::size_t grown = slabs_.size() + std::clamp<std::size_t>(slabs_.size() / kGrowthShare, 1, kMostSlabsAtOnce);
  return std::max(slabs, grown) * slab_rows;
}

std::size_t RowStore::growth_bytes(std::size_t more) const noexcept {
  const std::size_t fresh = more > free_count_ ? more - free_count_ : 0;
  const std::size_t wanted = capacity_for(end_ + fresh);
  return (wanted - capacity_) * row_bytes_ + time_bytes_for(wanted) - times_.bytes();
}

std::size_t RowStore::time_bytes_for(std::size_t rows) const noexcept {
  const std::size_t bytes = rows * sizeof(std::uint32_t);
  return bytes <= times_.bytes() ? times_.bytes() : std::max(bytes, times_.bytes() + times_.bytes() / kTimeGrowthShare);
}

void RowStore::reserve_times(std::size_t rows) {
  const std::size_t wanted = time_bytes_for(rows);
  if (wanted == times_.bytes()) return;
  Block grown(wanted);
  if (times_.bytes() > 0) std::memcpy(grown.data(), times_.data(), times_.bytes());
  times_ = std::move(grown);
}

void RowStore::reserve(std::size_t more) {
  const std::size_t fresh = more > free_count_ ? more - free_count_ : 0;
  const std::size_t wanted = capacity_for(end_ + fresh);
  if (wanted == capacity_) return;
  if (wanted >= kNone) throw CapacityExceeded("a part holds at most 4.2e9 rows; split the table");
  reserve_times(wanted);
  const std::size_t slab_rows = std::size_t{mask_} + 1;
  if (capacity_ < slab_rows) {
    const bool is_full_size = wanted >= slab_rows;
    Block small(is_full_size ? 0 : wanted * row_bytes_);
    std::byte* slab = is_full_size ? arena_->take(1).data : small.data();
    if (end_ > 0) std::memcpy(slab, slabs_[0], end_ * row_bytes_);
    slabs_.assign(1, slab);
    first_ = std::move(small);
    capacity_ = is_full_size ? slab_rows : wanted;
  }
  while (capacity_ < wanted) {
    const SlabArena::Run run = arena_->take((wanted - capacity_) / slab_rows);
    for (std::size_t i = 0; i < run.slabs; ++i) slabs_.push_back(run.data + i * arena_->slab_bytes());
    capacity_ += run.slabs * slab_rows;
  }
  memory_bytes_ = capacity_ < slab_rows ? first_.bytes() : (slabs_.size() - adopted_slabs_) * arena_->slab_bytes();
}

void RowStore::adopt(std::byte* rows, std::span<const std::uint32_t> times) {
  adopt_rows(rows, times.size());
  reserve_times(times.size());
  if (!times.empty()) std::memcpy(times_.data(), times.data(), times.size_bytes());
}

void RowStore::adopt_rows(std::byte* rows, std::size_t count) {
  const std::size_t slab_rows = std::size_t{mask_} + 1;
  if (count < slab_rows) {  // the first slab moves when it grows
    if (count > 0) slabs_.assign(1, rows);
    capacity_ = count;
    end_ = static_cast<std::uint32_t>(count);
    return;
  }
  adopted_slabs_ = count / slab_rows;
  for (std::size_t slab = 0; slab < adopted_slabs_; ++slab) slabs_.push_back(rows + slab * slab_rows * row_bytes_);
  const std::size_t adopted = capacity_ = adopted_slabs_ * slab_rows;
  end_ = static_cast<std::uint32_t>(adopted);
  if (count == adopted) return;
  reserve(count - adopted);
  std::memcpy(at(end_), rows + adopted * row_bytes_, (count - adopted) * row_bytes_);
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
  slabs_.clear();
  first_ = Block();
  times_ = Block();
  capacity_ = 0;
  memory_bytes_ = 0;
  adopted_slabs_ = 0;
  end_ = 0;
  free_ = kNone;
  free_count_ = 0;
}

}  // namespace engine
