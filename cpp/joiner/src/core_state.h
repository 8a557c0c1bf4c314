// core_state.h: entries of a core, the table that finds them, their bodies and their timers. Private to the core.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "joiner/events.h"
#include "joiner/packer.h"
#include "spill_store.h"
#include "timers.h"
#include "wire.h"

namespace joiner {

enum Flag : std::uint32_t {
  kLive = 1,
  kImpression = 2,
  kClosed = 4,
  kFirstRow = 8,        // emission 0 was written
  kFirstNegative = 16,  // emission 0 had no positive label
  kSpilled = 32,
};

// Estimates for the memory budget.
inline constexpr std::size_t kEntryBytes = 56;  // slot, table, timer
inline constexpr std::size_t kExtraBytes = 176;
inline constexpr std::size_t kAllocationBytes = 12;

struct CodeTime {
  std::int64_t time;
  std::int32_t code;
};

// Actions of an entry.
struct Extra {
  std::vector<CodeTime> codes;  // by code: in the window, or accepted by the late policy
  std::vector<CodeTime> after;  // by code: after the window, waiting for the close
  std::vector<CodeTime> held;   // by (time, code): waiting for an impression
  std::vector<std::int32_t> emitted;
  std::uint32_t emission = 0;
};

struct Entry {
  std::uint64_t item = 0;
  std::int64_t time = 0;
  union {
    char* body = nullptr;  // u32 size, bytes
    std::uint64_t offset;  // in the spill file, with kSpilled
  };
  Extra* extra = nullptr;
  std::uint32_t hash = 0;
  std::uint32_t flags : 8 = 0;
  std::uint32_t refs : 24 = 0;

  [[nodiscard]] bool is(Flag flag) const noexcept { return (flags & flag) != 0; }
  void set(Flag flag) noexcept { flags |= flag; }
  [[nodiscard]] std::uint32_t body_size() const noexcept {
    std::uint32_t size = 0;
    std::memcpy(&size, body, sizeof size);
    return size;
  }
  Extra& make_extra() {
    if (extra == nullptr) extra = new Extra;
    return *extra;
  }
};
static_assert(sizeof(Entry) == 40);

inline CodeTime* find_code(std::vector<CodeTime>& codes, std::int32_t code) {
  const auto at = std::lower_bound(codes.begin(), codes.end(), code,
                                   [](const CodeTime& each, std::int32_t wanted) { return each.code < wanted; });
  return at != codes.end() && at->code == code ? &*at : nullptr;
}

inline void insert_code(std::vector<CodeTime>& codes, CodeTime added) {
  codes.insert(std::lower_bound(codes.begin(), codes.end(), added.code,
                                [](const CodeTime& each, std::int32_t wanted) { return each.code < wanted; }),
               added);
}

inline void list_codes(const std::vector<CodeTime>& codes, std::vector<std::int32_t>& list) {
  list.clear();
  for (const CodeTime& each : codes) list.push_back(each.code);
}

// Key and payload of an entry: u8 key size - 1, key, u8 marks, [varint event id], [varint ingest time - time], payload.
class Body {
 public:
  struct Parts {
    std::string_view key;
    std::uint64_t event_id;
    std::int64_t ingest_time;
    std::string_view packed;
  };

  explicit Body(std::string_view bytes) : bytes_(bytes) {}

  static std::string make_key(std::string_view key) {
    std::string body;
    body.push_back(static_cast<char>(key.size() - 1));
    body.append(key).push_back('\0');
    return body;
  }

  static std::string make(const Impression& impression, Packer& packer) {
    std::string body;
    body.reserve(impression.key.size() + impression.payload.size() + 24);
    body.push_back(static_cast<char>(impression.key.size() - 1));
    body.append(impression.key).push_back('\0');
    char marks = 0;
    const std::size_t marks_at = body.size() - 1;
    if (impression.event_id != 0) {
      marks |= kEventId;
      put_varint(body, impression.event_id);
    }
    if (impression.ingest_time != 0) {
      marks |= kIngest;
      put_varint(body, zigzag(static_cast<std::int64_t>(static_cast<std::uint64_t>(impression.ingest_time) -
                                                        static_cast<std::uint64_t>(impression.time))));
    }
    body[marks_at] = marks;
    if (impression.is_packed) {
      body.append(impression.payload);
    } else {
      packer.pack(impression.payload, body);
    }
    return body;
  }

  [[nodiscard]] std::string_view key() const {
    return bytes_.substr(1, static_cast<std::size_t>(static_cast<std::uint8_t>(bytes_[0])) + 1);
  }

  [[nodiscard]] std::uint64_t event_id(std::int64_t time) const { return parse(time).event_id; }

  [[nodiscard]] std::string_view without_payload() const {
    const std::string_view packed = parse(0).packed;
    return bytes_.substr(0, bytes_.size() - packed.size());
  }

