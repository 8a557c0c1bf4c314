// initializer.cc: constant and uniform first values.
#include "engine/initializer.h"

#include <algorithm>
#include <cmath>

#include "engine/error.h"
#include "engine/hash.h"
#include "settings.h"

namespace engine {
namespace {

class Constant final : public Initializer {
 public:
  explicit Constant(float value) : value_(value) {}

  void fill(std::uint64_t, std::int64_t, float* values, std::uint32_t dim) const noexcept override {
    std::fill_n(values, dim, value_);
  }

 private:
  float value_;
};

// Uniform in [minval, maxval); equal bounds give that value.
class RandomUniform final : public Initializer {
 public:
  explicit RandomUniform(Settings& settings)
      : minval_(settings.number("minval")),
        width_(settings.number("maxval") - minval_),
        largest_(std::max(minval_, std::nextafter(settings.number("maxval"), minval_))) {
    if (width_ < 0.0F) settings.refuse("maxval", "must not be below minval");
    if (!std::isfinite(width_)) settings.refuse("maxval", "is too far from minval");
  }

  // One draw of 64 bits makes two floats of 24. A shorter dim is a prefix of a longer one.
  void fill(std::uint64_t seed, std::int64_t id, float* values, std::uint32_t dim) const noexcept override {
    const std::uint64_t draw = scramble(seed ^ scramble(static_cast<std::uint64_t>(id)));
    for (std::uint32_t i = 0; i < dim; i += 2) {
      const std::uint64_t bits = scramble(draw + i / 2);
      values[i] = place(unit_float(bits));
      if (i + 1 < dim) values[i + 1] = place(unit_float(bits << 24));
    }
  }

 private:
  // The sum may round up to maxval, which is not part of the range.
  [[nodiscard]] float place(float unit) const noexcept { return std::min(minval_ + unit * width_, largest_); }

  float minval_;
  float width_;
  float largest_;
};

}  // namespace

std::unique_ptr<Initializer> make_initializer(const PartConfig& config) {
  Settings settings(config);
  std::unique_ptr<Initializer> made;
  if (config.kind == "zeros") {
    made = std::make_unique<Constant>(0.0F);
  } else if (config.kind == "ones") {
    made = std::make_unique<Constant>(1.0F);
  } else if (config.kind == "constants") {
    made = std::make_unique<Constant>(settings.number("constant"));
  } else if (config.kind == "random_uniform") {
    made = std::make_unique<RandomUniform>(settings);
  } else {
    throw ConfigError("unknown initializer '" + config.kind + "'");
  }
  settings.expect_all_read();
  return made;
}

}  // namespace engine
