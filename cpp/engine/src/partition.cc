// partition.cc: a counting sort by part, in pieces that run in parallel.
#include "partition.h"

#include "engine/hash.h"

namespace engine {

namespace {

constexpr std::size_t kPieceIds = 16384;

struct Piece {
  std::size_t call;
  UnitRange units;
  std::array<std::size_t, kParts> next{};  // first a count, then the place of the next occurrence
};

struct Scratch {
  std::vector<Partition> partitions;
  std::vector<Reused<std::int64_t>> ids;
  std::vector<Reused<std::uint32_t>> targets;
};

Scratch& thread_scratch() noexcept {
  static thread_local Scratch scratch;
  return scratch;
}

}  // namespace

std::size_t partition_scratch_bytes() noexcept {
  const Scratch& scratch = thread_scratch();
  std::size_t bytes = 0;
  for (const auto& ids : scratch.ids) bytes += ids.bytes();
  for (const auto& targets : scratch.targets) bytes += targets.bytes();
  return bytes;
}

void release_partition_scratch() noexcept { thread_scratch() = Scratch(); }

std::span<const Partition> partition(std::span<const Bags> calls, Pool& pool) {
  Scratch& scratch = thread_scratch();  // the workers must write to the caller's, not to their own
  if (scratch.ids.size() < calls.size()) {
    scratch.ids.resize(calls.size());
    scratch.targets.resize(calls.size());
  }
  scratch.partitions.assign(calls.size(), Partition());

  std::vector<Piece> pieces;
  for (std::size_t call = 0; call < calls.size(); ++call) {
    for (const UnitRange& units : cut_into_pieces(calls[call], kPieceIds)) pieces.push_back({call, units, {}});
  }
  pool.run(pieces.size(), [&](std::size_t i) {
    Piece& piece = pieces[i];
    calls[piece.call].for_each(piece.units.begin, piece.units.end, [&](std::int64_t id, std::uint32_t) {
      ++piece.next[part_of(mix(static_cast<std::uint64_t>(id)))];
    });
  });

  for (std::size_t call = 0, first = 0; call < calls.size(); ++call) {
    std::size_t last = first;
    while (last < pieces.size() && pieces[last].call == call) ++last;
    Partition& result = scratch.partitions[call];
    std::size_t total = 0;
    for (std::size_t part = 0; part < kParts; ++part) {
      result.begin[part] = total;
      for (std::size_t i = first; i < last; ++i) {
        const std::size_t count = pieces[i].next[part];
        pieces[i].next[part] = total;
        total += count;
      }
    }
    result.begin[kParts] = total;
    result.ids = scratch.ids[call].get(total);
    result.targets = scratch.targets[call].get(total);
    first = last;
  }

  pool.run(pieces.size(), [&](std::size_t i) {
    Piece& piece = pieces[i];
    const Partition& result = scratch.partitions[piece.call];
    std::array<std::size_t, kParts> next = piece.next;
    calls[piece.call].for_each(piece.units.begin, piece.units.end, [&](std::int64_t id, std::uint32_t target) {
      const std::size_t at = next[part_of(mix(static_cast<std::uint64_t>(id)))]++;
      result.ids[at] = id;
      result.targets[at] = target;
    });
  });
  return scratch.partitions;
}

}  // namespace engine
