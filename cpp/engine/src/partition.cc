// partition.cc: a counting sort by part, in two steps that run in parallel. A thread sorts a piece in memory that no
// other thread writes; then each part collects its runs from all pieces.
#include "partition.h"

#include <algorithm>
#include <utility>

#include "engine/hash.h"
#include "rows.h"

namespace engine {

namespace {

constexpr std::size_t kMostPieceIds = 16384;
constexpr std::size_t kLeastPieceIds = 2048;

// The order of occurrences does not depend on the pieces, so these may follow the threads.
std::size_t piece_ids(std::size_t ids, unsigned threads) {
  return std::clamp(ids / (std::size_t{threads} * 4), kLeastPieceIds, kMostPieceIds);
}

// Memory of a thread that groups calls; workers of the pool write to it too.
struct Scratch {
  std::vector<Partition> partitions;
  Reused<std::int64_t> ids;
  Reused<std::uint32_t> targets;
};

Scratch& thread_scratch() noexcept {
  static thread_local Scratch scratch;
  return scratch;
}

std::size_t part_of_id(std::int64_t id) noexcept { return part_of(mix(static_cast<std::uint64_t>(id))); }

}  // namespace

std::size_t partition_scratch_bytes() noexcept {
  const Scratch& scratch = thread_scratch();
  std::size_t bytes = scratch.ids.bytes() + scratch.targets.bytes();
  for (const Partition& each : scratch.partitions) bytes += each.memory_bytes();
  return bytes;
}

void release_partition_scratch() noexcept { thread_scratch() = Scratch(); }

// Counts the occurrences of each part in a piece, and fetches the lines that will hold them: another thread has them
// since the last call.
std::array<std::uint32_t, kParts> Partition::count(const Bags& bags, const PartitionPiece& piece) noexcept {
  std::array<std::uint32_t, kParts> counts{};
  if (bags.pooling == Pooling::kFirst) {  // some ids do not count
    bags.for_each(piece.units.begin, piece.units.end,
                  [&](std::int64_t id, std::uint32_t) { ++counts[part_of_id(id)]; });
    return counts;
  }
  constexpr std::size_t kLineIds = kLineBytes / sizeof(std::int64_t);
  const std::int64_t* const ids = bags.ids.data();
  std::uint8_t* const parts = parts_;
  const std::size_t end = bags.position_of(piece.units.end);
  for (std::size_t first = piece.first; first < end; first += kLineIds) {
    prefetch_for_write(sorted_ids_ + first);
    prefetch_for_write(sorted_targets_ + first);
    for (std::size_t i = first; i < std::min(end, first + kLineIds); ++i) {
      const std::size_t part = part_of_id(ids[i]);
      parts[i] = static_cast<std::uint8_t>(part);
      ++counts[part];
    }
  }
  return counts;
}

void Partition::sort_piece(const Bags& bags, PartitionPiece& piece) noexcept {
  std::array<std::uint32_t, kParts> next = count(bags, piece);
  std::uint32_t total = 0;
  for (std::size_t part = 0; part < kParts; ++part) {
    piece.runs[part] = total;
    total += std::exchange(next[part], total);
  }
  piece.runs[kParts] = total;
  const auto place = [&, ids = sorted_ids_ + piece.first, targets = sorted_targets_ + piece.first](
                         std::size_t part, std::int64_t id, std::uint32_t target) __attribute__((always_inline)) {
    const std::uint32_t at = next[part]++;
    ids[at] = id;
    targets[at] = target;
  };
  if (bags.pooling == Pooling::kFirst) {
    bags.for_each(piece.units.begin, piece.units.end,
                  [&](std::int64_t id, std::uint32_t target) { place(part_of_id(id), id, target); });
    return;
  }
  const std::uint8_t* part = parts_ + piece.first;
  bags.for_each(piece.units.begin, piece.units.end,
                [&](std::int64_t id, std::uint32_t target) { place(*part++, id, target); });
}

// Finds where each part begins, and where the occurrences of each piece stand in it.
void Partition::place_pieces() noexcept {
  std::array<std::size_t, kParts> next{};
  for (const PartitionPiece& piece : pieces_) {
    for (std::size_t part = 0; part < kParts; ++part) next[part] += piece.runs[part + 1] - piece.runs[part];
  }
  std::size_t total = 0;
  for (std::size_t part = 0; part < kParts; ++part) {
    begin_[part] = total;
    total += std::exchange(next[part], total);
  }
  begin_[kParts] = total;
  for (PartitionPiece& piece : pieces_) {
    for (std::size_t part = 0; part < kParts; ++part) {
      piece.next[part] = next[part];
      next[part] += piece.runs[part + 1] - piece.runs[part];
    }
  }
}

Partition::Group Partition::gather(std::size_t part) const noexcept {
  if (pieces_.size() == 1) return group(part);  // sorted in place
  constexpr std::size_t kPiecesAhead = 2;
  const auto run_of = [&](const PartitionPiece& piece) __attribute__((always_inline)) {
    const std::size_t count = piece.runs[part + 1] - piece.runs[part];
    const std::size_t first = piece.first + piece.runs[part];
    return Group{{sorted_ids_ + first, count}, {sorted_targets_ + first, count}};
  };
  std::int64_t* ids = ids_ + begin_[part];
  std::uint32_t* targets = targets_ + begin_[part];
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (i + kPiecesAhead < pieces_.size()) {
      const Group ahead = run_of(pieces_[i + kPiecesAhead]);
      prefetch_row(ahead.ids.data(), ahead.ids.size_bytes());
      prefetch_row(ahead.targets.data(), ahead.targets.size_bytes());
    }
    const Group run = run_of(pieces_[i]);
    ids = std::ranges::copy(run.ids, ids).out;
    targets = std::ranges::copy(run.targets, targets).out;
  }
  return group(part);
}

