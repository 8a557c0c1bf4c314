// index.h: id -> row number of one part. A find reads one cache line, rarely two.
//
// hash_id() turns an id into a key without loss. The bucket of an entry tells the top of the key's low half, so the
// entry stores only the rest: seven entries of nine bytes fill a line. An id whose bucket is full stands in one of the
// next buckets, and its entry tells how far it is from home. The few ids that stand nowhere near are in the spill.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "engine/hash.h"
#include "engine/pages.h"
#include "engine/ring_index.h"

namespace engine {

class Index {
 public:
  static constexpr std::size_t kWidth = 7;
  static constexpr std::uint32_t kNoRow = 0xFFFFFFFFU;
  // Row numbers then have at most 32 bits.
  static constexpr std::size_t kMostBuckets = (std::size_t{1} << 29) - 1;

  // A bucket holds 4.75 ids on average before growing. Growing by a quarter leaves 3.8.
  static constexpr std::size_t kIdsOfFourBuckets = 19;
  [[nodiscard]] static constexpr bool has_room(std::size_t ids, std::size_t buckets) noexcept {
    return ids * 4 <= buckets * kIdsOfFourBuckets;
  }

  // Filled from position 0. From high to low, a word holds the rest of the key except a byte, four bits of distance
  // from home, and row number + 1 under row_mask; 0 = empty.
  struct alignas(kLineBytes) Bucket {
    std::uint64_t words[kWidth];
    std::uint8_t bytes[kWidth];  // the other byte of the rest
    std::uint8_t reach;          // the largest distance of an id of this bucket; kSpilled: an id may be in the spill
  };
  static_assert(sizeof(Bucket) == kLineBytes);
  static_assert(std::endian::native == std::endian::little);
  static constexpr std::uint8_t kMostDistance = 15;
  static constexpr std::uint8_t kSpilled = 16;

  // Where an id would like to stand.
  struct Place {
    const Bucket* bucket;
    std::uint64_t word;  // without distance and row
    std::uint8_t byte;
  };

  // The positions of a bucket with a given byte.
  class Matches {
   public:
    [[gnu::always_inline]] Matches(const Bucket& bucket, std::uint8_t byte) noexcept {
#if defined(__SSE2__)
      const __m128i last = _mm_load_si128(reinterpret_cast<const __m128i*>(bucket.words + kWidth - 1));
      const __m128i equal = _mm_cmpeq_epi8(last, _mm_set1_epi8(static_cast<char>(byte)));
      bits_ = static_cast<std::uint32_t>(_mm_movemask_epi8(equal)) & kPositions;
#else
      std::uint64_t bytes;
      std::memcpy(&bytes, bucket.words + kWidth, sizeof bytes);
      // The high bit of each byte that is zero: adding to the low bits carries into it for all others.
      constexpr std::uint64_t kLow = 0x7F7F7F7F7F7F7F7FULL;
      const std::uint64_t difference = bytes ^ (0x0101010101010101ULL * byte);
      bits_ = ~(((difference & kLow) + kLow) | difference) & kPositions;
#endif
    }
    [[nodiscard, gnu::always_inline]] bool any() const noexcept { return bits_ != 0; }
    // The first one; there must be one.
    [[nodiscard, gnu::always_inline]] std::uint32_t first() const noexcept {
      return static_cast<std::uint32_t>(std::countr_zero(bits_)) / kBitsEach - kBefore;
    }
    void drop_first() noexcept { bits_ &= bits_ - 1; }

   private:
#if defined(__SSE2__)
    using Bits = std::uint32_t;
    static constexpr std::uint32_t kBitsEach = 1;
    static constexpr std::uint32_t kBefore = 8;  // bytes of the last word, which are compared too
    static constexpr Bits kPositions = 0x7F00;
#else
    using Bits = std::uint64_t;
    static constexpr std::uint32_t kBitsEach = 8;
    static constexpr std::uint32_t kBefore = 0;
    static constexpr Bits kPositions = 0x0080808080808080ULL;
#endif
    Bits bits_;
  };

