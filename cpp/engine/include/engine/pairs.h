// pairs.h: the products of all pairs of an example's vectors, summed, and their gradient, in one pass each.
#pragma once

#include <cstddef>

#include "engine/pool.h"

namespace engine {

// `examples` times `count` vectors of `width` floats, row-major.
struct Vectors {
  const float* data;
  std::size_t examples;
  std::size_t count;
  std::size_t width;
};

// Fills `together` (examples, width) with the sum of the vectors, and `pairs` (examples, width) with the sum of the
// products of all pairs: half of the squared sum less the sum of squares.
void sum_pairs(const Vectors& vectors, float* together, float* pairs, Pool& pool);

// The way back: fills `out`, of the shape of the vectors, with grads * (together - vector) + others. `grads` are those
// of `pairs`; `others` has the shape of the vectors and may be null.
void pair_gradients(const Vectors& vectors, const float* together, const float* grads, const float* others, float* out,
                    Pool& pool);

}  // namespace engine
