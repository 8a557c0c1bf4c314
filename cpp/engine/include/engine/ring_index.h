// ring_index.h: id -> row number and time, in buckets that stand around a ring. The index in the file of a table image,
// and the place of ids that do not fit their bucket of an Index.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/hash.h"
#include "engine/pages.h"

namespace engine {

// Where an entry stands: bucket * 4 + position. Valid while no entry moves or leaves: an insert moves nothing.
using Slot = std::uint32_t;
inline constexpr Slot kNoSlot = 0xFFFFFFFFU;

class RingIndex {
 public:
  static constexpr std::size_t kWidth = 4;
  static constexpr std::size_t kMostBuckets = 0xFFFFFFFFU / kWidth;

  // Seven slots of eight filled before growing; growing by a quarter keeps at least 70 % of them filled.
  [[nodiscard]] static constexpr bool has_room(std::size_t ids, std::size_t buckets) noexcept {
    return ids * 8 <= buckets * kWidth * 7;
  }

  // Filled from position 0, so a bucket is full exactly when its last position is taken.
  struct alignas(kLineBytes) Bucket {
    std::int64_t ids[kWidth];
    std::uint32_t rows[kWidth];   // row number + 1; 0 = empty, as in fresh memory
    std::uint32_t times[kWidth];  // unix seconds of the row's last update
  };
  static_assert(sizeof(Bucket) == kLineBytes);

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return block_.bytes(); }
  // Bytes that memory_bytes() would grow by to hold `more` further ids.
  [[nodiscard]] std::size_t growth_bytes(std::size_t more) const noexcept;

  // The bucket that an id would like to stand in. Keeps the order of hashes, so growing walks both arrays front to
  // back.
  [[nodiscard]] static std::uint32_t home_in(std::uint64_t hash, std::uint32_t bucket_count) noexcept {
    return static_cast<std::uint32_t>(((hash & 0xFFFFFFFFU) * bucket_count) >> 32);
  }
  [[nodiscard]] static bool is_full(const Bucket& bucket) noexcept { return bucket.rows[kWidth - 1] != 0; }

  [[nodiscard]] Slot find(std::int64_t id) const noexcept {
    std::uint32_t b = home_of(id);
    // Bounded: an index whose buckets are all full must not hold the caller for ever.
    for (std::uint32_t left = bucket_count_; left > 0; --left, b = after(b)) {
      const Bucket& bucket = buckets_[b];
      const std::uint32_t match = matches(bucket, id);
      if (match != 0) {
        const auto i = static_cast<std::uint32_t>(std::countr_zero(match));
        if (bucket.rows[i] != 0) return b * kWidth + i;
      }
      if (!is_full(bucket)) return kNoSlot;
    }
    return kNoSlot;
  }
  [[nodiscard]] std::uint32_t row(Slot slot) const noexcept { return buckets_[slot / kWidth].rows[slot % kWidth] - 1; }
  [[nodiscard]] std::uint32_t time(Slot slot) const noexcept { return buckets_[slot / kWidth].times[slot % kWidth]; }

  // Makes room for `more` further ids. Slots held by the caller are void.
  void reserve(std::size_t more);
  // Adds an absent id; there must be room (reserve).
  void insert(std::int64_t id, std::uint32_t row, std::uint32_t time) noexcept;
  // Removes the entry; later entries may move.
  void erase(Slot slot) noexcept;
  [[nodiscard]] std::span<const Bucket> buckets() const noexcept { return {buckets_, bucket_count_}; }

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
  // A bit for every position with this id. All four together: which one matches is a coin toss that no branch predictor
  // wins. A position behind the last entry may be the ghost of an erased one, so the first match counts, and only if
  // its row is there.
  [[nodiscard]] static std::uint32_t matches(const Bucket& bucket, std::int64_t id) noexcept {
    const auto is = [&](std::uint32_t i) { return static_cast<std::uint32_t>(bucket.ids[i] == id) << i; };
    return is(0) | is(1) | is(2) | is(3);
  }
  [[nodiscard]] std::uint32_t home_of(std::int64_t id) const noexcept {
    return home_in(mix(static_cast<std::uint64_t>(id)), bucket_count_);
  }
  [[nodiscard]] std::uint32_t after(std::uint32_t bucket) const noexcept {
    return bucket + 1 == bucket_count_ ? 0 : bucket + 1;
  }
  [[nodiscard]] std::uint32_t buckets_for(std::size_t ids) const noexcept;

  Block block_;
  Bucket* buckets_ = nullptr;
  std::uint32_t bucket_count_ = 0;
  std::size_t size_ = 0;
};

}  // namespace engine
