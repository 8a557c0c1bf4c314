// search.h: kernels that search the index of a table. Included by kernels only, hence unnamed.
//
// Both orders hide the wait for memory, and give the same rows. Processors differ in how many page walks overlap.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "../rows.h"
#include "engine/hash.h"
#include "engine/index.h"
#include "engine/part.h"
#include "kernels.h"

namespace engine {
namespace {

// The part of an id, and where in its index the id would like to stand.
struct Located {
  const PartPlace* part;
  Index::Place place;
};

[[gnu::always_inline]] inline Located locate(const RowSearch& work, std::size_t i) noexcept {
  const IdHash hash = hash_id(work.ids[i]);
  const PartPlace* const part = work.places + part_of(hash.mixed);
  return {.part = part, .place = part->buckets.place(hash)};
}

// Notes the row of an id if it is in its bucket. Returns whether the index may know more.
[[nodiscard, gnu::always_inline]] inline bool look(const RowSearch& work, const Located& at, std::size_t i) noexcept {
  bool continues = false;
  const std::uint32_t row = at.part->buckets.row_at(at.place, continues);
  const std::byte* const address = work.shape.at(at.part->slabs, row == Index::kNoRow ? 0 : row);
  work.rows[i] = row == Index::kNoRow ? nullptr : address;
  return continues;
}

// Searches ids, given by number, that are not in their bucket.
void find_displaced(const RowSearch& work, std::span<const std::uint32_t> numbers) noexcept {
  constexpr std::size_t kNextAhead = 16;
  const auto fetch = [&](std::size_t k)
                         __attribute__((always_inline)) { Index::fetch_next(locate(work, numbers[k]).place); };
  for (std::size_t k = 0; k < std::min(numbers.size(), kNextAhead); ++k) fetch(k);
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    if (k + kNextAhead < numbers.size()) fetch(k + kNextAhead);
    const std::size_t i = numbers[k];
    const Located at = locate(work, i);
    const std::uint32_t row = work.indexes[at.part - work.places]->find_displaced(at.place, work.ids[i]);
    work.rows[i] = row == Index::kNoRow ? nullptr : work.shape.at(at.part->slabs, row);
  }
}

// Fetches buckets some ids ahead of the search.
[[gnu::flatten]] void find_rows_in_turns(const RowSearch& search) noexcept {
  constexpr std::size_t kIdsAhead = 32;
  constexpr std::size_t kBlock = 2048;
  std::array<std::uint32_t, kBlock> displaced;
  // By number of the id modulo kIdsAhead.
  std::array<const PartPlace*, kIdsAhead> parts;
  std::array<const Index::Bucket*, kIdsAhead> buckets;
  std::array<std::uint64_t, kIdsAhead> words;
  std::array<std::uint8_t, kIdsAhead> bytes;
  RowSearch work = search;
  for (std::size_t left = search.count; left > 0; left -= work.count) {
    work.count = std::min(kBlock, left);
    std::size_t count = 0;
    const auto fetch = [&](std::size_t i, std::size_t slot) __attribute__((always_inline)) {
      const Located at = locate(work, i);
      prefetch(at.place.bucket);
      parts[slot] = at.part;
      buckets[slot] = at.place.bucket;
      words[slot] = at.place.word;
      bytes[slot] = at.place.byte;
    };
    const auto search_one = [&](std::size_t i, std::size_t slot) __attribute__((always_inline)) {
      const Index::Place place{.bucket = buckets[slot], .word = words[slot], .byte = bytes[slot]};
      if (look(work, {.part = parts[slot], .place = place}, i)) displaced[count++] = static_cast<std::uint32_t>(i);
    };
    for (std::size_t i = 0; i < std::min(work.count, kIdsAhead); ++i) fetch(i, i);
    std::size_t i = 0;
    for (; i + kIdsAhead < work.count; ++i) {
      const std::size_t slot = i % kIdsAhead;
      search_one(i, slot);
      fetch(i + kIdsAhead, slot);
    }
    for (; i < work.count; ++i) search_one(i, i % kIdsAhead);
    find_displaced(work, std::span(displaced).first(count));
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
  std::array<std::uint32_t, kStride> displaced;
  std::array<Located, kStride> located;
  for (std::size_t left = search.count; left > 0; left -= work.count) {
    work.count = std::min(kStride, left);
    for (std::size_t i = 0; i < work.count; ++i) located[i] = locate(work, i);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < work.count; ++i) prefetch(located[i].place.bucket);
    std::size_t count = 0;
    for (std::size_t i = 0; i < work.count; ++i) {
      displaced[count] = static_cast<std::uint32_t>(i);
      count += look(work, located[i], i) ? 1 : 0;
    }
    find_displaced(work, std::span(displaced).first(count));
    work.ids += work.count;
    work.rows += work.count;
  }
}

#if defined(__x86_64__)
constexpr bool kSearchesInStrides = false;
#else
constexpr bool kSearchesInStrides = true;
#endif

void find_rows(const RowSearch& search) noexcept {
  if constexpr (kSearchesInStrides) {
    find_rows_in_strides(search);
  } else {
    find_rows_in_turns(search);
  }
}

}  // namespace
}  // namespace engine
