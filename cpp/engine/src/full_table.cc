// full_table.cc: makes room in a full table by evicting its least recently updated rows.
//
// Each part evicts alone, when its own rows or its own index would have to grow, and a sixteenth of its rows each time.
// Parts fill at different times, so that a call rarely scans more than a few of them: one scan is a 64th of the table.
// Freed rows stay in the part, where the next ids take them: the memory of a full table neither grows nor shrinks.
#include <algorithm>
#include <array>
#include <atomic>
#include <shared_mutex>
#include <vector>

#include "engine/error.h"
#include "engine/table.h"

namespace engine {

namespace {

// Share of a part that leaves together, so that the next call finds room.
constexpr std::size_t kEvictedShare = 16;

// Rows that must leave a part before it holds `more` further ids without growing.
std::size_t rows_to_evict(const Part& part, std::size_t more) noexcept {
  const std::size_t room = std::min(part.index.room(), part.rows.room());
  return more > room ? more - room : 0;
}

}  // namespace

bool Table::make_room(std::span<const std::int64_t> ids, std::span<const std::size_t> absent) {
  std::array<std::vector<std::int64_t>, kParts> present;
  for (const std::int64_t id : ids) {
    const std::size_t number = part_of(mix(static_cast<std::uint64_t>(id)));
    if (absent[number] != 0) present[number].push_back(id);
  }
  std::array<bool, kParts> is_full{};
  std::atomic<bool> fits{true};
  pool_->run(kParts, [&](std::size_t number) {
    if (absent[number] == 0) return;
    std::vector<std::int64_t>& own = present[number];
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    const Part& part = *parts_[number];
    const std::shared_lock lock(part.mutex);
    std::erase_if(own, [&](std::int64_t id) { return part.index.find(id) == Index::kNoRow; });
    const std::size_t leaving = rows_to_evict(part, absent[number]);
    is_full[number] = leaving > 0;
    if (leaving + own.size() > part.index.size()) fits.store(false, std::memory_order_relaxed);
  });
  if (!fits) return false;
  pool_->run(kParts, [&](std::size_t number) {
    if (is_full[number]) evict_oldest(*parts_[number], absent[number], present[number]);
  });
  return true;
}

void Table::evict_oldest(Part& part, std::size_t more, std::span<const std::int64_t> kept) {
  const std::unique_lock lock(part.mutex);
  RowBits kept_rows;
  for (const std::int64_t id : kept) {
    const std::uint32_t row = part.index.find(id);
    if (row != Index::kNoRow) kept_rows.set(row);
  }
  // Rows of equal time leave in order of their numbers, from where the last eviction ended: first made, first out.
  struct Candidate {
    std::uint64_t age;  // time, then distance of the row from the hand
    std::int64_t id;
  };
  std::vector<Candidate> candidates;
  candidates.reserve(part.index.size());
  part.index.for_each([&](std::int64_t id, std::uint32_t row) {
    if (kept_rows.test(row)) return;
    candidates.push_back({.age = (std::uint64_t{part.rows.time(row)} << 32) | (row - part.eviction_hand), .id = id});
  });
  const std::size_t wanted = std::max(rows_to_evict(part, more), part.index.size() / kEvictedShare);
  const std::size_t count = std::min(wanted, candidates.size());
  if (count == 0) return;
  const auto last = candidates.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(candidates.begin(), last, candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.age < b.age; });
  const std::uint32_t hand = part.eviction_hand + static_cast<std::uint32_t>(last->age) + 1;
  for (std::size_t i = 0; i < count; ++i) drop(part, candidates[i].id);
  part.eviction_hand = hand;
  rows_evicted_full_.fetch_add(count, std::memory_order_relaxed);
}

}  // namespace engine
