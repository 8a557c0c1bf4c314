#include "engine/sliding_counter.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "engine/hash.h"

namespace engine {
namespace {

// How far an id may lie from its first place. The original stops at 16 inside a sliding filter and lets in about one
// id in a hundred unseen for it; four cache lines are the same price and end that.
constexpr std::uint64_t kMaxProbe = 64;
constexpr std::uint32_t kForwardWindow = 2;
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
  std::uint64_t home;
  std::uint32_t signature;  // in the upper half, as in a cell
};

void SlidingCounter::Release::operator()(std::uint32_t* cells) const noexcept { std::free(cells); }

SlidingCounter::SlidingCounter(std::uint64_t capacity, std::uint32_t split_num)
    : split_capacity_(capacity / (split_num - 1)),
      home_cells_(split_capacity_ * 12 / 10),
      cells_(home_cells_ + kMaxProbe),
      splits_(split_num) {}

SlidingCounter::Place SlidingCounter::place_of(std::int64_t id) const noexcept {
  const std::uint64_t hash = scramble(static_cast<std::uint64_t>(id));
  const auto home = static_cast<std::uint64_t>(static_cast<Wide>(hash) * home_cells_ >> 64);
  // The place uses the upper bits of the hash, the signature the lower ones.
  return {home, static_cast<std::uint32_t>(hash << 16)};
}

// The first cell on the id's way that is empty or holds the id; null when no cell is.
std::uint32_t* SlidingCounter::usable_cell(const Split& split, const Place& place) const noexcept {
  for (std::uint64_t i = 0; i < kMaxProbe; ++i) {
    std::uint32_t* cell = split.cells.get() + place.home + i;  // home + 64 is within the cells, so nothing wraps
    if (*cell == 0 || (*cell & ~kCountMask) == place.signature) return cell;
  }
  return nullptr;
}

// The count of an id in the splits behind the head.
std::uint32_t SlidingCounter::count_behind(const Place& place) const noexcept {
  const std::uint64_t window = std::min<std::uint64_t>(head_increment_, splits_.size() - kForwardWindow);
  for (std::uint64_t back = 1; back <= window; ++back) {
    const Split& split = splits_[at(head_ + splits_.size() - back)];
    if (split.cells == nullptr) continue;
    const std::uint32_t* cell = usable_cell(split, place);
    if (cell != nullptr && *cell != 0) return *cell & kCountMask;
  }
  return 0;
}

void SlidingCounter::allocate(Split& split) const {
  if (split.cells != nullptr) return;
  split.cells.reset(static_cast<std::uint32_t*>(std::calloc(cells_, sizeof(std::uint32_t))));
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
      if (splits_[head_].elements + 1 >= split_capacity_) advance();
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

void SlidingCounter::advance() {
  head_ = at(head_ + 1);
  ++head_increment_;
  Split& next = splits_[at(head_ + 1)];
  if (next.cells != nullptr) std::memset(next.cells.get(), 0, cells_ * sizeof(std::uint32_t));
  next.elements = 0;
}

void SlidingCounter::merge(SlidingCounter&& other) {
  const std::uint64_t ring = splits_.size();
  std::vector<Split> merged;
  // The oldest first: `shift` from the head backwards, and at last the split after the head.
  for (std::uint64_t shift = kForwardWindow; shift <= ring + 1; ++shift) {
    for (SlidingCounter* counter : {this, &other}) {
      if (shift + counter->head_increment_ < ring) continue;  // the head has not been there yet
      Split& split = counter->splits_[at(counter->head_ + shift)];
      if (split.elements == 0) continue;
      if (!merged.empty() && merged.back().elements + split.elements <= split_capacity_) {
        copy_cells(split, merged.back());
      } else {
        merged.push_back(std::move(split));
      }
    }
  }
  if (merged.size() >= ring) merged.erase(merged.begin(), merged.end() - static_cast<std::ptrdiff_t>(ring - 1));
  head_ = merged.empty() ? 0 : static_cast<std::uint32_t>(merged.size() - 1);
  head_increment_ = head_;
  failures_ += other.failures_;
  merged.resize(ring);
  splits_ = std::move(merged);
}

void SlidingCounter::copy_cells(const Split& from, Split& into) const noexcept {
  for (std::uint64_t cell = 0; cell < cells_; ++cell) {
    if (from.cells[cell] == 0) continue;
    // Its first place is not known, but all cells from there to here are in use in `from`, so they are in `into` too
    // when this one's turn comes: searching from here, it is found again.
    for (std::uint64_t near = cell; near < std::min(cell + kMaxProbe, cells_); ++near) {
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
  for (auto& split : splits_) split = Split{};
  head_ = 0;
  head_increment_ = 0;
  failures_ = 0;
}

std::size_t SlidingCounter::memory_bytes() const noexcept {
  std::size_t bytes = sizeof *this + splits_.size() * sizeof(Split);
  for (const auto& split : splits_) {
    if (split.cells != nullptr) bytes += cells_ * sizeof(std::uint32_t);
  }
  return bytes;
}

void SlidingCounter::save(std::vector<std::byte>& out) const {
  put(out, head_);
  put(out, head_increment_);
  put(out, failures_);
  for (const auto& split : splits_) {
    put(out, split.elements);
    if (split.elements == 0) continue;
    for (std::uint64_t begin = 0; begin < cells_; begin += 64) {
      const std::uint64_t end = std::min(cells_, begin + 64);
      std::uint64_t used = 0;
      for (std::uint64_t i = begin; i < end; ++i) used |= std::uint64_t{split.cells[i] != 0} << (i - begin);
      put(out, used);
    }
    for (std::uint64_t i = 0; i < cells_; ++i) {
      if (split.cells[i] != 0) put(out, split.cells[i]);
    }
  }
}

bool SlidingCounter::load(std::span<const std::byte>& in) {
  std::uint32_t head = 0;
  std::uint64_t head_increment = 0;
  std::uint64_t failures = 0;
  if (!take(in, head) || !take(in, head_increment) || !take(in, failures) || head >= splits_.size()) return false;
  std::vector<Split> splits(splits_.size());
  const std::uint64_t words = (cells_ + 63) / 64;
  for (auto& split : splits) {
    if (!take(in, split.elements)) return false;
    if (split.elements == 0) continue;
    if (split.elements > cells_ || in.size() < words * 8 + split.elements * sizeof(std::uint32_t)) return false;
    const auto map = in.first(words * 8);
    auto cells = in.subspan(words * 8, split.elements * sizeof(std::uint32_t));
    in = in.subspan(map.size() + cells.size());
    allocate(split);
    for (std::uint64_t word = 0; word < words; ++word) {
      std::uint64_t used = 0;
      std::memcpy(&used, map.data() + word * 8, sizeof used);
      for (; used != 0; used &= used - 1) {
        const std::uint64_t i = word * 64 + static_cast<std::uint64_t>(std::countr_zero(used));
        std::uint32_t cell = 0;
        if (i >= cells_ || !take(cells, cell) || (cell & kCountMask) == 0) return false;
        split.cells[i] = cell;
      }
    }
    if (!cells.empty()) return false;
  }
  splits_ = std::move(splits);
  head_ = head;
  head_increment_ = head_increment;
  failures_ = failures;
  return true;
}

}  // namespace engine
