// partition.h: groups the occurrences of a call by the part of the table that owns them, in stable order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/bags.h"
#include "engine/pages.h"
#include "engine/part.h"
#include "engine/pool.h"

namespace engine {

// Memory that is reused from call to call, until it is released. Its content is not kept when it grows.
template <class T>
class Reused {
 public:
  T* get(std::size_t count) {
    if (count * sizeof(T) > block_.bytes()) {
      block_ = Block();  // before the larger one is taken
      block_ = Block(count * sizeof(T));
    }
    return reinterpret_cast<T*>(block_.data());
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return block_.bytes(); }

 private:
  Block block_;
};

// Units that are grouped together.
struct PartitionPiece {
  UnitRange units;
  std::size_t first = 0;                         // position of its first id
  std::array<std::uint32_t, kParts + 1> runs{};  // its occurrences in order of parts: where each part begins
  std::array<std::size_t, kParts> next{};        // all occurrences in order of parts: its first of each part
};

class Partition {
 public:
  // The occurrences of one part of the table.
  struct Group {
    std::span<const std::int64_t> ids;
    std::span<const std::uint32_t> targets;
  };
  // Collects the occurrences of a part; before, the calls below do not show them. To be called once for each part.
  // Different parts may be collected at the same time.
  Group gather(std::size_t part) const noexcept;
  [[nodiscard]] Group group(std::size_t part) const noexcept {
    const std::size_t count = begin_[part + 1] - begin_[part];
    return {{ids_ + begin_[part], count}, {targets_ + begin_[part], count}};
  }
  [[nodiscard]] std::size_t begin(std::size_t part) const noexcept { return begin_[part]; }
  [[nodiscard]] std::size_t size(std::size_t part) const noexcept { return begin_[part + 1] - begin_[part]; }
  // All occurrences, in order of parts.
  [[nodiscard]] std::span<const std::int64_t> ids() const noexcept { return {ids_, begin_[kParts]}; }
  [[nodiscard]] const std::uint32_t* targets() const noexcept { return targets_; }
  [[nodiscard]] std::span<const PartitionPiece> pieces() const noexcept { return pieces_; }
  // The part of each id of the call. Not for Pooling::kFirst.
  [[nodiscard]] const std::uint8_t* parts() const noexcept { return parts_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept {
    return id_memory_.bytes() + target_memory_.bytes() + part_memory_.bytes();
  }

  // Sorts the pieces of many calls, each for its partition. gather() must follow before this thread sorts others.
  static void group_all(std::span<const Bags> calls, std::span<Partition* const> results, Pool& pool);

 private:
  std::array<std::uint32_t, kParts> count(const Bags& bags, const PartitionPiece& piece) noexcept;
  void sort_piece(const Bags& bags, PartitionPiece& piece) noexcept;
  void place_pieces() noexcept;

  Reused<std::int64_t> id_memory_;
  Reused<std::uint32_t> target_memory_;
  Reused<std::uint8_t> part_memory_;
  std::int64_t* ids_ = nullptr;
  std::uint32_t* targets_ = nullptr;
  std::uint8_t* parts_ = nullptr;
  // The occurrences of each piece in order of parts: in the scratch of the calling thread, or in place.
  std::int64_t* sorted_ids_ = nullptr;
  std::uint32_t* sorted_targets_ = nullptr;
  std::array<std::size_t, kParts + 1> begin_{};
  std::vector<PartitionPiece> pieces_;
};

// The same into partitions that live until this thread's next call.
std::span<const Partition> partition(std::span<const Bags> calls, Pool& pool);

// Memory that this thread keeps for its next partition; and gives it back.
std::size_t partition_scratch_bytes() noexcept;
void release_partition_scratch() noexcept;

}  // namespace engine
