// pages.h: zeroed memory for tables: large blocks share huge pages, small ones come from the heap.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace engine {

inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// A zeroed, line-aligned block of memory. Throws std::bad_alloc.
class Block {
 public:
  Block() = default;
  explicit Block(std::size_t bytes);
  // The size of a block for so many bytes.
  [[nodiscard]] static std::size_t bytes_for(std::size_t bytes) noexcept;
  Block(Block&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Block();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Hands out equal slabs cut from large blocks, so that slabs smaller than a huge page still lie in one. Concurrent.
class SlabArena {
 public:
  explicit SlabArena(std::size_t slab_bytes) : slab_bytes_(slab_bytes) {}
  // Slabs that lie one after the other.
  struct Run {
    std::byte* data;
    std::size_t slabs;
  };
  // At least one slab, at most as many as asked for.
  Run take(std::size_t slabs);
  [[nodiscard]] std::size_t slab_bytes() const noexcept { return slab_bytes_; }
  // Returns all memory to the system. Exclusive; every slab handed out dies.
  void clear();

 private:
  std::size_t slab_bytes_;
  std::mutex mutex_;
  std::vector<Block> blocks_;
  std::size_t used_ = 0;  // bytes handed out of the last block
};

}  // namespace engine
