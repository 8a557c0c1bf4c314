// lookup.cc: batched reads. Blocks of ids are grouped by part; each group is found, fetched, then read.
#include <algorithm>
#include <array>
#include <numeric>
#include <shared_mutex>

#include "engine/error.h"
#include "engine/table.h"
#include "rows.h"

namespace engine {

namespace {

// Ids that are grouped at a time: many enough that each part's group pays for the pages it has to look up.
constexpr std::size_t kBlockIds = 32768;
// How far ahead of a find its bucket is fetched.
constexpr std::size_t kAhead = 16;

struct IdBlock {
  std::array<std::int64_t, kBlockIds> ids;
  std::array<std::uint32_t, kBlockIds> targets;
  std::array<std::uint8_t, kBlockIds> parts;
  std::array<std::int64_t, kBlockIds> grouped_ids;
  std::array<std::uint32_t, kBlockIds> grouped_targets;
  std::array<const std::byte*, kBlockIds> rows;
  std::array<std::uint32_t, kShards + 1> begin;
  std::size_t count = 0;

  void add(std::int64_t id, std::uint32_t target) noexcept {
    const auto part = static_cast<std::uint8_t>(shard_of(mix(static_cast<std::uint64_t>(id))));
    ids[count] = id;
    targets[count] = target;
    parts[count] = part;
    ++begin[part + 1];
    ++count;
  }

  void group() noexcept {
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::array<std::uint32_t, kShards> next;
    std::copy_n(begin.begin(), kShards, next.begin());
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t at = next[parts[i]]++;
      grouped_ids[at] = ids[i];
      grouped_targets[at] = targets[i];
    }
  }

  void reset() noexcept {
    begin.fill(0);
    count = 0;
  }
};

// Ids per piece of work: a function of the call alone, never of the number of threads.
std::size_t piece_ids(std::size_t ids) { return std::clamp<std::size_t>(ids / 8, 4096, kBlockIds); }

IdBlock& thread_block() {
  static thread_local const std::unique_ptr<IdBlock> block = std::make_unique<IdBlock>();
  block->reset();
  return *block;
}

}  // namespace

template <class Consume>
void Table::visit_rows(const Bags& bags, std::size_t begin, std::size_t end, Consume&& consume) const {
  IdBlock& block = thread_block();
  const std::size_t read_bytes = schema_.is_serving() ? schema_.row_bytes() : schema_.dim() * sizeof(float);
  const auto flush = [&] {
    block.group();
    for (std::size_t part = 0; part < kShards; ++part) {
      const std::size_t from = block.begin[part];
      const std::size_t to = block.begin[part + 1];
      if (from == to) continue;
      const Shard& shard = *shards_[part];
      const std::shared_lock lock(shard.mutex);
      const auto hash_at = [&](std::size_t i) { return mix(static_cast<std::uint64_t>(block.grouped_ids[i])); };
      for (std::size_t i = from; i < std::min(to, from + kAhead); ++i) prefetch(shard.index.home(hash_at(i)));
      for (std::size_t i = from; i < to; ++i) {
        if (i + kAhead < to) prefetch(shard.index.home(hash_at(i + kAhead)));
        const Slot slot = shard.index.find(block.grouped_ids[i], hash_at(i));
        const std::byte* row = slot == kNoSlot ? nullptr : shard.rows.at(shard.index.row(slot));
        block.rows[i] = row;
        if (row != nullptr) prefetch_row(row, read_bytes);
      }
      for (std::size_t i = from; i < to; ++i) {
        consume(block.grouped_ids[i], block.grouped_targets[i], block.rows[i]);
      }
    }
    block.reset();
  };
  bags.for_each(begin, end, [&](std::int64_t id, std::uint32_t target) {
    block.add(id, target);
    if (block.count == kBlockIds) flush();
  });
  flush();
}

