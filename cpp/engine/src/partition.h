// partition.h: groups the occurrences of a call by the part of the table that owns them, in stable order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/bags.h"
#include "engine/part.h"
#include "engine/pool.h"

namespace engine {

// Memory that is reused from call to call, until it is released. Its content is not kept when it grows.
template <class T>
class Reused {
 public:
  T* get(std::size_t count) {
    if (count > capacity_) {
      data_ = std::make_unique_for_overwrite<T[]>(count);
      capacity_ = count;
    }
    return data_.get();
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return capacity_ * sizeof(T); }
  void release() noexcept {
    data_.reset();
    capacity_ = 0;
  }

 private:
  std::unique_ptr<T[]> data_;
  std::size_t capacity_ = 0;
};

struct Partition {
  // The occurrences of one part of the table.
  struct Group {
    std::span<const std::int64_t> ids;
    std::span<const std::uint32_t> targets;
  };
  [[nodiscard]] Group group(std::size_t part) const noexcept {
    const std::size_t count = begin[part + 1] - begin[part];
    return {{ids + begin[part], count}, {targets + begin[part], count}};
  }

  std::int64_t* ids = nullptr;
  std::uint32_t* targets = nullptr;
  std::array<std::size_t, kParts + 1> begin{};
};

// Partitions many calls together. The result lives until this thread's next call.
std::span<const Partition> partition(std::span<const Bags> calls, Pool& pool);

// Memory that this thread keeps for its next partition; and gives it back.
std::size_t partition_scratch_bytes() noexcept;
void release_partition_scratch() noexcept;

}  // namespace engine
