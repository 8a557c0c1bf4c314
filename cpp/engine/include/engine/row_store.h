// row_store.h: the rows of one part and the times of their last updates, by number. Rows live in slabs that never move
// once the first one is full size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/pages.h"

namespace engine {

// Rows in a slab of about 256 KiB: a power of two, so that a row number splits by shift and mask.
std::size_t rows_per_slab(std::size_t row_bytes) noexcept;

class RowStore {
 public:
  RowStore(std::size_t row_bytes, SlabArena* arena);

  [[nodiscard]] std::byte* at(std::uint32_t row) const noexcept { return shape().at(slabs_.data(), row); }

  // Unix seconds of the row's last update; undefined until it is set.
  [[nodiscard]] std::uint32_t& time(std::uint32_t row) noexcept { return times()[row]; }
  [[nodiscard]] std::uint32_t time(std::uint32_t row) const noexcept { return times()[row]; }
  [[nodiscard]] std::uint32_t* times() const noexcept { return reinterpret_cast<std::uint32_t*>(times_.data()); }

  // How a row number splits into slab and place; the same in all stores of equal rows.
  struct Shape {
    std::uint32_t shift;
    std::uint32_t mask;
    std::size_t row_bytes;

    [[nodiscard]] std::byte* at(std::byte* const* slabs, std::uint32_t row) const noexcept {
      return slabs[row >> shift] + (row & mask) * row_bytes;
    }
  };
  [[nodiscard]] Shape shape() const noexcept { return {.shift = shift_, .mask = mask_, .row_bytes = row_bytes_}; }
  // Addresses of the slabs, rows_per_slab() rows each. Valid until the store grows or is cleared.
  [[nodiscard]] std::span<std::byte* const> slabs() const noexcept { return slabs_; }
  // Numbers handed out so far lie below this; freed ones among them.
  [[nodiscard]] std::uint32_t end() const noexcept { return end_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return memory_bytes_ + times_.bytes(); }
  [[nodiscard]] std::size_t growth_bytes(std::size_t more) const noexcept;
  // Rows that fit without growing.
  [[nodiscard]] std::size_t room() const noexcept { return capacity_ - end_ + free_count_; }

  // Makes room, so that the next `more` takes cannot throw. Rows of a store smaller than one slab may move.
  void reserve(std::size_t more);
  // A row number; freed ones first. The content is whatever was there. There must be room (reserve).
  std::uint32_t take() noexcept;
  void free(std::uint32_t row) noexcept;
  void clear() noexcept;
  // An empty store uses rows in memory that the caller keeps alive: a store smaller than one slab and whole slabs are
  // used where they are, the rows behind the last whole slab are copied. There is a time for each row.
  void adopt(std::byte* rows, std::span<const std::uint32_t> times);

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  [[nodiscard]] std::size_t capacity_for(std::size_t rows) const noexcept;
  [[nodiscard]] std::size_t time_bytes_for(std::size_t rows) const noexcept;
  void reserve_times(std::size_t rows);
  void adopt_rows(std::byte* rows, std::size_t count);

  std::size_t row_bytes_;
  SlabArena* arena_;
  std::uint32_t shift_;
  std::uint32_t mask_;
  std::vector<std::byte*> slabs_;
  Block first_;  // the only slab of a small store; doubles until it is full size
  std::size_t capacity_ = 0;
  std::size_t memory_bytes_ = 0;  // of the rows
  Block times_;
  std::size_t adopted_slabs_ = 0;
  std::uint32_t end_ = 0;
  std::uint32_t free_ = kNone;  // head of the list of freed rows, linked through their first word
  std::size_t free_count_ = 0;
};

}  // namespace engine
