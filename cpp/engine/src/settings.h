// settings.h: reads the numbers of a PartConfig once each, and refuses missing, bad and unknown ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>

#include "engine/config.h"
#include "engine/error.h"

namespace engine {

// Read every setting of the kind, then call `expect_all_read`. Only the constructors of parts use it.
class Settings {
 public:
  explicit Settings(const PartConfig& config) : config_(config) {}

  float number(const std::string& name) { return static_cast<float>(read(name)); }

  float at_least_zero(const std::string& name) {
    const float value = number(name);
    if (value < 0.0F) refuse(name, "must be 0 or more");
    return value;
  }

  float above_zero(const std::string& name) {
    const float value = number(name);
    if (value <= 0.0F) refuse(name, "must be above 0");
    return value;
  }

  // A decay rate: in [0, 1), also after rounding to float.
  float fraction(const std::string& name) {
    const float value = number(name);
    if (value < 0.0F || value >= 1.0F) refuse(name, "must be in [0, 1)");
    return value;
  }

  bool flag(const std::string& name) {
    const double value = read(name);
    if (value != 0.0 && value != 1.0) refuse(name, "must be 0 or 1");
    return value == 1.0;
  }

  // 2^53 is where a double stops holding every integer.
  std::int64_t count(const std::string& name) {
    const double value = read(name);
    if (value < 1.0 || value > 0x1p53 || value != std::floor(value)) refuse(name, "must be a positive integer");
    return static_cast<std::int64_t>(value);
  }

  // For checks a single number cannot tell.
  [[noreturn]] void refuse(const std::string& name, const std::string& reason) const {
    throw ConfigError(config_.kind + ": setting '" + name + "' " + reason);
  }

  void expect_all_read() const {
    for (const auto& [name, value] : config_.settings) {
      if (!read_.contains(name)) refuse(name, "is unknown");
    }
  }

 private:
  double read(const std::string& name) {
    const auto found = config_.settings.find(name);
    if (found == config_.settings.end()) refuse(name, "is missing");
    // Every number becomes a float in the end: one that overflows there is as bad as infinity.
    if (!(std::abs(found->second) <= std::numeric_limits<float>::max())) refuse(name, "must be finite");
    read_.insert(name);
    return found->second;
  }

  const PartConfig& config_;
  std::set<std::string> read_;
};

}  // namespace engine
