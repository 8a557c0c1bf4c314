// bags.h: the ids of a batched call, alone or in ragged bags, and where each occurrence's row goes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace engine {

enum class Pooling : std::uint8_t {
  kNone,   // one row per id; no offsets
  kSum,    // one row per bag
  kMean,   // one row per bag, divided by its length; zeros for an empty bag
  kFirst,  // first_n rows per bag; ids beyond them are ignored, missing ones are zeros
};

struct Bags {
  std::span<const std::int64_t> ids{};
  std::span<const std::int64_t> offsets{};  // (bags + 1); empty for kNone
  Pooling pooling = Pooling::kNone;
  std::uint32_t first_n = 0;

  // Units that never share an output row: ids for kNone, bags otherwise.
  [[nodiscard]] std::size_t units() const noexcept {
    return pooling == Pooling::kNone ? ids.size() : offsets.size() - 1;
  }
  // Rows of the output, and of a gradient.
  [[nodiscard]] std::size_t targets() const noexcept {
    return pooling == Pooling::kFirst ? units() * first_n : units();
  }
  // The first unit that starts at or after an id position: cuts work into pieces at unit boundaries.
  [[nodiscard]] std::size_t unit_from(std::size_t position) const noexcept {
    if (pooling == Pooling::kNone) return std::min(position, ids.size());
    const auto at = std::lower_bound(offsets.begin(), offsets.end() - 1, static_cast<std::int64_t>(position));
    return static_cast<std::size_t>(at - offsets.begin());
  }
  [[nodiscard]] std::size_t position_of(std::size_t unit) const noexcept {
    return pooling == Pooling::kNone ? unit : static_cast<std::size_t>(offsets[unit]);
  }

  // Calls visit(id, target) for every occurrence that counts in units [begin, end), in order.
  template <class Visit>
  void for_each(std::size_t begin, std::size_t end, Visit&& visit) const {
    if (pooling == Pooling::kNone) {
      for (std::size_t i = begin; i < end; ++i) visit(ids[i], static_cast<std::uint32_t>(i));
      return;
    }
    for (std::size_t bag = begin; bag < end; ++bag) {
      const std::int64_t from = offsets[bag];
      if (pooling == Pooling::kFirst) {
        const std::int64_t to = std::min<std::int64_t>(offsets[bag + 1], from + first_n);
        for (std::int64_t i = from; i < to; ++i) {
          visit(ids[static_cast<std::size_t>(i)],
                static_cast<std::uint32_t>(bag * first_n + static_cast<std::size_t>(i - from)));
        }
      } else {
        for (std::int64_t i = from; i < offsets[bag + 1]; ++i) {
          visit(ids[static_cast<std::size_t>(i)], static_cast<std::uint32_t>(bag));
        }
      }
    }
  }
};

// Units [begin, end).
struct UnitRange {
  std::size_t begin;
  std::size_t end;
};

// Cuts the units into pieces of about `ids_per_piece` ids. Depends on the data alone, never on the number of threads,
// so whatever is summed piece by piece comes out the same.
inline std::vector<UnitRange> cut_into_pieces(const Bags& bags, std::size_t ids_per_piece) {
  std::vector<UnitRange> pieces;
  std::size_t begin = 0;
  for (std::size_t position = ids_per_piece; begin < bags.units(); position += ids_per_piece) {
    const std::size_t end = position >= bags.ids.size() ? bags.units() : bags.unit_from(position);
    if (end > begin) pieces.push_back({begin, end});
    begin = end;
  }
  return pieces;
}

}  // namespace engine