  // The buckets. Valid until the index grows, shrinks or is cleared.
  struct View {
    const Bucket* buckets;  // at least one
    std::uint32_t bucket_count;
    std::uint32_t row_mask;   // 4 bits more than bucket_count has behind its first one
    std::uint64_t rest_mask;  // the bits of a word that hold the rest of the key

    [[nodiscard, gnu::always_inline]] Place place(std::int64_t id) const noexcept { return place(hash_id(id)); }
    [[nodiscard, gnu::always_inline]] Place place(const IdHash& hash) const noexcept {
      const std::uint64_t product = std::uint64_t{hash.spread()} * bucket_count;
      // Keys of one bucket that agree in their upper half have products that differ by bucket_count or more.
      const std::uint64_t rest = std::uint64_t{hash.upper()} << 32 | static_cast<std::uint32_t>(product);
      return {.bucket = buckets + (product >> 32),
              .word = (rest << 8) & rest_mask,
              .byte = static_cast<std::uint8_t>(hash.upper() >> 24)};
    }

    // The row of the id in its bucket, or kNoRow; and whether find_displaced() may know more. Without a branch on the
    // position: which one holds the id is a toss that no branch predictor wins.
    [[nodiscard, gnu::always_inline]] std::uint32_t row_at(const Place& place, bool& continues) const noexcept {
      return row_in(*place.bucket, place, 0, continues);
    }
    // The same in another bucket, for an id that is that far from home.
    [[nodiscard, gnu::always_inline]] std::uint32_t row_in(const Bucket& bucket, const Place& place,
                                                           std::uint64_t distance, bool& continues) const noexcept {
      const Matches equal(bucket, place.byte);
      if (!equal.any()) [[unlikely]] {
        continues = bucket.reach != 0;
        return kNoRow;
      }
      const std::uint64_t word = place.word + distance * (std::uint64_t{row_mask} + 1);
      const std::uint64_t row = (bucket.words[equal.first()] ^ word) - 1;
      continues = row >= row_mask;
      return continues ? kNoRow : static_cast<std::uint32_t>(row);
    }
  };
  [[nodiscard]] const View& view() const noexcept { return view_; }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  // Ids that are not in their bucket, and those of them that are in the spill.
  [[nodiscard]] std::size_t displaced() const noexcept { return displaced_ + spill_.size(); }
  [[nodiscard]] std::size_t spilled() const noexcept { return spill_.size(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return block_.bytes() + spill_.memory_bytes(); }
  // Bytes that memory_bytes() would grow by to hold `more` further ids, if none spills.
  [[nodiscard]] std::size_t growth_bytes(std::size_t more) const noexcept;
  // Further ids that fit without growing, if none spills.
  [[nodiscard]] std::size_t room() const noexcept {
    const std::size_t most = std::size_t{view_.bucket_count} * kIdsOfFourBuckets / 4;
    return most > size_ ? most - size_ : 0;
  }

  // Fetch the first bucket of a find, and the next one. Inline: the compiler drops other calls that only fetch.
  [[gnu::always_inline]] void fetch(std::int64_t id) const noexcept {
    __builtin_prefetch(view_.place(id).bucket, 0, 3);
  }
  [[gnu::always_inline]] static void fetch_next(const Place& place) noexcept {
    __builtin_prefetch(place.bucket + 1, 0, 3);
  }
  // The row of an id, or kNoRow.
  [[nodiscard]] std::uint32_t find(std::int64_t id) const noexcept { return entry_of(id).row; }
  // The same for an id that is probably in the next bucket.
  [[nodiscard, gnu::always_inline]] std::uint32_t find_displaced(const Place& place, std::int64_t id) const noexcept {
    const bool is_last = place.bucket + 1 >= view_.buckets + view_.bucket_count;  // also of an index without ids
    const Bucket& next = *(is_last ? view_.buckets : place.bucket + 1);
    bool continues = false;
    const std::uint32_t row = view_.row_in(next, place, 1, continues);
    return row != kNoRow ? row : find(id);
  }

  // Counts the changes of the entries.
  struct History {
    std::uint64_t leaves = 0;   // until the next time, a present id keeps its row number
    std::uint64_t inserts = 0;  // until the next time, an absent id stays absent
  };
  [[nodiscard]] const History& history() const noexcept { return history_; }

  // Makes room for `more` further ids.
  void reserve(std::size_t more) {
    if (!has_room(size_ + more, view_.bucket_count)) grow(more);
  }
  // Adds an absent id; there must be room (reserve). Throws only if the spill cannot grow.
  void insert(std::int64_t id, std::uint32_t row) { insert(hash_id(id), row); }
  // Removes a present id.
  void erase(std::int64_t id) noexcept;
  // Gives memory back when few entries are left, and brings ids home when many are not. Without memory for a new index
  // nothing changes.
  void shrink();
  void clear() noexcept;
  // Takes the entries of another index instead of those that it has.
  void adopt(Index&& other) noexcept;

  // Calls visit(id, row) for every entry, in storage order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for_each_key([&](const IdHash& key, std::uint32_t row) { visit(id_of(key.key), row); });
    spill_.for_each([&](std::int64_t id, std::uint32_t row, std::uint32_t) { visit(id, row); });
  }

