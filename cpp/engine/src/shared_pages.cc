// shared_pages.cc: takes huge pages from the kernel and cuts blocks out of them.
#include "shared_pages.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <tuple>
#include <utility>

#include "engine/pages.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#endif

namespace engine {

namespace {

constexpr std::size_t kRegionBytes = std::size_t{32} << 20;
// From here on sizes are whole huge pages.
constexpr std::size_t kAloneFromBytes = 8 * kHugePageBytes;

std::byte* map_huge(std::size_t bytes) {
  // Map a huge page more than asked for, then unmap the bytes outside the aligned range.
  void* mapped = ::mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(begin) % kHugePageBytes;
  const std::size_t skipped = past == 0 ? 0 : kHugePageBytes - past;
  if (skipped > 0) ::munmap(begin, skipped);
  std::byte* const data = begin + skipped;
  if (skipped < kHugePageBytes) ::munmap(data + bytes, kHugePageBytes - skipped);
  ::madvise(data, bytes, MADV_HUGEPAGE);  // advice only: a kernel without huge pages is slower, not wrong
  return data;
}

}  // namespace

// Places for blocks of one size, side by side.
class SharedPages::Region {
 public:
  explicit Region(std::size_t size)
      : size_(size), places_(std::max<std::size_t>(1, kRegionBytes / size)), data_(map_huge(bytes())) {
    ASAN_POISON_MEMORY_REGION(data_, bytes());
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    ASAN_UNPOISON_MEMORY_REGION(data_, bytes());
    ::munmap(data_, bytes());
  }

  [[nodiscard]] bool is_free() const noexcept { return used_ == 0; }
  [[nodiscard]] bool has(const std::byte* data) const noexcept { return data >= data_ && data < data_ + bytes(); }
  [[nodiscard]] bool has_room() const noexcept { return used_ < places_.size(); }
  // The first free place, so that used ones lie close together; and whether a block was there before. There is room.
  std::pair<std::byte*, bool> use() noexcept {
    const auto free = std::find_if(places_.begin(), places_.end(), [](Place place) { return place != Place::kUsed; });
    ++used_;
    return {data_ + static_cast<std::size_t>(free - places_.begin()) * size_,
            std::exchange(*free, Place::kUsed) == Place::kLeft};
  }
  void leave(const std::byte* data) noexcept {
    const std::size_t begin = static_cast<std::size_t>(data - data_);
    --used_;
    places_[begin / size_] = Place::kLeft;
    for (std::size_t page = begin / kHugePageBytes; page * kHugePageBytes < begin + size_; ++page) {
      const std::size_t first = page * kHugePageBytes / size_;
      const std::size_t last = std::min(((page + 1) * kHugePageBytes - 1) / size_, places_.size() - 1);
      const auto is_used = [](Place place) { return place == Place::kUsed; };
      if (std::any_of(places_.data() + first, places_.data() + last + 1, is_used)) continue;
      ::madvise(data_ + page * kHugePageBytes, kHugePageBytes, MADV_DONTNEED);
    }
  }

 private:
  enum class Place : std::uint8_t { kFresh, kLeft, kUsed };

  [[nodiscard]] std::size_t bytes() const noexcept {
    return (places_.size() * size_ + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  }

  std::size_t size_;
  std::vector<Place> places_;
  std::size_t used_ = 0;
  std::byte* data_;
};

SharedPages& SharedPages::instance() {
  // Never destroyed: tables of other static objects may outlive it.
  static SharedPages& pages = *new SharedPages();
  return pages;
}

// A fork while another thread holds the mutex would leave it locked in the child.
SharedPages::SharedPages() {
  ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().mutex_.unlock(); });
}

std::size_t SharedPages::size_for(std::size_t bytes) noexcept {
  const std::size_t unit = bytes < kAloneFromBytes ? std::bit_floor(bytes) / 8 : kHugePageBytes;
  return (bytes + unit - 1) / unit * unit;
}

std::byte* SharedPages::take(std::size_t size) {
  std::byte* data = nullptr;
  bool is_dirty = false;
  {
    const std::lock_guard lock(mutex_);
    auto& regions = regions_[size];
    const auto at = std::find_if(regions.begin(), regions.end(), [](const auto& region) { return region->has_room(); });
    Region& region = at != regions.end() ? **at : *regions.emplace_back(std::make_unique<Region>(size));
    std::tie(data, is_dirty) = region.use();
  }
  ASAN_UNPOISON_MEMORY_REGION(data, size);
  if (is_dirty) std::memset(data, 0, size);
  return data;
}

void SharedPages::give(std::byte* data, std::size_t size) noexcept {
  ASAN_POISON_MEMORY_REGION(data, size);
  std::unique_ptr<Region> ended;  // unmapped without the lock
  const std::lock_guard lock(mutex_);
  auto& regions = regions_.find(size)->second;
  const auto at = std::find_if(regions.begin(), regions.end(), [=](const auto& region) { return region->has(data); });
  (*at)->leave(data);
  if (!(*at)->is_free()) return;
  ended = std::move(*at);
  regions.erase(at);
}

}  // namespace engine
