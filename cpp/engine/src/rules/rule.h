// rule.h: the shape every update rule has, and the few words they share.
//
// A rule is a small value with
//   explicit Rule(Settings&)                          reads its settings;
//   static Fields fields()                            names its state, in memory order;
//   void init(float* state, dim) const                writes the first state;
//   void update(Values w, Values state, Gradient g, dim, args) const   takes one step on one row's slice.
// The loops over `dim` are plain, so that they become vector code. Loops of fixed length for the common dims were
// measured: no faster at 16 and above, and at 4 and 8 GCC unrolls them into scalar code, up to twice as slow.
// Every coordinate is computed by IEEE operations in the written order, so a result depends neither on the
// dimension, nor on alignment, nor on the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../settings.h"
#include "engine/optimizer.h"

namespace engine::rules {

using Values = float* __restrict;
using Gradient = const float* __restrict;

enum class Width { kPerValue, kOne, kInt64 };

struct Field {
  const char* name;
  Width width;
};
using Fields = std::vector<Field>;

// State words are only 4-byte aligned, so an int64 among them is copied in and out.
inline std::int64_t load_int64(const float* words) noexcept {
  std::int64_t value = 0;
  std::memcpy(&value, words, sizeof(value));
  return value;
}

inline void store_int64(float* words, std::int64_t value) noexcept { std::memcpy(words, &value, sizeof(value)); }

}  // namespace engine::rules
