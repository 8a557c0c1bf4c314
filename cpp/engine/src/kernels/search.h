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

// Fetches the buckets of a stride of ids, then searches the stride before it. A wrong guess of the processor, as where
// an id is not in its bucket, then undoes no fetch.
[[gnu::flatten]] void find_rows_in_turns(const RowSearch& search) noexcept {
  constexpr std::size_t kStride = 32;
  constexpr std::size_t kBlock = 2048;
  std::array<std::uint32_t, kBlock> displaced;
  std::array<std::array<Located, kStride>, 2> located;
  RowSearch work = search;
  for (std::size_t left = search.count; left > 0; left -= work.count) {
    work.count = std::min(kBlock, left);
    std::size_t fetched = 0;
    const auto fetch = [&]() __attribute__((always_inline)) {
      Located* const stride = located[fetched / kStride % 2].data();
      const std::size_t ids = std::min(kStride, work.count - fetched);
      for (std::size_t k = 0; k < ids; ++k) {
        stride[k] = locate(work, fetched + k);
        prefetch(stride[k].place.bucket);
      }
      fetched += ids;
    };
    fetch();
    std::size_t count = 0;
    for (std::size_t first = 0; first < work.count; first += kStride) {
      const std::size_t end = fetched;
      if (fetched < work.count) fetch();
      const Located* const stride = located[first / kStride % 2].data();
      for (std::size_t i = first; i < end; ++i) {
        displaced[count] = static_cast<std::uint32_t>(i);
        count += look(work, stride[i - first], i) ? 1 : 0;
      }
    }
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