 private:
  static const Bucket kNoBucket;

  // Where an id stands.
  struct Entry {
    std::uint32_t row = kNoRow;
    std::uint32_t bucket = 0;
    std::uint32_t position = kWidth;  // kWidth: in the spill, or absent
  };
  [[nodiscard]] Entry entry_of(std::int64_t id) const noexcept;
  [[nodiscard]] Bucket* buckets() noexcept { return reinterpret_cast<Bucket*>(block_.data()); }
  [[nodiscard]] std::uint32_t after(std::uint32_t bucket) const noexcept {
    return bucket + 1 == view_.bucket_count ? 0 : bucket + 1;
  }
  [[nodiscard]] std::uint8_t distance_of(std::uint64_t word) const noexcept {
    return static_cast<std::uint8_t>(word >> row_bits_) & kMostDistance;
  }
  // Calls visit(key, row) for every entry in a bucket.
  template <class Visit>
  void for_each_key(Visit&& visit) const;
  [[nodiscard]] std::uint32_t buckets_for(std::size_t ids) const noexcept;
  void grow(std::size_t more);
  void rebuild(std::uint32_t bucket_count);
  void insert(const IdHash& hash, std::uint32_t row);

  Block block_;
  View view_{.buckets = &kNoBucket, .bucket_count = 0, .row_mask = 15, .rest_mask = ~std::uint64_t{0xFF}};
  std::uint32_t row_bits_ = 4;
  std::size_t size_ = 0;
  std::size_t displaced_ = 0;
  std::size_t settled_ = 0;    // displaced ids after the last rebuild
  std::uint32_t row_end_ = 0;  // row numbers are below it
  RingIndex spill_;
  History history_;
};

template <class Visit>
void Index::for_each_key(Visit&& visit) const {
  const std::uint64_t count = view_.bucket_count;
  const std::uint64_t reciprocal = count == 0 ? 0 : ~std::uint64_t{0} / count;
  for (std::uint64_t b = 0; b < count; ++b) {
    const Bucket& bucket = view_.buckets[b];
    for (std::size_t i = 0; i < kWidth && bucket.words[i] != 0; ++i) {
      const std::uint64_t word = bucket.words[i];
      const std::uint64_t rest = word & view_.rest_mask;
      const auto upper = static_cast<std::uint32_t>(rest >> 40 | std::uint32_t{bucket.bytes[i]} << 24);
      const std::uint64_t distance = distance_of(word);
      const std::uint64_t home = b >= distance ? b - distance : b + count - distance;
      // The number whose product with bucket_count begins with these bits: the first multiple from here.
      const std::uint64_t least = home << 32 | static_cast<std::uint32_t>(rest >> 8);
      auto spread = static_cast<std::uint64_t>((static_cast<Product>(least) * reciprocal) >> 64);
      while (spread * count < least) ++spread;  // at most three times: the reciprocal is rounded down
      const IdHash key{.mixed = 0, .key = key_of(upper, static_cast<std::uint32_t>(spread))};
      visit(key, static_cast<std::uint32_t>(word & view_.row_mask) - 1);
    }
  }
}

}  // namespace engine
