// compressor.h: how a slice is stored for serving, and its effect on reads and gradients in training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/config.h"

namespace engine {

class Compressor {
 public:
  virtual ~Compressor() = default;

  // --- serving: compressed bytes ---
  [[nodiscard]] virtual std::size_t bytes(std::uint32_t dim) const noexcept = 0;
  virtual void encode(const float* values, std::byte* out, std::uint32_t dim) const noexcept = 0;
  virtual void decode(const std::byte* in, float* values, std::uint32_t dim) const noexcept = 0;

  // --- training: reads and gradients see the compression coming ---
  // True when training reads are the raw values and gradients pass unchanged (fp32, fp16).
  [[nodiscard]] virtual bool is_transparent() const noexcept = 0;
  // Values that a training lookup returns for stored ones. `scale` is the table's current scale of this slice.
  virtual void read(const float* values, float* out, std::uint32_t dim, float scale) const noexcept = 0;
  // The gradient of the stored values, from the gradient of the values that read() returned. May alias.
  virtual void backward(const float* values, const float* grad, float* out, std::uint32_t dim,
                        float scale) const noexcept = 0;
  // The scale to use from `step` on: `current`, or a new one when the schedule moves at this step.
  [[nodiscard]] virtual float scale_at(std::int64_t step, float current) const noexcept = 0;
  [[nodiscard]] virtual float initial_scale() const noexcept = 0;
};

// Kinds: fp32, fp16, fixed_r8{r}, one_bit{step_size, init_scale, max_scale, amplitude}.
std::unique_ptr<Compressor> make_compressor(const PartConfig& config);

}  // namespace engine
