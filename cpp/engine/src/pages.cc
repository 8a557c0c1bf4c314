// pages.cc: asks the kernel for memory and advises huge pages.
#include "engine/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace engine {

namespace {

// Below this a mapping of its own would waste more in page rounding than huge pages could win.
constexpr std::size_t kMapFromBytes = std::size_t{256} << 10;
constexpr std::size_t kArenaBlockBytes = std::size_t{32} << 20;

std::byte* map_aligned(std::size_t bytes) {
  // Map a huge page more than asked for, then give back what lies outside the aligned range.
  const std::size_t mapped = bytes + kHugePageBytes;
  void* raw = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = (begin + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  if (aligned > begin) ::munmap(raw, aligned - begin);
  const std::uintptr_t end = begin + mapped;
  if (end > aligned + bytes) ::munmap(reinterpret_cast<void*>(aligned + bytes), end - (aligned + bytes));
  auto* data = reinterpret_cast<std::byte*>(aligned);
  ::madvise(data, bytes, MADV_HUGEPAGE);  // advice only: a kernel without huge pages is slower, not wrong
  return data;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Block::Block(std::size_t bytes) {
  if (bytes == 0) return;
  if (bytes >= kMapFromBytes) {
    bytes_ = round_up(bytes, 4096);
    data_ = map_aligned(bytes_);
    return;
  }
  bytes_ = round_up(bytes, kLineBytes);
  data_ = static_cast<std::byte*>(std::aligned_alloc(kLineBytes, bytes_));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_, 0, bytes_);
}

Block::~Block() {
  if (bytes_ >= kMapFromBytes) {
    ::munmap(data_, bytes_);
  } else {
    std::free(data_);
  }
}

SlabArena::Run SlabArena::take(std::size_t slabs) {
  const std::lock_guard lock(mutex_);
  if (blocks_.empty() || used_ + slab_bytes_ > blocks_.back().bytes()) {
    blocks_.emplace_back(std::max<std::size_t>(1, kArenaBlockBytes / slab_bytes_) * slab_bytes_);
    used_ = 0;
  }
  const Run run{.data = blocks_.back().data() + used_,
                .slabs = std::min(slabs, (blocks_.back().bytes() - used_) / slab_bytes_)};
  used_ += run.slabs * slab_bytes_;
  return run;
}

void SlabArena::clear() {
  const std::lock_guard lock(mutex_);
  blocks_.clear();
  used_ = 0;
}

}  // namespace engine
