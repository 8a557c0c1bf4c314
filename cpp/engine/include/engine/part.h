// part.h: one lock stripe of a table: an index, its rows, and notes about changes. Guarded by its mutex.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/index.h"
#include "engine/row_store.h"
#include "engine/shared_mutex.h"

namespace engine {

inline constexpr std::size_t kPartBits = 6;
inline constexpr std::size_t kParts = std::size_t{1} << kPartBits;

// The part of a table that owns an id. The index uses the low half of the same hash.
inline std::size_t part_of(std::uint64_t hash) noexcept { return static_cast<std::size_t>(hash >> (64 - kPartBits)); }

// A bit per row number.
class RowBits {
 public:
  [[nodiscard]] bool test(std::uint32_t row) const noexcept {
    return row / 64 < words_.size() && ((words_[row / 64] >> (row % 64)) & 1) != 0;
  }
  void set(std::uint32_t row) {
    if (row / 64 >= words_.size()) words_.resize(row / 64 + 1 + words_.size() / 4);
    words_[row / 64] |= std::uint64_t{1} << (row % 64);
  }
  // Makes room, so that setting a row below `rows` moves nothing.
  void reserve(std::uint32_t rows) {
    if (words_.size() < rows / 64 + 1) words_.resize(rows / 64 + 1);
  }
  void reset(std::uint32_t row) noexcept {
    if (row / 64 < words_.size()) words_[row / 64] &= ~(std::uint64_t{1} << (row % 64));
  }
  void clear() noexcept { words_.clear(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return words_.capacity() * sizeof(std::uint64_t); }

 private:
  std::vector<std::uint64_t> words_;
};

// Ids changed since the last drain: each present row once, by its bit.
struct TouchedIds {
  std::vector<std::int64_t> ids;
  RowBits rows;
  std::uint64_t generation = 0;  // of the table's tracking; an older one means: already dropped
};

// A table has at most one cut for a snapshot and one for a delta segment at a time.
enum class CutUse : std::uint8_t { kSnapshot, kDelta };
inline constexpr std::size_t kCutUses = 2;

// Rows that training has changed since a cut, as they were at the cut, until the cut is written.
struct Preimages {
  struct Entry {
    std::int64_t id;
    std::uint32_t time;
  };
  RowBits settled;  // rows kept here, or newer than the cut: their live content is not the snapshot's
  std::vector<Entry> entries;
  std::vector<std::byte> rows;
};

// A row that left, for explain().
struct Removal {
  enum class Reason : std::uint8_t { kDeleted, kExpired, kZero };
  std::int64_t id;
  std::int64_t now_s;       // the eviction's clock; 0 for a deletion
  std::uint32_t updated_s;  // the row's last update
  Reason reason;
};

struct Part {
  explicit Part(RowArena* arena) : rows(arena) {}

  // In a separate line: every lookup writes to the mutex of every part, and reads the index for every id.
  alignas(kLineBytes) mutable SharedMutex mutex;
  alignas(kLineBytes) Index index;
  RowStore rows;
  TouchedIds touched;
  std::array<std::unique_ptr<Preimages>, kCutUses> preimages;  // per use, while a cut waits for this part
  std::vector<Removal> removals;                               // the last few, as a ring
  std::size_t removal_count = 0;
  std::uint32_t eviction_hand = 0;  // row at which the next eviction of a full part begins, among rows of equal time

  [[nodiscard]] bool has_preimages() const noexcept { return preimages[0] || preimages[1]; }
};

}  // namespace engine
