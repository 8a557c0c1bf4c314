// ring_index.cc: growth and removal in an index around a ring.
#include "engine/ring_index.h"

#include <algorithm>

#include "engine/error.h"

namespace engine {

namespace {

// A small index doubles: its slack is nothing, its rebuilds are many.
constexpr std::size_t kSmallBuckets = 1024;

}  // namespace

std::uint32_t RingIndex::buckets_for(std::size_t ids) const noexcept {
  if (has_room(ids, bucket_count_)) return bucket_count_;
  const std::size_t grown = bucket_count_ < kSmallBuckets ? bucket_count_ * 2 : bucket_count_ + bucket_count_ / 4;
  const std::size_t needed = ids * 8 / (kWidth * 7) + 1;
  const std::size_t buckets = Block::bytes_for(std::max(grown, needed) * sizeof(Bucket)) / sizeof(Bucket);
  return static_cast<std::uint32_t>(std::min(buckets, kMostBuckets));
}

std::size_t RingIndex::growth_bytes(std::size_t more) const noexcept {
  return (buckets_for(size_ + more) - bucket_count_) * sizeof(Bucket);
}

void RingIndex::reserve(std::size_t more) {
  const std::uint32_t wanted = buckets_for(size_ + more);
  if (wanted == bucket_count_) return;
  if (!has_room(size_ + more, wanted)) throw CapacityExceeded("a part holds at most 3.7e9 ids; split the table");
  Block fresh(std::size_t{wanted} * sizeof(Bucket));
  const std::span<const Bucket> old = buckets();
  buckets_ = reinterpret_cast<Bucket*>(fresh.data());
  bucket_count_ = wanted;
  size_ = 0;
  for (const Bucket& bucket : old) {
    for (std::size_t i = 0; i < kWidth && bucket.rows[i] != 0; ++i) {
      insert(bucket.ids[i], bucket.rows[i] - 1, bucket.times[i]);
    }
  }
  block_ = std::move(fresh);
}

void RingIndex::insert(std::int64_t id, std::uint32_t row, std::uint32_t time) noexcept {
  std::uint32_t b = home_of(id);
  while (is_full(buckets_[b])) b = after(b);
  Bucket& bucket = buckets_[b];
  std::uint32_t i = 0;
  while (bucket.rows[i] != 0) ++i;
  bucket.ids[i] = id;
  bucket.rows[i] = row + 1;
  bucket.times[i] = time;
  ++size_;
}

void RingIndex::erase(Slot slot) noexcept {
  --size_;
  std::uint32_t hole = slot / kWidth;
  std::uint32_t position = slot % kWidth;
  for (;;) {
    Bucket& bucket = buckets_[hole];
    std::uint32_t last = kWidth - 1;
    while (bucket.rows[last] == 0) --last;
    bucket.ids[position] = bucket.ids[last];
    bucket.rows[position] = bucket.rows[last];
    bucket.times[position] = bucket.times[last];
    bucket.rows[last] = 0;
    if (last != kWidth - 1) return;
    // The bucket was full, so entries that wanted to live here may stand further on: bring one home.
    bool moved = false;
    for (std::uint32_t b = after(hole); !moved && b != hole; b = after(b)) {
      Bucket& later = buckets_[b];
      const bool was_full = is_full(later);
      for (std::uint32_t i = 0; i < kWidth && later.rows[i] != 0; ++i) {
        const std::uint32_t home = home_of(later.ids[i]);
        // Distances run around the ring: the entry may move when its home is not after the hole.
        const std::uint32_t from_home = b >= home ? b - home : b + bucket_count_ - home;
        const std::uint32_t from_hole = b >= hole ? b - hole : b + bucket_count_ - hole;
        if (from_home < from_hole) continue;
        bucket.ids[last] = later.ids[i];
        bucket.rows[last] = later.rows[i];
        bucket.times[last] = later.times[i];
        hole = b;
        position = i;
        moved = true;
        break;
      }
      if (!moved && !was_full) return;
    }
    if (!moved) return;
  }
}

}  // namespace engine
