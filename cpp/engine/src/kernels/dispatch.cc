// dispatch.cc: chooses the level of the kernels, once per process.
#include <atomic>
#include <cstdlib>
#include <string>

#include "engine/error.h"
#include "engine/half.h"
#include "engine/kernels.h"
#include "kernels.h"

namespace engine {

namespace {

std::atomic<const Kernels*> in_use{nullptr};

const Kernels& choose() {
  const std::vector<const Kernels*> levels = runnable_kernels();
  const char* const wanted = std::getenv("MONOLITH_KERNELS");
  if (wanted == nullptr || *wanted == '\0') return *levels.back();
  std::string names;
  for (const Kernels* level : levels) {
    if (std::string_view(level->level) == wanted) return *level;
    names += std::string(names.empty() ? "" : ", ") + level->level;
  }
  throw ConfigError("MONOLITH_KERNELS is '" + std::string(wanted) + "', expected a level of this processor (" + names +
                    "); unset it to take the last one");
}

}  // namespace

std::vector<const Kernels*> runnable_kernels() {
  std::vector<const Kernels*> levels = {&kBaselineKernels};
  // Each test names exactly the instructions that CMakeLists.txt lets the compiler use for that level.
#if defined(ENGINE_HAS_AVX2)
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0 &&
      __builtin_cpu_supports("bmi2") != 0) {
    levels.push_back(&kAvx2Kernels);
  }
#endif
#if defined(ENGINE_HAS_AVX512)
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    levels.push_back(&kAvx512Kernels);
  }
#endif
  return levels;
}

const Kernels& kernels() {
  const Kernels* chosen = in_use.load(std::memory_order_relaxed);
  if (chosen == nullptr) {
    // Threads that get here together choose the same level.
    chosen = &choose();
    in_use.store(chosen, std::memory_order_relaxed);
  }
  return *chosen;
}

void use_kernels(const Kernels& level) noexcept { in_use.store(&level, std::memory_order_relaxed); }

std::string_view kernel_level() { return kernels().level; }

std::vector<std::string_view> kernel_levels() {
  std::vector<std::string_view> names;
  for (const Kernels* level : runnable_kernels()) names.emplace_back(level->level);
  return names;
}

void encode_halves(const float* values, std::byte* out, std::size_t count) {
  kernels().encode_halves(values, out, count);
}

void decode_halves(const std::byte* in, float* values, std::size_t count) {
  kernels().decode_halves(in, values, count);
}

}  // namespace engine
