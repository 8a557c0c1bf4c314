// memory.h: returns freed memory of the heap to the system.
#pragma once

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

namespace serving {

// The heap keeps the freed memory of a retired version for reuse, once per arena. Takes milliseconds.
inline void release_freed_memory() noexcept {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace serving
