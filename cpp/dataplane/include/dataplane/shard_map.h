// shard_map.h: which shard an id belongs to: uint64(id) mod shards. The Python twin is monolith.ps.shard_map.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dataplane {

class ShardMap {
 public:
  // `shards` is at least 1.
  explicit ShardMap(std::uint64_t shards) noexcept : shards_(shards) {}

  [[nodiscard]] std::uint64_t shards() const noexcept { return shards_; }
  [[nodiscard]] std::uint64_t shard_of(std::int64_t id) const noexcept {
    const auto number = static_cast<std::uint64_t>(id);
    return std::has_single_bit(shards_) ? number & (shards_ - 1) : number % shards_;
  }
  // The place of the first id of another shard; ids.size() when all are of this one.
  [[nodiscard]] std::size_t first_foreign_id(std::span<const std::int64_t> ids, std::uint64_t shard) const noexcept {
    if (shards_ == 1) return ids.size();
    std::size_t at = 0;
    while (at < ids.size() && shard_of(ids[at]) == shard) ++at;
    return at;
  }

 private:
  std::uint64_t shards_;
};

}  // namespace dataplane