  [[nodiscard]] Parts parse(std::int64_t time) const {
    Parts parts{key(), 0, 0, {}};
    const char marks = bytes_[1 + parts.key.size()];
    FieldReader reader(bytes_.substr(2 + parts.key.size()));
    if ((marks & kEventId) != 0 && !reader.varint(parts.event_id)) fail();
    std::uint64_t shift = 0;
    if ((marks & kIngest) != 0) {
      if (!reader.varint(shift)) fail();
      parts.ingest_time =
          static_cast<std::int64_t>(static_cast<std::uint64_t>(unzigzag(shift)) + static_cast<std::uint64_t>(time));
    }
    parts.packed = reader.rest();
    return parts;
  }

  // Whether the bytes are a body, for snapshots.
  [[nodiscard]] bool is_whole() const {
    return !bytes_.empty() && bytes_.size() >= static_cast<std::size_t>(static_cast<std::uint8_t>(bytes_[0])) + 3;
  }

 private:
  static constexpr char kEventId = 1;
  static constexpr char kIngest = 2;

  [[noreturn]] static void fail() { throw engine::SnapshotCorrupt("body of an impression is truncated"); }

  std::string_view bytes_;
};

// Open-addressing table of slot numbers, by linear probing without tombstones.
class Table {
 public:
  template <class State, class Same>
  std::optional<std::uint32_t> find(State& state, std::uint32_t hash, Same&& same) {
    if (slots_.empty()) return std::nullopt;
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      if (slots_[at] == 0) return std::nullopt;
      Entry& entry = state.slab[slots_[at] - 1];
      if (entry.hash == hash && same(entry)) return slots_[at] - 1;
    }
  }

  template <class State>
  void add(State& state, std::uint32_t place) {
    if ((count_ + 1) * 10 > slots_.size() * 7) grow(state);
    put(state.slab[place].hash, place);
    ++count_;
  }

  template <class State>
  void remove(State& state, std::uint32_t place) {
    std::size_t at = state.slab[place].hash & mask_;
    while (slots_[at] != place + 1) at = (at + 1) & mask_;
    std::size_t hole = at;
    for (at = (at + 1) & mask_; slots_[at] != 0; at = (at + 1) & mask_) {
      const std::size_t home = state.slab[slots_[at] - 1].hash & mask_;
      if (((at - home) & mask_) >= ((at - hole) & mask_)) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    slots_[hole] = 0;
    --count_;
  }

 private:
  template <class State>
  void grow(State& state) {
    std::vector<std::uint32_t> old = std::move(slots_);
    slots_.assign(old.empty() ? 1024 : old.size() * 2, 0);
    mask_ = slots_.size() - 1;
    for (const std::uint32_t slot : old) {
      if (slot != 0) put(state.slab[slot - 1].hash, slot - 1);
    }
  }

  void put(std::uint32_t hash, std::uint32_t place) {
    std::size_t at = hash & mask_;
    while (slots_[at] != 0) at = (at + 1) & mask_;
    slots_[at] = place + 1;
  }

  std::vector<std::uint32_t> slots_;  // slot number + 1; 0 is free
  std::size_t mask_ = 0;
  std::size_t count_ = 0;
};

// Entries in chunks: addresses are stable, and growth copies nothing.
class Slab {
 public:
  Entry& operator[](std::uint32_t place) { return chunks_[place >> kBits][place & (kChunk - 1)]; }
  const Entry& operator[](std::uint32_t place) const { return chunks_[place >> kBits][place & (kChunk - 1)]; }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

  std::uint32_t push() {
    if (size_ >= UINT32_MAX - kChunk) throw engine::CapacityExceeded("a joiner holds at most 4 billion impressions");
    if ((size_ & (kChunk - 1)) == 0 && size_ >> kBits == chunks_.size()) {
      chunks_.push_back(std::make_unique<Entry[]>(kChunk));
    }
    return size_++;
  }

 private:
  static constexpr std::uint32_t kBits = 12;
  static constexpr std::uint32_t kChunk = 1U << kBits;

  std::vector<std::unique_ptr<Entry[]>> chunks_;
  std::uint32_t size_ = 0;
};

struct CoreState {
  explicit CoreState(std::int64_t file_span) : span(file_span) {}
  ~CoreState() {
    for (std::uint32_t place = 0; place < slab.size(); ++place) {
      Entry& entry = slab[place];
      if (!entry.is(kSpilled)) std::free(entry.body);
      delete entry.extra;
    }
  }
  CoreState(const CoreState&) = delete;
  CoreState& operator=(const CoreState&) = delete;

  // --- slots: a timer refers to one
  // -----------------------------------------------------------------------------------
  struct Slot {
    Entry& entry;
    std::uint32_t place;
  };

  Slot take_slot() {
    std::uint32_t place = 0;
    if (free.empty()) {
      place = slab.push();
    } else {
      place = free.back();
      free.pop_back();
    }
    return {slab[place], place};
  }

