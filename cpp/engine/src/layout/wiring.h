// wiring.h: the parts of a model's layouts as the loops want them: per feature, cut to widths known to the compiler.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "engine/layout/layouts.h"

namespace engine::layout {

// A piece of a part whose width is a power of two, at most kWidest.
struct Wire {
  std::uint32_t output;
  std::uint32_t column;
  std::uint32_t width;
  std::uint32_t offset;
  std::uint32_t stride;
  bool stores;  // nothing was written to its floats before: store, do not add
};

inline constexpr std::uint32_t kWidest = 32;

struct Wiring {
  std::vector<std::size_t> table_dims;
  std::vector<Feature> features;
  std::vector<std::size_t> output_widths;
  std::vector<std::vector<Wire>> wires;                    // per feature
  std::vector<std::vector<std::uint32_t>> table_features;  // per table, in order
  std::vector<std::uint32_t> outputs_with_gaps;            // to be zeroed before anything is added
  // Per table, the unique ids of its last plan: how much room the next one starts with. Changes no result.
  std::unique_ptr<std::atomic<std::uint32_t>[]> usual_sizes;
};

// Calls work(std::integral_constant<std::size_t, width>) for the width of a wire.
template <class Work>
inline void with_wire_width(std::uint32_t width, Work&& work) {
  switch (width) {
    case 1:
      return work(std::integral_constant<std::size_t, 1>{});
    case 2:
      return work(std::integral_constant<std::size_t, 2>{});
    case 4:
      return work(std::integral_constant<std::size_t, 4>{});
    case 8:
      return work(std::integral_constant<std::size_t, 8>{});
    case 16:
      return work(std::integral_constant<std::size_t, 16>{});
    default:
      return work(std::integral_constant<std::size_t, kWidest>{});
  }
}

}  // namespace engine::layout