void Partition::group_all(std::span<const Bags> calls, std::span<Partition* const> results, Pool& pool) {
  struct Work {
    std::size_t call;
    std::size_t piece;
  };
  std::vector<Work> work;
  std::size_t scattered = 0;  // ids of calls in several pieces
  for (std::size_t call = 0; call < calls.size(); ++call) {
    const Bags& bags = calls[call];
    const std::size_t count = bags.ids.size();
    Partition& result = *results[call];
    result.parts_ = result.part_memory_.get(count);
    result.ids_ = result.sorted_ids_ = result.id_memory_.get(count);
    result.targets_ = result.sorted_targets_ = result.target_memory_.get(count);
    result.pieces_.clear();
    for (const UnitRange& units : cut_into_pieces(bags, piece_ids(count, pool.threads()))) {
      work.push_back({call, result.pieces_.size()});
      result.pieces_.push_back({.units = units, .first = bags.position_of(units.begin)});
    }
    if (result.pieces_.size() > 1) scattered += count;
  }
  std::int64_t* ids = thread_scratch().ids.get(scattered);
  std::uint32_t* targets = thread_scratch().targets.get(scattered);
  for (std::size_t call = 0; call < calls.size(); ++call) {
    if (results[call]->pieces_.size() <= 1) continue;
    results[call]->sorted_ids_ = std::exchange(ids, ids + calls[call].ids.size());
    results[call]->sorted_targets_ = std::exchange(targets, targets + calls[call].ids.size());
  }
  pool.run(work.size(), [&](std::size_t i) {
    Partition& result = *results[work[i].call];
    result.sort_piece(calls[work[i].call], result.pieces_[work[i].piece]);
  });
  for (Partition* result : results) result->place_pieces();
}

std::span<const Partition> partition(std::span<const Bags> calls, Pool& pool) {
  std::vector<Partition>& partitions = thread_scratch().partitions;
  if (partitions.size() < calls.size()) partitions.resize(calls.size());
  std::vector<Partition*> results;
  for (std::size_t call = 0; call < calls.size(); ++call) results.push_back(&partitions[call]);
  Partition::group_all(calls, results, pool);
  return std::span(partitions).first(calls.size());
}

}  // namespace engine
