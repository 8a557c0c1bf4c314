// row_store.h: the rows of one part and the times of their last updates, by number. Rows live in slabs that never move
// once the first one is full size. Values and optimizer state have separate slabs: a lookup reads values only, and the
// translations of all pages with values then fit the TLB for twice as many rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/pages.h"

namespace engine {

// The slabs of all rows of a table. The values and the states of a slab's rows take about 256 KiB together.
struct RowArena {
  // `state_bytes` may be 0.
  RowArena(std::size_t value_bytes, std::size_t state_bytes);

  [[nodiscard]] std::size_t slab_bytes() const noexcept { return values.slab_bytes() + state.slab_bytes(); }
  // Returns all memory to the system. Exclusive; every slab handed out dies.
  void clear() {
    values.clear();
    state.clear();
  }

  const std::size_t slab_rows;  // a power of two, so that a row number splits by shift and mask
  SlabArena values;
  SlabArena state;
};

// Where a row lies.
struct RowView {
  const std::byte* values;
  const std::byte* state;
};

class RowStore {
 public:
  explicit RowStore(RowArena* arena);

  // The values and the state of a row. There is no state where it has no bytes.
  [[nodiscard]] std::byte* at(std::uint32_t row) const noexcept { return shape().at(values_.slabs.data(), row); }
  [[nodiscard]] std::byte* state_at(std::uint32_t row) const noexcept { return places().state_at(row); }
  [[nodiscard]] RowView view(std::uint32_t row) const noexcept { return {.values = at(row), .state = state_at(row)}; }

  // Unix seconds of the row's last update; undefined until it is set.
  [[nodiscard]] std::uint32_t time(std::uint32_t row) const noexcept { return has_times_ ? times()[row] : 0; }
  // Writes nothing while all times are 0, as of data without event times: its updates touch a line less per row.
  void set_time(std::uint32_t row, std::uint32_t time_s) noexcept {
    if (time_s == 0 && !has_times_) return;
    has_times_ = true;
    times()[row] = time_s;
  }
  // The time of a row, for a loop that fetches it; null while all times are 0.
  [[nodiscard]] const std::uint32_t* stored_times() const noexcept { return has_times_ ? times() : nullptr; }

  // How a row number leads to the values of a row; the same in all stores of equal rows.
  struct Shape {
    std::uint32_t shift;
    std::uint32_t mask;
    std::size_t row_bytes;

    [[nodiscard]] std::byte* at(std::byte* const* slabs, std::uint32_t row) const noexcept {
      return slabs[row >> shift] + (row & mask) * row_bytes;
    }
  };
  [[nodiscard]] Shape shape() const noexcept { return shape_of(values_); }

  // Addresses of all rows, for loops over many. Valid until the store grows or is cleared.
  struct Places {
    Shape values;
    Shape state;
    std::byte* const* value_slabs;
    std::byte* const* state_slabs;

    [[nodiscard]] std::byte* at(std::uint32_t row) const noexcept { return values.at(value_slabs, row); }
    [[nodiscard]] std::byte* state_at(std::uint32_t row) const noexcept {
      return state.row_bytes == 0 ? nullptr : state.at(state_slabs, row);
    }
  };
  [[nodiscard]] Places places() const noexcept {
    return {.values = shape_of(values_),
            .state = shape_of(state_),
            .value_slabs = values_.slabs.data(),
            .state_slabs = state_.slabs.data()};
  }
  // Addresses of the slabs of values. Valid until the store grows or is cleared.
  [[nodiscard]] std::span<std::byte* const> slabs() const noexcept { return values_.slabs; }
  // Numbers handed out so far lie below this; freed ones among them.
  [[nodiscard]] std::uint32_t end() const noexcept { return end_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept {
    return values_.memory_bytes() + state_.memory_bytes() + times_.bytes();
  }
  [[nodiscard]] std::size_t growth_bytes(std::size_t more) const noexcept;
  // Rows that fit without growing.
  [[nodiscard]] std::size_t room() const noexcept { return capacity_ - end_ + free_count_; }

  // Makes room, so that the next `more` takes cannot throw. Rows of a store smaller than one slab may move.
  void reserve(std::size_t more);
  // A row number; freed ones first. The content is whatever was there. There must be room (reserve).
  std::uint32_t take() noexcept;
  void free(std::uint32_t row) noexcept;
  void clear() noexcept;
  // An empty store of rows without state uses rows in memory that the caller keeps alive: a store smaller than one slab
  // and whole slabs are used where they are, the rows behind the last whole slab are copied. There is a time for each
  // row.
  void adopt(std::byte* rows, std::span<const std::uint32_t> times);

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  // The values of all rows, or their states.
  struct Column {
    SlabArena* arena;
    std::size_t row_bytes;
    std::vector<std::byte*> slabs = {};
    Block first = {};  // the only slab of a small store; doubles until it is full size
    std::size_t adopted_slabs = 0;

    [[nodiscard]] std::size_t memory_bytes() const noexcept;
    void clear() noexcept;
  };

  [[nodiscard]] Shape shape_of(const Column& column) const noexcept {
    return {.shift = shift_, .mask = mask_, .row_bytes = column.row_bytes};
  }
  [[nodiscard]] std::size_t capacity_for(std::size_t rows) const noexcept;
  [[nodiscard]] std::size_t time_bytes_for(std::size_t rows) const noexcept;
  [[nodiscard]] std::uint32_t* times() const noexcept { return reinterpret_cast<std::uint32_t*>(times_.data()); }
  void reserve_times(std::size_t rows);
  void reserve(Column& column, std::size_t rows) const;
  void adopt_rows(std::byte* rows, std::size_t count);

  Column values_;
  Column state_;
  std::uint32_t shift_;
  std::uint32_t mask_;
  std::size_t capacity_ = 0;  // rows that both columns and the times have room for
  Block times_;
  bool has_times_ = false;  // a row had another time than 0; until then its block has the zeros of a new one
  std::uint32_t end_ = 0;
  std::uint32_t free_ = kNone;  // head of the list of freed rows, linked through their first word
  std::size_t free_count_ = 0;
};

}  // namespace engine