void Table::lookup_piece(const LookupJob& job, std::size_t begin, std::size_t end) const {
  const Bags& bags = job.bags;
  const std::size_t dim = schema_.dim();
  const std::size_t rows_per_unit = bags.pooling == Pooling::kFirst ? bags.first_n : 1;
  const bool adds = bags.pooling == Pooling::kSum || bags.pooling == Pooling::kMean;
  if (bags.pooling != Pooling::kNone) {
    std::fill(job.out + begin * rows_per_unit * dim, job.out + end * rows_per_unit * dim, 0.0F);
  }
  const std::vector<float> scales = schema_.is_plain() ? std::vector<float>() : this->scales();
  std::vector<float> decoded(schema_.is_plain() && !config_.miss_is_initial ? 0 : dim);
  with_width(dim, [&](auto width) {
    visit_rows(bags, begin, end, [&](std::int64_t id, std::uint32_t target, const std::byte* row) {
      if (job.found != nullptr) job.found[target] = row != nullptr;
      const float* values = reinterpret_cast<const float*>(row);
      if (row == nullptr) {
        if (config_.miss_is_initial) {
          schema_.read_initial(id, decoded.data(), scales);
          values = decoded.data();
        }
      } else if (!schema_.is_plain()) {
        schema_.read(row, decoded.data(), scales);
        values = decoded.data();
      }
      float* out = job.out + target * width.value;
      if (values == nullptr) {
        if (!adds) std::fill_n(out, width.value, 0.0F);
      } else if (adds) {
        add_row(out, values, width);
      } else {
        copy_row(out, values, width);
      }
    });
  });
  if (bags.pooling == Pooling::kMean) {
    for (std::size_t bag = begin; bag < end; ++bag) {
      const auto length = static_cast<float>(bags.offsets[bag + 1] - bags.offsets[bag]);
      if (length > 1) scale_row(job.out + bag * dim, 1.0F / length, dim);
    }
  }
}

void Table::lookup_all(std::span<const LookupJob> jobs, Pool& pool) {
  struct Piece {
    const LookupJob* job;
    UnitRange units;
  };
  std::vector<Piece> pieces;
  for (const LookupJob& job : jobs) {
    for (const UnitRange& units : cut_into_pieces(job.bags, piece_ids(job.bags.ids.size())))
      pieces.push_back({&job, units});
  }
  pool.run(pieces.size(), [&](std::size_t i) {
    pieces[i].job->table->lookup_piece(*pieces[i].job, pieces[i].units.begin, pieces[i].units.end);
  });
}

void Table::lookup(std::span<const std::int64_t> ids, float* out, std::uint8_t* found) const {
  const LookupJob job{.table = this, .bags = {.ids = ids}, .out = out, .found = found};
  lookup_all({&job, 1}, *pool_);
}

void Table::contains(std::span<const std::int64_t> ids, std::uint8_t* found) const {
  const Bags bags{.ids = ids};
  const std::vector<UnitRange> pieces = cut_into_pieces(bags, piece_ids(ids.size()));
  pool_->run(pieces.size(), [&](std::size_t i) {
    visit_rows(bags, pieces[i].begin, pieces[i].end,
               [&](std::int64_t, std::uint32_t target, const std::byte* row) { found[target] = row != nullptr; });
  });
}

RawRows Table::raw_rows(std::span<const std::int64_t> ids) const {
  RawRows found;
  const std::size_t row_bytes = schema_.row_bytes();
  for (const std::int64_t id : ids) {
    const std::uint64_t hash = mix(static_cast<std::uint64_t>(id));
    const Shard& shard = *shards_[shard_of(hash)];
    const std::shared_lock lock(shard.mutex);
    const Slot slot = shard.index.find(id, hash);
    if (slot == kNoSlot) continue;
    const std::byte* row = shard.rows.at(shard.index.row(slot));
    found.ids.push_back(id);
    found.times.push_back(shard.index.time(slot));
    found.rows.insert(found.rows.end(), row, row + row_bytes);
  }
  return found;
}

}  // namespace engine
