// index.cc: search, growth and removal in the index of a part.
#include "engine/index.h"

#include <algorithm>
#include <new>

#include "engine/error.h"

namespace engine {

namespace {

// A small index doubles: its slack is nothing, its rebuilds are many.
constexpr std::size_t kSmallBuckets = 1024;
// Ids are brought home when more than one in so many is not, and twice as many as after the last time.
constexpr std::size_t kDisplacedShare = 8;

}  // namespace

const Index::Bucket Index::kNoBucket{};

Index::Entry Index::entry_of(std::int64_t id) const noexcept {
  const Place place = view_.place(id);
  const std::uint8_t reach = place.bucket->reach;
  auto b = static_cast<std::uint32_t>(place.bucket - view_.buckets);
  std::uint64_t word = place.word;
  for (std::uint32_t distance = 0; distance <= (reach & kMostDistance); ++distance, b = after(b)) {
    const Bucket& bucket = view_.buckets[b];
    for (Matches equal(bucket, place.byte); equal.any(); equal.drop_first()) {
      const std::uint64_t row = (bucket.words[equal.first()] ^ word) - 1;
      if (row < view_.row_mask) {
        return {.row = static_cast<std::uint32_t>(row), .bucket = b, .position = equal.first()};
      }
    }
    word += std::uint64_t{view_.row_mask} + 1;
  }
  if ((reach & kSpilled) == 0) return {};
  const Slot slot = spill_.find(id);
  return {.row = slot == kNoSlot ? kNoRow : spill_.row(slot)};
}

std::uint32_t Index::buckets_for(std::size_t ids) const noexcept {
  const std::size_t now = view_.bucket_count;
  if (has_room(ids, now)) return view_.bucket_count;
  const std::size_t grown = now < kSmallBuckets ? now * 2 : now + now / 4;
  const std::size_t needed = ids * 4 / kIdsOfFourBuckets + 1;
  const std::size_t buckets = Block::bytes_for(std::max(grown, needed) * sizeof(Bucket)) / sizeof(Bucket);
  return static_cast<std::uint32_t>(std::min(buckets, kMostBuckets));
}

std::size_t Index::growth_bytes(std::size_t more) const noexcept {
  return (buckets_for(size_ + more) - view_.bucket_count) * sizeof(Bucket);
}

void Index::grow(std::size_t more) {
  const std::uint32_t wanted = buckets_for(size_ + more);
  if (!has_room(size_ + more, wanted)) throw CapacityExceeded("a part holds at most 2.5e9 ids; split the table");
  rebuild(wanted);
}

void Index::rebuild(std::uint32_t bucket_count) {
  Index fresh;
  fresh.block_ = Block(std::size_t{bucket_count} * sizeof(Bucket));
  fresh.view_ = {.buckets = reinterpret_cast<const Bucket*>(fresh.block_.data()),
                 .bucket_count = bucket_count,
                 .row_mask = static_cast<std::uint32_t>((std::uint64_t{std::bit_floor(bucket_count)} << 4) - 1),
                 .rest_mask = ~((std::uint64_t{std::bit_floor(bucket_count)} << 8) - 1)};
  fresh.row_bits_ = static_cast<std::uint32_t>(std::bit_width(bucket_count)) + 3;
  for_each_key([&](const IdHash& key, std::uint32_t row) { fresh.insert(key, row); });
  spill_.for_each([&](std::int64_t id, std::uint32_t row, std::uint32_t) { fresh.insert(id, row); });
  fresh.history_ = history_;
  fresh.settled_ = fresh.displaced_;
  fresh.row_end_ = row_end_;
  *this = std::move(fresh);
}

void Index::insert(const IdHash& hash, std::uint32_t row) {
  const Place place = view_.place(hash);
  const auto home = static_cast<std::uint32_t>(place.bucket - view_.buckets);
  std::uint32_t b = home;
  std::uint8_t distance = 0;
  while (buckets()[b].words[kWidth - 1] != 0 && ++distance <= kMostDistance) b = after(b);
  if (distance <= kMostDistance && row < view_.row_mask) {
    Bucket& bucket = buckets()[b];
    std::uint32_t position = 0;
    while (bucket.words[position] != 0) ++position;
    bucket.words[position] = (place.word | std::uint64_t{distance} << row_bits_ | row) + 1;
    bucket.bytes[position] = place.byte;
    std::uint8_t& reach = buckets()[home].reach;
    if ((reach & kMostDistance) < distance) reach = static_cast<std::uint8_t>((reach & kSpilled) | distance);
    displaced_ += distance != 0 ? 1 : 0;
  } else {
    spill_.reserve(1);
    spill_.insert(id_of(hash.key), row, 0);
    buckets()[home].reach |= kSpilled;
  }
  row_end_ = std::max(row_end_, row + 1);
  ++size_;
  ++history_.inserts;
}

void Index::erase(std::int64_t id) noexcept {
  --size_;
  ++history_.leaves;
  const Entry entry = entry_of(id);
  if (entry.position == kWidth) {
    spill_.erase(spill_.find(id));
    return;
  }
  Bucket& bucket = buckets()[entry.bucket];
  displaced_ -= distance_of(bucket.words[entry.position]) != 0 ? 1 : 0;
  std::uint32_t last = kWidth - 1;
  while (bucket.words[last] == 0) --last;
  bucket.words[entry.position] = bucket.words[last];
  bucket.bytes[entry.position] = bucket.bytes[last];
  bucket.words[last] = 0;
  bucket.bytes[last] = 0;
}

void Index::shrink() {
  const std::size_t now = view_.bucket_count;
  // Buckets whose words have bits for every row number.
  const std::size_t least = std::max<std::size_t>(kSmallBuckets, std::bit_ceil(std::size_t{row_end_} / 16 + 1));
  const std::size_t wanted = std::max(least, size_ * 2 / 7);
  try {
    if (size_ * 16 <= now * kIdsOfFourBuckets && wanted * 2 <= now) {
      rebuild(static_cast<std::uint32_t>(wanted));
    } else if (displaced_ * kDisplacedShare > size_ && displaced_ > 2 * settled_) {
      rebuild(view_.bucket_count);
    }
  } catch (const std::bad_alloc&) {
    // The index stays as it is. The caller has removed rows, perhaps for lack of memory, and that must not fail here.
  }
}

void Index::clear() noexcept { adopt(Index()); }

void Index::adopt(Index&& other) noexcept {
  const History history{.leaves = history_.leaves + 1, .inserts = history_.inserts};
  *this = std::move(other);
  history_ = history;
}

}  // namespace engine
