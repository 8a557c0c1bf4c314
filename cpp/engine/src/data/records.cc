// records.cc: the pool that buffers come from.
#include "engine/data/records.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "engine/pages.h"

#include "memory_check.h"

namespace engine::data {

namespace {

// Free memory by capacity class. Classes are powers of two and one step between, so at most a third is slack.
class Pool {
 public:
  static Pool& instance() {
    static Pool* pool = new Pool;  // never destroyed: buffers may outlive static destruction
    return *pool;
  }

  static std::size_t rounded(std::size_t size) noexcept {
    if (kChecksMemory) return std::max<std::size_t>(size, 1);  // not pooled: the allocator itself watches the ends
    const std::size_t power = std::bit_ceil(std::max(size, kSmallest));
    return size <= power / 4 * 3 ? power / 4 * 3 : power;
  }

  std::byte* take(std::size_t capacity) {
    {
      const std::lock_guard lock(mutex_);
      // The newest of that size: its pages are the likeliest to be in a cache.
      for (auto free = free_.rbegin(); free != free_.rend(); ++free) {
        if (free->capacity != capacity) continue;
        std::byte* data = free->data;
        free_.erase(std::next(free).base());
        held_ -= capacity;
        return data;
      }
    }
    auto* data = static_cast<std::byte*>(::operator new(capacity, alignment(capacity)));
    // The arrays of a batch are written side by side, a page each: small pages would not fit the translation cache.
    if (capacity >= kHugePageBytes) madvise(data, capacity / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
    return data;
  }

  // A full pool frees its oldest buffers first, so that sizes without callers leave it.
  void give_back(std::byte* data, std::size_t capacity) noexcept {
    Free freed{};
    do {
      freed = {data, capacity};
      if (const std::lock_guard lock(mutex_); !kChecksMemory && capacity <= kMostBytes) {
        if (held_ + capacity <= kMostBytes && free_.size() < kMostBuffers) {
          free_.push_back(freed);  // within the reserve: cannot throw
          held_ += capacity;
          forbid(data, capacity);
          return;
        }
        freed = free_.front();
        free_.erase(free_.begin());
        held_ -= freed.capacity;
      }
      allow(freed.data, freed.capacity);
      ::operator delete(freed.data, alignment(freed.capacity));
    } while (freed.data != data);
  }

  std::size_t held() noexcept {
    const std::lock_guard lock(mutex_);
    return held_;
  }

 private:
  static constexpr std::size_t kSmallest = 4096;
  static std::align_val_t alignment(std::size_t capacity) noexcept {
    return std::align_val_t{capacity >= kHugePageBytes ? kHugePageBytes : kLineBytes};
  }

  static constexpr std::size_t kMostBytes = std::size_t{256} << 20;
  static constexpr std::size_t kMostBuffers = 1024;

  struct Free {
    std::byte* data;
    std::size_t capacity;
  };

  Pool() { free_.reserve(kMostBuffers); }

  std::mutex mutex_;
  std::vector<Free> free_;
  std::size_t held_ = 0;
};

}  // namespace

std::shared_ptr<Buffer> Buffer::take(std::size_t size) {
  const std::size_t capacity = Pool::rounded(size);
  std::byte* data = Pool::instance().take(capacity);
  allow(data, size);
  forbid(data + size, capacity - size);
  return std::shared_ptr<Buffer>(new Buffer(data, size, capacity));
}

std::size_t Buffer::pooled_bytes() noexcept { return Pool::instance().held(); }

Buffer::~Buffer() { Pool::instance().give_back(data_, capacity_); }

}  // namespace engine::data
