// sliding_counter.h: counts sightings of ids in bounded memory and forgets the oldest. Behind the sliding hash filter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace engine {

// A ring of splits. New ids enter the head split (or the one after it, when their places there are taken); a full head
// moves on by one, and the split it will need next is wiped: the oldest sightings are forgotten.
//
// A cell is 32 bits: a 16-bit signature and a 16-bit count that stays at its maximum. Zero is an empty cell. Two ids
// are taken for one when they probe into each other and share a signature: about one in 65,536 of the neighbours.
//
// Memory follows the ids: the first split holds at most kFirstSplit of them, each next one four times as many, up to
// capacity / (split_num - 1). With all splits in use it is split_num x (capacity / (split_num - 1) x 1.2 + 64) x 4
// bytes, so 1.7 GB at the original's defaults (300 million ids, 7 splits). While the splits grow, the ring has more of
// them than split_num, so that nothing is forgotten before the capacity is reached.
class SlidingCounter {
 public:
  static constexpr std::uint32_t kMaxCount = 0xffff;
  static constexpr std::uint64_t kFirstSplit = 4096;

  // Needs split_num >= 5 and capacity >= split_num - 1.
  SlidingCounter(std::uint64_t capacity, std::uint32_t split_num);

  // Counts `count` more sightings and returns how many there were before. `kMaxCount` when the places of the id are all
  // taken: an id that cannot be counted is let in. Exclusive.
  std::uint32_t add(std::int64_t id, std::uint32_t count);
  // Fetches the cells that `add` will probably read. Exclusive.
  void fetch(std::int64_t id) const noexcept;
  // Exclusive, because a split may be wiped meanwhile.
  [[nodiscard]] std::uint32_t seen(std::int64_t id) const noexcept;

  void clear() noexcept;
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

  // For tests and reports.
  [[nodiscard]] std::uint32_t head() const noexcept { return head_; }
  [[nodiscard]] std::uint64_t head_increment() const noexcept { return head_increment_; }
  [[nodiscard]] std::uint64_t failures() const noexcept { return failures_; }
  [[nodiscard]] std::uint64_t elements(std::uint32_t split) const noexcept { return splits_[split].elements; }
  // Places an id can have as its first, in the head.
  [[nodiscard]] std::uint64_t home_cells() const noexcept { return home_cells(splits_[head_].capacity); }

  // The whole state as bytes: per split its capacity, a bit map of the cells in use, then those cells.
  void save(std::vector<std::byte>& out) const;
  // Takes the state from the front of `in` and moves `in` behind it. False: the bytes make no sense; nothing changed.
  // Without `has_capacities` the bytes are of a release whose splits all had the largest capacity.
  [[nodiscard]] bool load(std::span<const std::byte>& in, bool has_capacities);
  // Adds the counts of `other`, of the same size, for other ids. The oldest sightings of either are forgotten
  // when not all find room.
  void merge(SlidingCounter&& other);

 private:
  struct Release {
    void operator()(std::uint32_t* cells) const noexcept;
  };
  struct Split {
    std::unique_ptr<std::uint32_t[], Release> cells;  // null: never used, all empty
    std::uint64_t elements = 0;
    std::uint64_t capacity = 0;  // in ids; the cells follow from it
  };
  struct Place;

  [[nodiscard]] static std::uint64_t home_cells(std::uint64_t capacity) noexcept { return capacity * 12 / 10; }
  [[nodiscard]] static std::uint64_t cells(const Split& split) noexcept;
  [[nodiscard]] static Place place_of(std::int64_t id) noexcept;
  [[nodiscard]] static std::uint32_t* home_cell(const Split& split, const Place& place) noexcept;
  [[nodiscard]] static std::uint32_t* usable_cell(const Split& split, const Place& place) noexcept;
  // Splits behind the head that may hold ids.
  [[nodiscard]] std::uint64_t splits_behind() const noexcept;
  [[nodiscard]] const Split& behind(std::uint64_t back) const noexcept {
    return splits_[at(head_ + splits_.size() - back)];
  }
  [[nodiscard]] std::uint32_t count_behind(const Place& place) const noexcept;
  // The split of a number that may lie beyond the end of the ring. A division would take longer.
  [[nodiscard]] std::uint32_t at(std::uint64_t split) const noexcept {
    while (split >= splits_.size()) split -= splits_.size();
    return static_cast<std::uint32_t>(split);
  }
  static void allocate(Split& split);
  static void copy_cells(const Split& from, Split& into) noexcept;
  [[nodiscard]] std::uint64_t remembered() const noexcept;
  [[nodiscard]] bool may_forget(const Split& oldest, std::uint64_t ids) const noexcept;
  void begin() noexcept;
  void advance();

  std::uint64_t split_capacity_;  // of a split that has grown
  std::uint32_t split_num_;       // splits of a ring that has grown
  std::vector<Split> splits_;
  std::uint32_t head_ = 0;
  std::uint64_t head_increment_ = 0;
  std::uint64_t failures_ = 0;
};

}  // namespace engine
