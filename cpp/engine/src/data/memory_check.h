// memory_check.h: tells AddressSanitizer which bytes of pooled memory are in use. Does nothing in other builds. Private
// to the engine.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define MONOLITH_HAS_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MONOLITH_HAS_ASAN
#endif
#endif

#ifdef MONOLITH_HAS_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace engine::data {

#ifdef MONOLITH_HAS_ASAN
// Pieces are not shared by several arrays, so that a step over the end of one is seen.
inline constexpr bool kChecksMemory = true;
inline void forbid(const std::byte* data, std::size_t size) noexcept { ASAN_POISON_MEMORY_REGION(data, size); }
inline void allow(const std::byte* data, std::size_t size) noexcept { ASAN_UNPOISON_MEMORY_REGION(data, size); }
#else
inline constexpr bool kChecksMemory = false;
inline void forbid(const std::byte*, std::size_t) noexcept {}
inline void allow(const std::byte*, std::size_t) noexcept {}
#endif

}  // namespace engine::data
