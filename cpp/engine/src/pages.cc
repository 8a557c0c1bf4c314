// pages.cc: takes the memory of blocks from the heap, from the kernel or out of shared pages, by their size.
#include "engine/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "shared_pages.h"

namespace engine {

namespace {

// From here on memory comes from the kernel and returns to it immediately; the heap would keep blocks that a part
// outgrew.
constexpr std::size_t kMapFromBytes = std::size_t{32} << 10;
// From here on blocks share huge pages: the smaller ones of a table all fit the TLB.
constexpr std::size_t kShareFromBytes = std::size_t{128} << 10;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kArenaBlockBytes = std::size_t{32} << 20;

std::byte* map(std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(data);
}

std::byte* allocate(std::size_t bytes) {
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(kLineBytes, bytes));
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, 0, bytes);
  return data;
}

}  // namespace

std::size_t Block::bytes_for(std::size_t bytes) noexcept {
  if (bytes >= kShareFromBytes) return SharedPages::size_for(bytes);
  const std::size_t unit = bytes >= kMapFromBytes ? kPageBytes : kLineBytes;
  return (bytes + unit - 1) / unit * unit;
}

Block::Block(std::size_t bytes) {
  const std::size_t size = bytes_for(bytes);
  if (size == 0) return;
  if (size >= kShareFromBytes) {
    data_ = SharedPages::instance().take(size);
  } else {
    data_ = size >= kMapFromBytes ? map(size) : allocate(size);
  }
  bytes_ = size;
}

Block::~Block() {
  if (bytes_ >= kShareFromBytes) {
    SharedPages::instance().give(data_, bytes_);
  } else if (bytes_ >= kMapFromBytes) {
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
