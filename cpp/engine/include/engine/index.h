// index.h: id -> row number of one shard. A bucket is one cache line, so a find is one miss, rarely two.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/hash.h"
#include "engine/pages.h"

namespace engine {

// Where an entry stands: bucket * 4 + position. Valid until the next insert, erase or reserve.
using Slot = std::uint32_t;
inline constexpr Slot kNoSlot = 0xFFFFFFFFU;

class Index {
 public:
  static constexpr std::size_t kWidth = 4;

  // Filled from position 0, so a bucket is full exactly when its last position is taken.
  struct alignas(kLineBytes) Bucket {
    std::int64_t ids[kWidth];
    std::uint32_t rows[kWidth];   // row number + 1; 0 = empty, which is what fresh memory holds
    std::uint32_t times[kWidth];  // unix seconds of the row's last update; scratch while a batch is resolved
  };
  static_assert(sizeof(Bucket) == kLineBytes);

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return block_.bytes(); }
  // Bytes that memory_bytes() would grow by to hold `more` further ids.
  [[nodiscard]] std::size_t growth_bytes(std::size_t more) const noexcept;

  [[nodiscard]] const Bucket* home(std::uint64_t hash) const noexcept { return buckets_ + home_of(hash); }

  [[nodiscard]] Slot find(std::int64_t id, std::uint64_t hash) const noexcept {
    if (bucket_count_ == 0) return kNoSlot;
    for (std::uint32_t b = home_of(hash);; b = after(b)) {
      const Bucket& bucket = buckets_[b];
      // All four at once: which position matches is a coin toss that no branch predictor wins.
      std::uint32_t match = 0;
      for (std::uint32_t i = 0; i < kWidth; ++i) {
        match |= static_cast<std::uint32_t>((bucket.ids[i] == id) & (bucket.rows[i] != 0)) << i;
      }
      if (match != 0) return b * kWidth + static_cast<std::uint32_t>(std::countr_zero(match));
      if (bucket.rows[kWidth - 1] == 0) return kNoSlot;
    }
  }

  [[nodiscard]] std::int64_t id(Slot slot) const noexcept { return buckets_[slot / kWidth].ids[slot % kWidth]; }
  [[nodiscard]] std::uint32_t row(Slot slot) const noexcept { return buckets_[slot / kWidth].rows[slot % kWidth] - 1; }
  [[nodiscard]] std::uint32_t& time(Slot slot) noexcept { return buckets_[slot / kWidth].times[slot % kWidth]; }
  [[nodiscard]] std::uint32_t time(Slot slot) const noexcept { return buckets_[slot / kWidth].times[slot % kWidth]; }

  // Makes room for `more` further ids. True when entries moved: slots held by the caller are void.
  bool reserve(std::size_t more);
  // Adds an absent id; there must be room (reserve).
  Slot insert(std::int64_t id, std::uint64_t hash, std::uint32_t row, std::uint32_t time) noexcept;
  // Removes the entry; others may move.
  void erase(Slot slot) noexcept;
  // Gives memory back when few entries are left.
  void shrink();
  void clear() noexcept;

  // Calls visit(id, row, time) for every entry, in storage order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const Bucket& bucket : buckets()) {
      for (std::size_t i = 0; i < kWidth && bucket.rows[i] != 0; ++i) {
        visit(bucket.ids[i], bucket.rows[i] - 1, bucket.times[i]);
      }
    }
  }

 private:
  [[nodiscard]] std::span<const Bucket> buckets() const noexcept { return {buckets_, bucket_count_}; }
  // Keeps the order of hashes, so growing walks both arrays front to back.
  [[nodiscard]] std::uint32_t home_of(std::uint64_t hash) const noexcept {
    return static_cast<std::uint32_t>(((hash & 0xFFFFFFFFU) * bucket_count_) >> 32);
  }
  [[nodiscard]] std::uint32_t after(std::uint32_t bucket) const noexcept {
    return bucket + 1 == bucket_count_ ? 0 : bucket + 1;
  }
  [[nodiscard]] std::uint32_t buckets_for(std::size_t ids) const noexcept;
  void rebuild(std::uint32_t bucket_count);

  Block block_;
  Bucket* buckets_ = nullptr;
  std::uint32_t bucket_count_ = 0;
  std::size_t size_ = 0;
};

}  // namespace engine
