// compressor.cc: the serving formats of a slice, and the two that training already feels.
#include "engine/compressor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/error.h"
#include "kernels/kernels.h"
#include "settings.h"

namespace engine {
namespace {

// A format whose gradient is the one of the values it stands for, and that has no scale.
class Unscaled : public Compressor {
 public:
  void backward(const float*, const float* grad, float* out, std::uint32_t dim, float) const noexcept override {
    if (out != grad) std::memmove(out, grad, dim * sizeof(float));
  }
  [[nodiscard]] float scale_at(std::int64_t, float current) const noexcept override { return current; }
  [[nodiscard]] float initial_scale() const noexcept override { return 1.0F; }
};

class Transparent : public Unscaled {
 public:
  [[nodiscard]] bool is_transparent() const noexcept override { return true; }
  void read(const float* values, float* out, std::uint32_t dim, float) const noexcept override {
    if (out != values) std::memmove(out, values, dim * sizeof(float));
  }
};

class Fp32 final : public Transparent {
 public:
  [[nodiscard]] std::size_t bytes(std::uint32_t dim) const noexcept override { return dim * sizeof(float); }
  void encode(const float* values, std::byte* out, std::uint32_t dim) const noexcept override {
    std::memcpy(out, values, dim * sizeof(float));
  }
  void decode(const std::byte* in, float* values, std::uint32_t dim) const noexcept override {
    std::memcpy(values, in, dim * sizeof(float));
  }
};

class Fp16 final : public Transparent {
 public:
  [[nodiscard]] std::size_t bytes(std::uint32_t dim) const noexcept override { return dim * sizeof(std::uint16_t); }
  void encode(const float* values, std::byte* out, std::uint32_t dim) const noexcept override {
    kernels_.encode_halves(values, out, dim);
  }
  void decode(const std::byte* in, float* values, std::uint32_t dim) const noexcept override {
    kernels_.decode_halves(in, values, dim);
  }

 private:
  const Kernels& kernels_ = kernels();
};

// 256 levels of r/128 around zero. Training reads the levels; gradients go straight through.
class FixedR8 final : public Unscaled {
 public:
  explicit FixedR8(Settings& settings) : step_(settings.above_zero("r") / 128.0F) {
    if (step_ < std::numeric_limits<float>::min()) settings.refuse("r", "is too small");
  }

  [[nodiscard]] std::size_t bytes(std::uint32_t dim) const noexcept override { return dim; }
  void encode(const float* values, std::byte* out, std::uint32_t dim) const noexcept override {
    kernels_.encode_levels(values, out, dim, step_);
  }
  void decode(const std::byte* in, float* values, std::uint32_t dim) const noexcept override {
    kernels_.decode_levels(in, values, dim, step_);
  }
  [[nodiscard]] bool is_transparent() const noexcept override { return false; }
  void read(const float* values, float* out, std::uint32_t dim, float) const noexcept override {
    kernels_.round_to_levels(values, out, dim, step_);
  }

 private:
  const Kernels& kernels_ = kernels();
  float step_;
};

// HashNet: training reads amplitude * tanh(scale * w), with a scale that grows until only the sign is left;
// serving keeps the sign, eight values to the byte. Zero and NaN count as negative.
class OneBit final : public Compressor {
 public:
  explicit OneBit(Settings& settings)
      : step_size_(settings.count("step_size")),
        init_scale_(settings.above_zero("init_scale")),
        max_scale_(settings.above_zero("max_scale")),
        amplitude_(settings.above_zero("amplitude")) {}

  [[nodiscard]] std::size_t bytes(std::uint32_t dim) const noexcept override {
    return (static_cast<std::size_t>(dim) + 7) / 8;
  }
  void encode(const float* values, std::byte* out, std::uint32_t dim) const noexcept override {
    std::fill_n(out, bytes(dim), std::byte{0});
    for (std::size_t i = 0; i < dim; ++i) out[i / 8] |= std::byte{values[i] > 0.0F} << (i % 8);
  }
  void decode(const std::byte* in, float* values, std::uint32_t dim) const noexcept override {
    for (std::size_t i = 0; i < dim; ++i) {
      const bool is_positive = ((in[i / 8] >> (i % 8)) & std::byte{1}) != std::byte{0};
      values[i] = is_positive ? amplitude_ : -amplitude_;
    }
  }

  [[nodiscard]] bool is_transparent() const noexcept override { return false; }
  void read(const float* values, float* out, std::uint32_t dim, float scale) const noexcept override {
    for (std::size_t i = 0; i < dim; ++i) out[i] = amplitude_ * std::tanh(scale * values[i]);
  }
  void backward(const float* values, const float* grad, float* out, std::uint32_t dim,
                float scale) const noexcept override {
    for (std::size_t i = 0; i < dim; ++i) {
      const float sign = std::tanh(scale * values[i]);
      out[i] = grad[i] * amplitude_ * scale * (1.0F - sign * sign);
    }
  }
  // The scale moves only at multiples of step_size, then to where the schedule stands.
  [[nodiscard]] float scale_at(std::int64_t step, float current) const noexcept override {
    return step < 0 || step % step_size_ != 0 ? current : scheduled(step);
  }
  [[nodiscard]] float initial_scale() const noexcept override { return scheduled(0); }

 private:
  [[nodiscard]] float scheduled(std::int64_t step) const noexcept {
    const double grown = init_scale_ * std::sqrt(1.0 + 0.005 * static_cast<double>(step));
    return std::min(static_cast<float>(grown), max_scale_);
  }

  std::int64_t step_size_;
  float init_scale_;
  float max_scale_;
  float amplitude_;
};

}  // namespace

std::unique_ptr<Compressor> make_compressor(const PartConfig& config) {
  Settings settings(config);
  std::unique_ptr<Compressor> made;
  if (config.kind == "fp32") {
    made = std::make_unique<Fp32>();
  } else if (config.kind == "fp16") {
    made = std::make_unique<Fp16>();
  } else if (config.kind == "fixed_r8") {
    made = std::make_unique<FixedR8>(settings);
  } else if (config.kind == "one_bit") {
    made = std::make_unique<OneBit>(settings);
  } else {
    throw ConfigError("unknown compressor '" + config.kind + "'");
  }
  settings.expect_all_read();
  return made;
}

}  // namespace engine
