// distinct_ids.h: the distinct ids among the occurrences of one part, and where their rows are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/index.h"
#include "engine/row_store.h"
#include "partition.h"
#include "rows.h"

namespace engine {

inline constexpr std::uint32_t kNoRow = Index::kNoRow;

// Where the row of a distinct id is, and the state of a running write to it.
struct RowHandle {
  std::uint32_t row = kNoRow;
  std::uint32_t count = 0;  // occurrences in the call
  bool is_new = false;      // made by the running write
  bool leaves = false;      // to be removed again when the write is done
  bool is_refused = false;  // its gradient was not finite
};
static_assert(sizeof(RowHandle) == 12);

// Distinct ids are numbered in order of first occurrence.
struct DistinctIds {
  std::int64_t* ids = nullptr;       // by number
  RowHandle* handles = nullptr;      // by number
  std::uint32_t* numbers = nullptr;  // by occurrence
  std::size_t count = 0;
};

// Memory that this thread keeps for its next search; and gives it back.
std::size_t distinct_scratch_bytes() noexcept;
void release_distinct_scratch() noexcept;
// A table for `entries` numbers in this thread's scratch, all zero.
template <class Number>
Number* clear_numbers(std::size_t entries);

// Searches ids [begin, end) in the index, whose buckets were fetched. Calls note(i, row) for each id that has a
// row.
template <class Note>
[[gnu::always_inline]] inline void find_handles(const Index& index, const DistinctIds& distinct, std::size_t begin,
                                                std::size_t end, Note&& note) {
  constexpr std::size_t kStride = 64;
  std::uint32_t displaced[kStride];
  const Index::View view = index.view();
  const auto take = [&](std::size_t i, std::uint32_t row) __attribute__((always_inline)) {
    distinct.handles[i].row = row;
    note(i, row);
  };
  for (std::size_t first = begin; first < end; first += kStride) {
    std::size_t count = 0;
    for (std::size_t i = first; i < std::min(end, first + kStride); ++i) {
      bool continues = false;
      const Index::Place place = view.place(distinct.ids[i]);
      take(i, view.row_at(place, continues));
      // Perhaps in the next bucket, which is another line to wait for. Later, with the others.
      displaced[count] = static_cast<std::uint32_t>(i);
      count += continues ? 1 : 0;
      if (continues) Index::fetch_next(place);
    }
    for (std::size_t k = 0; k < count; ++k) {
      const std::int64_t id = distinct.ids[displaced[k]];
      take(displaced[k], index.find_displaced(view.place(id), id));
    }
  }
}

// Occurrences between two stages of a search.
inline constexpr std::size_t kSearchChunk = 128;

// Numbers the distinct ids and searches each once. Three stages run one chunk apart, so that a line is fetched some
// hundred nanoseconds before its use: number the ids and fetch the buckets of new ones; search these, with
// note(number, row); use(begin, end) of numbers, for copies of the rows.
template <class Number, class Note, class Use>
void number_and_find(const Index& index, std::span<const std::int64_t> ids, DistinctIds& distinct, Note&& note,
                     Use&& use) {
  const std::size_t entries = std::bit_ceil(2 * ids.size());
  const std::size_t mask = entries - 1;
  Number* const table = clear_numbers<Number>(entries);
  std::size_t count = 0;
  std::size_t searched = 0;  // distinct ids whose rows are known
  std::size_t used = 0;
  for (std::size_t begin = 0; begin < ids.size(); begin += kSearchChunk) {
    const std::size_t known = count;
    for (std::size_t i = begin; i < std::min(ids.size(), begin + kSearchChunk); ++i) {
      const std::int64_t id = ids[i];
      const std::uint64_t hash = mix(static_cast<std::uint64_t>(id));
      // Not the bits that choose the part, which are equal here.
      std::size_t at = (hash >> 32) & mask;
      while (table[at] != 0 && distinct.ids[table[at] - 1] != id) at = (at + 1) & mask;
      if (table[at] == 0) {
        index.fetch(id);
        // The next chunk writes these lines, among random reads that keep the processor from fetching them by itself.
        prefetch_for_write(distinct.ids + count + kSearchChunk);
        prefetch_for_write(distinct.handles + count + kSearchChunk);
        table[at] = static_cast<Number>(count + 1);
        distinct.ids[count] = id;
        distinct.handles[count] = RowHandle{};
        ++count;
      }
      const std::uint32_t number = table[at] - 1U;
      distinct.numbers[i] = number;
      prefetch_for_write(distinct.numbers + i + kSearchChunk);
      ++distinct.handles[number].count;
    }
    use(used, searched);
    used = searched;
    find_handles(index, distinct, searched, known, note);
    searched = known;
  }
  use(used, searched);
  find_handles(index, distinct, searched, count, note);
  use(searched, count);
  distinct.count = count;
}

template <class Note, class Use>
void search_ids(const Index& index, std::span<const std::int64_t> ids, DistinctIds& distinct, Note&& note, Use&& use) {
  distinct.count = 0;
  if (ids.empty()) return;
  // Numbers of two bytes keep the table in the first cache.
  if (ids.size() < 0xFFFF) {
    number_and_find<std::uint16_t>(index, ids, distinct, note, use);
  } else {
    number_and_find<std::uint32_t>(index, ids, distinct, note, use);
  }
}

}  // namespace engine
