// partition.cc: a counting sort by part, in pieces that run in parallel.
#include "partition.h"

#include <algorithm>

#include "engine/hash.h"

namespace engine {

namespace {

constexpr std::size_t kMostPieceIds = 16384;
constexpr std::size_t kLeastPieceIds = 2048;

// The order of occurrences does not depend on the pieces, so these may follow the threads.
std::size_t piece_ids(std::size_t ids, unsigned threads) {
  return std::clamp(ids / (std::size_t{threads} * 4), kLeastPieceIds, kMostPieceIds);
}

std::vector<Partition>& thread_partitions() noexcept {
  static thread_local std::vector<Partition> partitions;
  return partitions;
}

std::size_t part_of_id(std::int64_t id) noexcept { return part_of(mix(static_cast<std::uint64_t>(id))); }

}  // namespace

std::size_t partition_scratch_bytes() noexcept {
  std::size_t bytes = 0;
  for (const Partition& each : thread_partitions()) bytes += each.memory_bytes();
  return bytes;
}

void release_partition_scratch() noexcept { thread_partitions() = std::vector<Partition>(); }

void Partition::count(const Bags& bags, PartitionPiece& piece) noexcept {
  if (bags.pooling == Pooling::kFirst) {  // some ids do not count
    bags.for_each(piece.units.begin, piece.units.end,
                  [&](std::int64_t id, std::uint32_t) { ++piece.next[part_of_id(id)]; });
    return;
  }
  const std::size_t end = bags.position_of(piece.units.end);
  for (std::size_t i = bags.position_of(piece.units.begin); i < end; ++i) {
    const std::size_t part = part_of_id(bags.ids[i]);
    parts_[i] = static_cast<std::uint8_t>(part);
    ++piece.next[part];
  }
}

void Partition::place_pieces() {
  std::size_t total = 0;
  for (std::size_t part = 0; part < kParts; ++part) {
    begin_[part] = total;
    for (PartitionPiece& piece : pieces_) {
      const std::size_t occurrences = piece.next[part];
      piece.next[part] = total;
      total += occurrences;
    }
  }
  begin_[kParts] = total;
  ids_ = id_memory_.get(total);
  targets_ = target_memory_.get(total);
}

void Partition::scatter(const Bags& bags, const PartitionPiece& piece) noexcept {
  std::array<std::size_t, kParts> next = piece.next;
  const auto place = [&](std::size_t part, std::int64_t id, std::uint32_t target) {
    const std::size_t at = next[part]++;
    ids_[at] = id;
    targets_[at] = target;
  };
  if (bags.pooling == Pooling::kFirst) {
    bags.for_each(piece.units.begin, piece.units.end,
                  [&](std::int64_t id, std::uint32_t target) { place(part_of_id(id), id, target); });
    return;
  }
  std::size_t position = bags.position_of(piece.units.begin);
  bags.for_each(piece.units.begin, piece.units.end,
                [&](std::int64_t id, std::uint32_t target) { place(parts_[position++], id, target); });
}

void Partition::group_all(std::span<const Bags> calls, std::span<Partition* const> results, Pool& pool) {
  struct Work {
    std::size_t call;
    std::size_t piece;
  };
  std::vector<Work> work;
  for (std::size_t call = 0; call < calls.size(); ++call) {
    Partition& result = *results[call];
    result.pieces_.clear();
    result.parts_ = result.part_memory_.get(calls[call].ids.size());
    for (const UnitRange& units : cut_into_pieces(calls[call], piece_ids(calls[call].ids.size(), pool.threads()))) {
      work.push_back({call, result.pieces_.size()});
      result.pieces_.push_back({units, {}});
    }
  }
  pool.run(work.size(), [&](std::size_t i) {
    Partition& result = *results[work[i].call];
    result.count(calls[work[i].call], result.pieces_[work[i].piece]);
  });
  for (Partition* result : results) result->place_pieces();
  pool.run(work.size(), [&](std::size_t i) {
    Partition& result = *results[work[i].call];
    result.scatter(calls[work[i].call], result.pieces_[work[i].piece]);
  });
}

std::span<const Partition> partition(std::span<const Bags> calls, Pool& pool) {
  std::vector<Partition>& partitions = thread_partitions();  // the workers write to the caller's, not to their own
  if (partitions.size() < calls.size()) partitions.resize(calls.size());
  std::vector<Partition*> results;
  for (std::size_t call = 0; call < calls.size(); ++call) results.push_back(&partitions[call]);
  Partition::group_all(calls, results, pool);
  return std::span(partitions).first(calls.size());
}

}  // namespace engine
