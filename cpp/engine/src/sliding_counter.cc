#include "engine/sliding_counter.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "engine/hash.h"
#include "rows.h"

namespace engine {
namespace {

// How far an id may lie from its first place. The original stops at 16 inside a sliding filter and lets in about one
// id in a hundred unseen for it; four cache lines are the same price and end that.
constexpr std::uint64_t kMaxProbe = 64;
constexpr std::uint32_t kForwardWindow = 2;
constexpr std::uint64_t kGrowth = 4;
constexpr std::uint32_t kMostExtraSplits = 32;
constexpr std::uint32_t kCountMask = 0xffffU;

__extension__ using Wide = unsigned __int128;

template <typename Value>
void put(std::vector<std::byte>& out, Value value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

template <typename Value>
bool take(std::span<const std::byte>& in, Value& value) noexcept {
  if (in.size() < sizeof value) return false;
  std::memcpy(&value, in.data(), sizeof value);
  in = in.subspan(sizeof value);
  return true;
}

}  // namespace

struct SlidingCounter::Place {
  std::uint64_t hash;
  std::uint32_t signature;  // in the upper half, as in a cell
};

void SlidingCounter::Release::operator()(std::uint32_t* cells) const noexcept { std::free(cells); }

SlidingCounter::SlidingCounter(std::uint64_t capacity, std::uint32_t split_num)
    : split_capacity_(capacity / (split_num - 1)), split_num_(split_num), splits_(split_num) {
  begin();
}

// The first two splits have the first capacity; `advance` gives every later one its own.
void SlidingCounter::begin() noexcept {
  for (std::uint32_t i = 0; i < kForwardWindow; ++i) splits_[i].capacity = std::min(split_capacity_, kFirstSplit);
}

std::uint64_t SlidingCounter::cells(const Split& split) noexcept { return home_cells(split.capacity) + kMaxProbe; }

SlidingCounter::Place SlidingCounter::place_of(std::int64_t id) noexcept {
  const std::uint64_t hash = scramble(static_cast<std::uint64_t>(id));
  // The place uses the upper bits of the hash, the signature the lower ones.
  return {hash, static_cast<std::uint32_t>(hash << 16)};
}

std::uint32_t* SlidingCounter::home_cell(const Split& split, const Place& place) noexcept {
  return split.cells.get() +
         static_cast<std::uint64_t>(static_cast<Wide>(place.hash) * home_cells(split.capacity) >> 64);
}

// The first cell on the id's way that is empty or holds the id; null when no cell is.
std::uint32_t* SlidingCounter::usable_cell(const Split& split, const Place& place) noexcept {
  std::uint32_t* const home = home_cell(split, place);
  for (std::uint64_t i = 0; i < kMaxProbe; ++i) {
    std::uint32_t* cell = home + i;  // home + 64 is within the cells, so nothing wraps
    if (*cell == 0 || (*cell & ~kCountMask) == place.signature) return cell;
  }
  return nullptr;
}

std::uint64_t SlidingCounter::splits_behind() const noexcept {
  return std::min<std::uint64_t>(head_increment_, splits_.size() - kForwardWindow);
}

void SlidingCounter::fetch(std::int64_t id) const noexcept {
  const Place place = place_of(id);
  for (std::uint64_t back = 0; back <= splits_behind(); ++back) {
    const Split& split = behind(back);
    if (split.cells != nullptr) prefetch(home_cell(split, place));
  }
}

// The count of an id in the splits behind the head.
std::uint32_t SlidingCounter::count_behind(const Place& place) const noexcept {
  for (std::uint64_t back = 1; back <= splits_behind(); ++back) {
    const Split& split = behind(back);
    if (split.cells == nullptr) continue;
    const std::uint32_t* cell = usable_cell(split, place);
    if (cell != nullptr && *cell != 0) return *cell & kCountMask;
  }
  return 0;
}

void SlidingCounter::allocate(Split& split) {
  if (split.cells != nullptr) return;
  split.cells.reset(static_cast<std::uint32_t*>(std::calloc(cells(split), sizeof(std::uint32_t))));
  if (split.cells == nullptr) throw std::bad_alloc();
}

std::uint32_t SlidingCounter::add(std::int64_t id, std::uint32_t count) {
  const Place place = place_of(id);
  for (std::uint32_t forward = 0; forward < kForwardWindow; ++forward) {
    Split& split = splits_[at(head_ + forward)];
    allocate(split);
    std::uint32_t* cell = usable_cell(split, place);
    if (cell == nullptr) continue;
    const bool is_new = *cell == 0;
    const std::uint32_t before = is_new ? count_behind(place) : *cell & kCountMask;
    const std::uint32_t after = std::min(kMaxCount, before + std::min(count, kMaxCount));
    if (after == 0) return 0;
    *cell = place.signature | after;
    if (is_new) {
      ++split.elements;
      if (splits_[head_].elements + 1 >= splits_[head_].capacity) advance();
    }
    return before;
  }
  ++failures_;
  return kMaxCount;
}

std::uint32_t SlidingCounter::seen(std::int64_t id) const noexcept {
  const Place place = place_of(id);
  for (std::uint32_t forward = 0; forward < kForwardWindow; ++forward) {
    const Split& split = splits_[at(head_ + forward)];
    if (split.cells == nullptr) break;
    const std::uint32_t* cell = usable_cell(split, place);
    if (cell == nullptr) continue;
    if (*cell != 0) return *cell & kCountMask;
    break;
  }
  return count_behind(place);
}

std::uint64_t SlidingCounter::remembered() const noexcept {
  std::uint64_t ids = 0;
  for (const auto& split : splits_) ids += split.elements;
  return ids;
}

// Whether the ring may forget its oldest split: it has grown, or the ring holds as much as one that has grown.
bool SlidingCounter::may_forget(const Split& oldest, std::uint64_t ids) const noexcept {
  return oldest.capacity == 0 || oldest.capacity == split_capacity_ || ids >= (split_capacity_ - 1) * (split_num_ - 1);
}

// Moves the head, and prepares the split after it: the oldest one, wiped, or a new one while the ring grows.
void SlidingCounter::advance() {
  const std::uint64_t capacity = std::min(split_capacity_, splits_[head_].capacity * kGrowth);
  head_ = at(head_ + 1);
  ++head_increment_;
  const auto oldest = [this] { return at(head_ + 1); };
  if (!may_forget(splits_[oldest()], remembered()) && splits_.size() < split_num_ + kMostExtraSplits) {
    splits_.insert(splits_.begin() + head_ + 1, Split{.cells = nullptr, .elements = 0, .capacity = capacity});
    return;
  }
  Split& next = splits_[oldest()];
  if (next.capacity != capacity) next = Split{.cells = nullptr, .elements = 0, .capacity = capacity};
  if (next.cells != nullptr) std::memset(next.cells.get(), 0, cells(next) * sizeof(std::uint32_t));
  next.elements = 0;
  // The small splits of the growth leave one by one: behind the head, the ring needs split_num - 2.
  while (splits_.size() > split_num_) {
    const std::uint32_t last = at(head_ + 2);
    if (!may_forget(splits_[last], remembered())) break;
    splits_.erase(splits_.begin() + last);
    if (last < head_) --head_;
  }
}

void SlidingCounter::merge(SlidingCounter&& other) {
  std::vector<Split> merged;
  // The oldest first: `age` counts from the head backwards; -1 is the split after the head.
  for (auto age = static_cast<std::int64_t>(std::max(splits_.size(), other.splits_.size())) - 2; age >= -1; --age) {
    for (SlidingCounter* counter : {this, &other}) {
      const auto ring = static_cast<std::int64_t>(counter->splits_.size());
      // The ring is shorter, or the head has not been there yet.
      if (age > ring - 2 || age > static_cast<std::int64_t>(counter->head_increment_)) continue;
      Split& split = counter->splits_[counter->at(static_cast<std::uint64_t>(counter->head_ + ring - age))];
      if (split.elements == 0) continue;
      if (!merged.empty() && merged.back().capacity == split.capacity &&
          merged.back().elements + split.elements <= split.capacity) {
        copy_cells(split, merged.back());
      } else {
        merged.push_back(std::move(split));
      }
    }
  }
  std::uint64_t ids = 0;
  for (const auto& split : merged) ids += split.elements;
  std::size_t forgotten = 0;
  while (merged.size() - forgotten >= split_num_) {
    const bool is_long = merged.size() - forgotten >= split_num_ + kMostExtraSplits;
    if (!is_long && !may_forget(merged[forgotten], ids)) break;
    ids -= merged[forgotten].elements;
    ++forgotten;
  }
  merged.erase(merged.begin(), merged.begin() + static_cast<std::ptrdiff_t>(forgotten));
  head_ = merged.empty() ? 0 : static_cast<std::uint32_t>(merged.size() - 1);
  head_increment_ = head_;
  failures_ += other.failures_;
  merged.resize(std::max<std::size_t>(split_num_, merged.size() + 1));
  splits_ = std::move(merged);
  if (splits_[head_].capacity == 0) begin();
  splits_[head_ + 1].capacity = splits_[head_].capacity;
}

void SlidingCounter::copy_cells(const Split& from, Split& into) noexcept {
  const std::uint64_t end = cells(from);
  for (std::uint64_t cell = 0; cell < end; ++cell) {
    if (from.cells[cell] == 0) continue;
    // Its first place is not known, but all cells from there to here are in use in `from`, so they are in `into` too
    // when this one's turn comes: searching from here, it is found again.
    for (std::uint64_t near = cell; near < std::min(cell + kMaxProbe, end); ++near) {
      std::uint32_t& ours = into.cells[near];
      const bool is_new = ours == 0;
      if (!is_new && (ours & ~kCountMask) != (from.cells[cell] & ~kCountMask)) continue;
      ours = std::max(ours, from.cells[cell]);
      if (is_new) ++into.elements;
      break;
    }
  }
}

void SlidingCounter::clear() noexcept {
  splits_.resize(split_num_);
  for (auto& split : splits_) split = Split{};
  head_ = 0;
  head_increment_ = 0;
  failures_ = 0;
  begin();
}

std::size_t SlidingCounter::memory_bytes() const noexcept {
  std::size_t bytes = sizeof *this + splits_.size() * sizeof(Split);
  for (const auto& split : splits_) {
    if (split.cells != nullptr) bytes += cells(split) * sizeof(std::uint32_t);
  }
  return bytes;
}

void SlidingCounter::save(std::vector<std::byte>& out) const {
  put(out, static_cast<std::uint32_t>(splits_.size()));
  put(out, head_);
  put(out, head_increment_);
  put(out, failures_);
  for (const auto& split : splits_) {
    put(out, split.capacity);
    put(out, split.elements);
    if (split.elements == 0) continue;
    const std::uint64_t count = cells(split);
    for (std::uint64_t begin = 0; begin < count; begin += 64) {
      const std::uint64_t end = std::min(count, begin + 64);
      std::uint64_t used = 0;
      for (std::uint64_t i = begin; i < end; ++i) used |= std::uint64_t{split.cells[i] != 0} << (i - begin);
      put(out, used);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      if (split.cells[i] != 0) put(out, split.cells[i]);
    }
  }
}

bool SlidingCounter::load(std::span<const std::byte>& in, bool has_capacities) {
  std::uint32_t head = 0;
  std::uint64_t head_increment = 0;
  std::uint64_t failures = 0;
  std::uint32_t ring = split_num_;
  if (has_capacities && (!take(in, ring) || ring < split_num_ || ring > split_num_ + kMostExtraSplits)) return false;
  if (!take(in, head) || !take(in, head_increment) || !take(in, failures) || head >= ring) return false;
  std::vector<Split> splits(ring);
  for (auto& split : splits) {
    split.capacity = split_capacity_;
    if (has_capacities && (!take(in, split.capacity) || split.capacity > split_capacity_)) return false;
    if (!take(in, split.elements)) return false;
    if (split.elements == 0) continue;
    const std::uint64_t count = cells(split);
    const std::uint64_t words = (count + 63) / 64;
    if (split.elements > count || in.size() < words * 8 + split.elements * sizeof(std::uint32_t)) return false;
    const auto map = in.first(words * 8);
    auto used_cells = in.subspan(words * 8, split.elements * sizeof(std::uint32_t));
    in = in.subspan(map.size() + used_cells.size());
    allocate(split);
    for (std::uint64_t word = 0; word < words; ++word) {
      std::uint64_t used = 0;
      std::memcpy(&used, map.data() + word * 8, sizeof used);
      for (; used != 0; used &= used - 1) {
        const std::uint64_t i = word * 64 + static_cast<std::uint64_t>(std::countr_zero(used));
        std::uint32_t cell = 0;
        if (i >= count || !take(used_cells, cell) || (cell & kCountMask) == 0) return false;
        split.cells[i] = cell;
      }
    }
    if (!used_cells.empty()) return false;
  }
  // The head and the split after it take ids, so they need room.
  if (splits[head].capacity == 0 || splits[(head + 1) % ring].capacity == 0) return false;
  splits_ = std::move(splits);
  head_ = head;
  head_increment_ = head_increment;
  failures_ = failures;
  return true;
}

}  // namespace engine
