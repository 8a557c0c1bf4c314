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

// From here on memory comes from the kernel and returns to it immediately; the heap would keep blocks that a part
// outgrew.
constexpr std::size_t kMapFromBytes = std::size_t{32} << 10;
constexpr std::size_t kArenaBlockBytes = std::size_t{32} << 20;

std::byte* map(std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(data);
}

std::byte* map_huge(std::size_t bytes) {
  // Map a huge page more than asked for, then unmap the bytes outside the aligned range.
  std::byte* begin = map(bytes + kHugePageBytes);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(begin) % kHugePageBytes;
  const std::size_t skipped = past == 0 ? 0 : kHugePageBytes - past;
  if (skipped > 0) ::munmap(begin, skipped);
  std::byte* data = begin + skipped;
  if (skipped < kHugePageBytes) ::munmap(data + bytes, kHugePageBytes - skipped);
  ::madvise(data, bytes, MADV_HUGEPAGE);  // advice only: a kernel without huge pages is slower, not wrong
  return data;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Block::Block(std::size_t bytes) {
  if (bytes == 0) return;
  if (bytes >= kMapFromBytes) {
    bytes_ = round_up(bytes, 4096);
    data_ = bytes_ < kHugePageBytes ? map(bytes_) : map_huge(bytes_);
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