  std::uint32_t ref(std::uint32_t place) {
    ++slab[place].refs;
    return place;
  }

  void unref(std::uint32_t place) {
    --slab[place].refs;
    recycle(place);
  }

  // Frees a slot whose entry is gone, unless a timer refers to it.
  void recycle(std::uint32_t place) {
    Entry& entry = slab[place];
    if (entry.is(kLive) || entry.refs > 0) return;
    clear_body(entry);
    entry = Entry{};
    free.push_back(place);
  }

  // --- bodies
  // ---------------------------------------------------------------------------------------------------------
  void set_body(Entry& entry, const std::string& body) {
    const auto size = static_cast<std::uint32_t>(body.size());
    auto* memory = static_cast<char*>(std::malloc(sizeof size + body.size()));
    if (memory == nullptr) throw std::bad_alloc();
    std::memcpy(memory, &size, sizeof size);
    std::memcpy(memory + sizeof size, body.data(), body.size());
    clear_body(entry);
    entry.body = memory;
    body_bytes += sizeof size + body.size() + kAllocationBytes;
  }

  void clear_body(Entry& entry) {
    if (entry.is(kSpilled)) {
      spill->release(spill_file(entry));
      entry.flags &= ~static_cast<std::uint32_t>(kSpilled);
    } else if (entry.body != nullptr) {
      body_bytes -= sizeof(std::uint32_t) + entry.body_size() + kAllocationBytes;
      std::free(entry.body);
    }
    entry.body = nullptr;
  }

  std::string_view body_of(const Entry& entry, std::string& scratch) const {
    if (!entry.is(kSpilled)) return {entry.body + sizeof(std::uint32_t), entry.body_size()};
    scratch = spill->read(spill_file(entry), entry.offset);
    return scratch;
  }

  // Brings a spilled body back.
  void load(Entry& entry) {
    if (entry.is(kSpilled)) set_body(entry, spill->read(spill_file(entry), entry.offset));
  }

  [[nodiscard]] std::int64_t spill_file(const Entry& entry) const {
    return entry.time / span - (entry.time % span < 0 ? 1 : 0);
  }

  Slab slab;
  std::vector<std::uint32_t> free;
  Table table;
  Timers closes;
  Timers expiries;
  Timers holds;
  std::unique_ptr<SpillStore> spill;
  std::int64_t span;  // event time of one spill file
  std::size_t body_bytes = 0;
};

// --- orders of timers, the latest first ------------------------------------------------------------------------------

struct CloseOrder {
  CoreState& state;

  bool operator()(const Timer& a, const Timer& b) const {
    if (a.due != b.due) return a.due > b.due;
    std::string a_scratch;
    std::string b_scratch;
    const Entry& a_entry = state.slab[a.entry];
    const Entry& b_entry = state.slab[b.entry];
    const int keys =
        Body(state.body_of(a_entry, a_scratch)).key().compare(Body(state.body_of(b_entry, b_scratch)).key());
    return keys != 0 ? keys > 0 : a_entry.item > b_entry.item;
  }
};

struct DueOrder {
  bool operator()(const Timer& a, const Timer& b) const { return a.due > b.due; }
};

struct HoldOrder {
  CoreState& state;

  bool operator()(const Timer& a, const Timer& b) const {
    if (a.due != b.due) return a.due > b.due;
    const Entry& a_entry = state.slab[a.entry];
    const Entry& b_entry = state.slab[b.entry];
    return std::pair(a_entry.item, a_entry.hash) > std::pair(b_entry.item, b_entry.hash);
  }
};

// --- due times of timers that leave their bucket
// ----------------------------------------------------------------------

struct CloseDue {
  CoreState& state;
  std::int64_t window;

  bool operator()(std::uint32_t place, std::int64_t bucket, std::int64_t& due) const {
    Entry& entry = state.slab[place];
    due = entry.time + window;
    if (entry.is(kImpression) && !entry.is(kClosed) && Timers::bucket_of(due) == bucket) {
      state.load(entry);
      return true;
    }
    state.unref(place);
    return false;
  }
};

struct ExpiryDue {
  CoreState& state;
  std::int64_t lifetime;

  bool operator()(std::uint32_t place, std::int64_t bucket, std::int64_t& due) const {
    Entry& entry = state.slab[place];
    due = entry.time + lifetime;
    if (entry.is(kImpression) && entry.is(kClosed) && Timers::bucket_of(due) == bucket) return true;
    state.unref(place);
    return false;
  }
};

struct HoldDue {
  CoreState& state;
  std::int64_t hold;

  bool operator()(std::uint32_t place, std::int64_t bucket, std::int64_t& due) const {
    Entry& entry = state.slab[place];
    if (entry.extra != nullptr && !entry.extra->held.empty()) {
      due = entry.extra->held.front().time + hold;
      if (Timers::bucket_of(due) == bucket) return true;
    }
    state.unref(place);
    return false;
  }
};

}  // namespace joiner
