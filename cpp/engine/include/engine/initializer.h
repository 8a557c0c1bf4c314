// initializer.h: first values of a slice, a pure function of (seed, id, position).
#pragma once

#include <cstdint>
#include <memory>

#include "engine/config.h"

namespace engine {

class Initializer {
 public:
  virtual ~Initializer() = default;
  // Fills values[0..dim). `seed` already mixes the table's seed, its name and the slice index.
  virtual void fill(std::uint64_t seed, std::int64_t id, float* values, std::uint32_t dim) const noexcept = 0;
};

// Kinds: zeros, ones, constants{constant}, random_uniform{minval, maxval}.
std::unique_ptr<Initializer> make_initializer(const PartConfig& config);

}  // namespace engine
