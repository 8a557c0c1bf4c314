// index.h: id -> row number of one part. A bucket is one cache line, so a find is one miss, rarely two.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "engine/hash.h"
#include "engine/pages.h"

namespace engine {

// Where an entry stands: bucket * 4 + position. Valid while no entry moves or leaves: an insert moves nothing.
using Slot = std::uint32_t;
inline constexpr Slot kNoSlot = 0xFFFFFFFFU;

class Index {
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
  // Further ids that fit without growing.
  [[nodiscard]] std::size_t room() const noexcept {
    const std::size_t most = std::size_t{bucket_count_} * kWidth * 7 / 8;
    return most > size_ ? most - size_ : 0;
  }

  // The bucket that an id would like to stand in. Keeps the order of hashes, so growing walks both arrays front to
  // back.
  [[nodiscard]] static std::uint32_t home_in(std::uint64_t hash, std::uint32_t bucket_count) noexcept {
    return static_cast<std::uint32_t>(((hash & 0xFFFFFFFFU) * bucket_count) >> 32);
  }
  [[nodiscard]] const Bucket* home(std::uint64_t hash) const noexcept { return buckets_ + home_of(hash); }

  // The row of an id within one bucket, or kNoRow; and whether the search must continue in the next bucket.
  static constexpr std::uint32_t kNoRow = 0xFFFFFFFFU;
  [[nodiscard]] static std::uint32_t row_in(const Bucket& bucket, std::int64_t id) noexcept {
#if defined(__aarch64__)
    // The rows of the matching positions and zeros; a ghost has row 0, so at most one number is not zero.
    const int64x2_t wanted = vdupq_n_s64(id);
    const uint64x2_t low = vceqq_s64(vld1q_s64(bucket.ids), wanted);
    const uint64x2_t high = vceqq_s64(vld1q_s64(bucket.ids + 2), wanted);
    const uint32x4_t match = vuzp1q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high));
    return vmaxvq_u32(vandq_u32(vld1q_u32(bucket.rows), match)) - 1;
#else
    return row_of_match(bucket, matches(bucket, id));
#endif
  }
  // The same, given a bit for every position with this id.
  [[nodiscard]] static std::uint32_t row_of_match(const Bucket& bucket, std::uint32_t match) noexcept {
    // A match with an empty row is a ghost: 0 - 1 is kNoRow.
    const std::uint32_t row = bucket.rows[static_cast<std::uint32_t>(std::countr_zero(match | 8U))] - 1;
    return match == 0 ? kNoRow : row;
  }
  [[nodiscard]] static bool is_full(const Bucket& bucket) noexcept { return bucket.rows[kWidth - 1] != 0; }
  // Fetches the buckets behind a full home bucket that a search is likely to need.
  [[gnu::always_inline]] static void fetch_behind(const Bucket* home) noexcept {
#if defined(__x86_64__)
    // They lie in the page of the home bucket, so that no page walk is needed. A search waits for each one that is
    // late.
    constexpr std::size_t kBuckets = 3;
#else
    constexpr std::size_t kBuckets = 1;
#endif
    for (std::size_t further = 1; further <= kBuckets; ++further) __builtin_prefetch(home + further, 0, 3);
  }
  // The row of an id that is not in its home bucket, which is full, or kNoRow. Calls row_in(bucket) for further
  // buckets. Bounded: an index whose buckets are all full must not hold the caller for ever.
  template <class RowIn>
  [[nodiscard]] static std::uint32_t row_behind(const Bucket* home, std::span<const Bucket> buckets, RowIn&& row_in) {
    const Bucket* bucket = home;
    for (std::size_t left = buckets.size(); left > 1; --left) {
      if (++bucket == buckets.data() + buckets.size()) bucket = buckets.data();
      const std::uint32_t row = row_in(*bucket);
      if (row != kNoRow) return row;
      if (!is_full(*bucket)) return kNoRow;
    }
    return kNoRow;
  }

  [[nodiscard]] Slot find(std::int64_t id, std::uint64_t hash) const noexcept {
    // Bounded: an index whose buckets are all full must not hold the caller for ever.
    std::uint32_t b = home_of(hash);
    for (std::uint32_t left = bucket_count_; left > 0; --left, b = after(b)) {
      const Bucket& bucket = buckets_[b];
      const std::uint32_t match = matches(bucket, id);
      if (match != 0) {
        const auto i = static_cast<std::uint32_t>(std::countr_zero(match));
        if (bucket.rows[i] != 0) return b * kWidth + i;
      }
      if (bucket.rows[kWidth - 1] == 0) return kNoSlot;
    }
    return kNoSlot;
  }

  // The slot of an id within its home bucket; and whether the search must continue in the next one.
  [[nodiscard]] Slot find_at_home(std::int64_t id, std::uint64_t hash, bool& continues) const noexcept {
    if (bucket_count_ == 0) return kNoSlot;
    const std::uint32_t b = home_of(hash);
    const Bucket& bucket = buckets_[b];
    const std::uint32_t match = matches(bucket, id);
    const auto i = static_cast<std::uint32_t>(std::countr_zero(match | 16U)) & 3U;
    const bool is_here = match != 0 && bucket.rows[i] != 0;
    continues = !is_here && bucket.rows[kWidth - 1] != 0;
    return is_here ? b * kWidth + i : kNoSlot;
  }

  // Fetches the bucket of a slot; kNoSlot does no harm.
  void fetch(Slot slot) const noexcept { __builtin_prefetch(buckets_ + slot / kWidth, 1, 3); }

  // Counts the changes of the entries.
  struct History {
    std::uint64_t moves = 0;    // entries moved or left: until the next time, a slot keeps its row number
    std::uint64_t inserts = 0;  // entries came: until the next time, an absent id stays absent
  };
  [[nodiscard]] const History& history() const noexcept { return history_; }

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
  // Uses a whole index in memory that the caller keeps alive; the index may be changed.
  void adopt(std::span<Bucket> buckets, std::size_t ids) noexcept;
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
  [[nodiscard]] std::uint32_t home_of(std::uint64_t hash) const noexcept { return home_in(hash, bucket_count_); }
  [[nodiscard]] std::uint32_t after(std::uint32_t bucket) const noexcept {
    return bucket + 1 == bucket_count_ ? 0 : bucket + 1;
  }
  [[nodiscard]] std::uint32_t buckets_for(std::size_t ids) const noexcept;
  void rebuild(std::uint32_t bucket_count);

  Block block_;
  Bucket* buckets_ = nullptr;
  std::uint32_t bucket_count_ = 0;
  std::size_t size_ = 0;
  History history_;
};

}  // namespace engine
