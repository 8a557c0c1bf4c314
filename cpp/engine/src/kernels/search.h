// search.h: kernels that search the index of a table. Included by kernels only, hence unnamed.
//
// Both orders hide the wait for memory, and give the same rows. Processors differ in how many page walks overlap.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "../rows.h"
#include "engine/hash.h"
#include "engine/index.h"
#include "engine/part.h"
#include "kernels.h"

namespace engine {
namespace {

[[gnu::always_inline]] inline std::uint32_t row_in_bucket(const Index::Bucket& bucket, std::int64_t id) noexcept {
#if defined(__AVX2__)
  const __m256i ids = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bucket.ids));
  const __m256i match = _mm256_cmpeq_epi64(ids, _mm256_set1_epi64x(id));
  return Index::row_of_match(bucket, static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(match))));
#else
  return Index::row_in(bucket, id);
#endif
}

// The state of a search for some ids, which stand at their number modulo kRing.
template <std::size_t kRing>
class HomeRing {
 public:
  [[gnu::always_inline]] explicit HomeRing(const RowSearch& work) noexcept : work_(work) {}

  [[gnu::always_inline]] void locate(std::size_t i) noexcept { locate(i, i, 0); }
  // Puts the bucket that is `behind` the home bucket of id i at another place of the ring.
  [[gnu::always_inline]] void locate(std::size_t i, std::size_t at, std::uint32_t behind) noexcept {
    const std::uint64_t hash = mix(static_cast<std::uint64_t>(work_.ids[i]));
    const PartPlace* const place = work_.places + part_of(hash);
    std::uint32_t bucket = Index::home_in(hash, place->bucket_count) + behind;
    if (behind != 0 && bucket >= place->bucket_count) bucket -= place->bucket_count;
    places_[at % kRing] = place;
    homes_[at % kRing] = place->buckets + bucket;
  }
  [[nodiscard, gnu::always_inline]] const Index::Bucket& home(std::size_t i) const noexcept {
    return *homes_[i % kRing];
  }
  [[nodiscard, gnu::always_inline]] const PartPlace& place(std::size_t i) const noexcept { return *places_[i % kRing]; }
  [[nodiscard, gnu::always_inline]] std::uint32_t row_at_home(std::size_t i) const noexcept {
    return row_in_bucket(home(i), work_.ids[i]);
  }
  // The row of an id that is not in its home bucket, which is full.
  [[nodiscard, gnu::always_inline]] std::uint32_t row_further(std::size_t i) const noexcept {
    const PartPlace& place = *places_[i % kRing];
    const std::int64_t id = work_.ids[i];
    return Index::row_behind(homes_[i % kRing], {place.buckets, place.bucket_count},
                             [id](const Index::Bucket& bucket)
                                 __attribute__((always_inline)) { return row_in_bucket(bucket, id); });
  }
  [[gnu::always_inline]] void note(std::size_t i, std::uint32_t row) const noexcept {
    work_.rows[i] = row == Index::kNoRow ? nullptr : work_.shape.at(place(i).slabs, row);
  }

 private:
  RowSearch work_;
  std::array<const PartPlace*, kRing> places_;
  std::array<const Index::Bucket*, kRing> homes_;
};

// Fetches home buckets some ids ahead of the search. Ids that are not at home go to a list. Each pass over the list
// searches the next bucket of every id, until the list is empty.
[[gnu::flatten]] void find_rows_in_passes(const RowSearch& search) noexcept {
  constexpr std::size_t kHomesAhead = 32;
  constexpr std::size_t kFurtherAhead = 24;
  constexpr std::size_t kRing = 64;
  constexpr std::size_t kBlock = 2048;
  static_assert(kHomesAhead < kRing);
  std::array<std::uint32_t, kBlock> overflows;  // numbers of ids
  RowSearch work = search;
  for (std::size_t left = search.count; left > 0; left -= work.count) {
    work.count = std::min(kBlock, left);
    HomeRing<kRing> ring(work);
    std::size_t count = 0;
    // Searches the bucket at place k of the ring for id number i.
    const auto look = [&](std::size_t k, std::size_t i) __attribute__((always_inline)) {
      const std::uint32_t row = row_in_bucket(ring.home(k), work.ids[i]);
      const bool is_here = row != Index::kNoRow;
      const std::byte* const address = work.shape.at(ring.place(k).slabs, is_here ? row : 0);
      work.rows[i] = is_here ? address : nullptr;
      overflows[count] = static_cast<std::uint32_t>(i);
      count += !is_here && Index::is_full(ring.home(k)) ? 1 : 0;
    };
    const auto fetch = [&](std::size_t i) __attribute__((always_inline)) {
      ring.locate(i);
      prefetch(&ring.home(i));
    };
    for (std::size_t i = 0; i < std::min(work.count, kHomesAhead); ++i) fetch(i);
    std::size_t i = 0;
    for (; i + kHomesAhead < work.count; ++i) {
      fetch(i + kHomesAhead);
      look(i, i);
    }
    for (; i < work.count; ++i) look(i, i);
    for (std::uint32_t pass = 1; count > 0; ++pass) {
      const std::size_t last = std::exchange(count, 0);
      const auto fetch_further = [&](std::size_t k) __attribute__((always_inline)) {
        ring.locate(overflows[k], k, pass);
        prefetch(&ring.home(k));
      };
      for (std::size_t k = 0; k < std::min(last, kFurtherAhead); ++k) fetch_further(k);
      for (std::size_t k = 0; k < last; ++k) {
        if (k + kFurtherAhead < last) fetch_further(k + kFurtherAhead);
        // Otherwise all buckets are full, and none has the id.
        if (pass < ring.place(k).bucket_count) look(k, overflows[k]);
      }
    }
    work.ids += work.count;
    work.rows += work.count;
  }
}

// Strides of ids pass the stages together. A separate loop of few instructions fetches: on some processors a fetch
// occupies the window until its page walk is done.
[[gnu::flatten]] void find_rows_in_strides(const RowSearch& search) noexcept {
  // Enough to keep the memory system busy, fewer than the entries of the first TLB.
  constexpr std::size_t kStride = 32;
  RowSearch work = search;
  std::array<std::size_t, kStride> overflowed;
  for (std::size_t left = search.count; left > 0; left -= work.count) {
    work.count = std::min(kStride, left);
    HomeRing<kStride> ring(work);
    for (std::size_t i = 0; i < work.count; ++i) ring.locate(i);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < work.count; ++i) prefetch(&ring.home(i));
    std::size_t overflows = 0;
    for (std::size_t i = 0; i < work.count; ++i) {
      const std::uint32_t row = ring.row_at_home(i);
      ring.note(i, row);
      // Not in its home bucket, which is full: the next one is another line to wait for. Later, with the others.
      overflowed[overflows] = i;
      overflows += row == Index::kNoRow && Index::is_full(ring.home(i)) ? 1 : 0;
    }
    for (std::size_t k = 0; k < overflows; ++k) Index::fetch_behind(&ring.home(overflowed[k]));
    for (std::size_t k = 0; k < overflows; ++k) ring.note(overflowed[k], ring.row_further(overflowed[k]));
    work.ids += work.count;
    work.rows += work.count;
  }
}

#if defined(__x86_64__)
constexpr bool kSearchesInPasses = true;
#else
constexpr bool kSearchesInPasses = false;
#endif

void find_rows(const RowSearch& search) noexcept {
  if constexpr (kSearchesInPasses) {
    find_rows_in_passes(search);
  } else {
    find_rows_in_strides(search);
  }
}

}  // namespace
}  // namespace engine
