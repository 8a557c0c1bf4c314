// kernels.h: the vector instructions that the engine's inner loops use. A process chooses them once.
#pragma once

#include <string_view>
#include <vector>

namespace engine {

// The level in use: "baseline", "avx2" or "avx512". The environment variable MONOLITH_KERNELS forces one. Throws
// ConfigError if its value is not in kernel_levels().
[[nodiscard]] std::string_view kernel_level();

// Levels that this build contains and this processor runs, slowest first. All levels give the same bits.
[[nodiscard]] std::vector<std::string_view> kernel_levels();

}  // namespace engine
