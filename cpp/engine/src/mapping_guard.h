// mapping_guard.h: keeps the process alive when a mapped file is cut off by another program.
//
// An access beyond the end of a mapped file raises SIGBUS, which ends the process. While a guard lives, the handler
// puts a page of zeros there instead and marks the guard, so that the reader can refuse the result. Signals of other
// addresses go to the handler that was there before.
#pragma once

#include <cstddef>

namespace engine {

class MappingGuard {
 public:
  // Guards `bytes` from `data`. With more than kMostGuards at a time the mapping is not guarded.
  MappingGuard(const std::byte* data, std::size_t bytes) noexcept;
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  // Whether a page of the file was missing when it was read.
  [[nodiscard]] bool is_damaged() const noexcept;

  static constexpr std::size_t kMostGuards = 4096;

 private:
  std::size_t slot_ = kMostGuards;
};

}  // namespace engine
