// core.cc: see core.h.
//
// An entry is one (key, item): a slot of a slab, found through an open-addressing table of slot numbers. Its body (key,
// packed payload) lies on the heap or in a spill file. Actions lie in `Extra`, which most entries do not have. A slot
// is reused when the entry is gone and no timer refers to it, so a timer always finds the key that it was ordered by.
#include "joiner/core.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "core_state.h"
#include "engine/error.h"
#include "joiner/hashes.h"
#include "wire.h"

namespace joiner {

Core::Core(Settings settings, const std::string& spill_folder)
    : settings_(std::move(settings)),
      state_(std::make_unique<CoreState>(std::max<std::int64_t>(60'000, (settings_.window + settings_.horizon) / 64))) {
  for (auto& task : settings_.tasks) std::sort(task.begin(), task.end());
  if (!spill_folder.empty()) state_->spill = std::make_unique<SpillStore>(spill_folder);
}

Core::~Core() = default;

// --- events ----------------------------------------------------------------------------------------------------------

namespace {

void check_key(std::string_view key) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    throw engine::ConfigError("key has " + std::to_string(key.size()) + " bytes, expected 1 to 256");
  }
}

}  // namespace

void Core::add_impression(const Impression& impression) {
  check_key(impression.key);
  const std::int64_t close_time = impression.time + settings_.window;
  const bool is_late = watermark_ && *watermark_ >= close_time;
  if (watermark_ && *watermark_ >= close_time + settings_.horizon) {
    ++counters_.late_impression_dropped;
    return;
  }
  const std::uint32_t place = find_or_add(impression.key, impression.item);
  Entry& entry = state_->slab[place];
  if (entry.is(kImpression)) {
    ++counters_.dup_impression;
    if (settings_.is_fast || entry.is(kClosed) || impression.time > entry.time) return;
    if (impression.time == entry.time) {
      std::string scratch;
      if (impression.event_id >= Body(state_->body_of(entry, scratch)).event_id(entry.time)) return;
    }
  } else {
    ++open_;
  }
  state_->set_body(entry, Body::make(impression, packer_));
  judge_again(entry, impression.time);
  entry.set(kImpression);
  state_->closes.add({close_time, state_->ref(place)}, CloseOrder{*state_});
  if (settings_.is_fast) emit_first(entry, impression.key);
  take_actions(entry, impression.key);
  if (is_late) {
    if (!settings_.is_fast) ++counters_.late_impression;
    close(place, impression.key);
  }
}

void Core::add_action(const Action& action) {
  check_key(action.key);
  const std::uint32_t place = find_or_add(action.key, action.item);
  Entry& entry = state_->slab[place];
  if (!entry.is(kImpression) || action.time < entry.time - settings_.skew) {
    hold(place, action);
    prune(place);
  } else if (entry.is(kClosed)) {
    take_late(entry, action.key, action.time, action.code);
  } else {
    take(entry, action.key, action.time, action.code);
  }
}

void Core::advance(std::int64_t watermark) {
  if (watermark_ && watermark <= *watermark_) return;
  watermark_ = watermark;
  Timer timer{};
  std::string key;
  const CloseDue close_due{*state_, settings_.window};
  while (state_->closes.pop(watermark, timer, close_due, CloseOrder{*state_})) {
    Entry& entry = state_->slab[timer.entry];
    if (entry.is(kImpression) && !entry.is(kClosed) && entry.time + settings_.window == timer.due) {
      std::string scratch;
      key = Body(state_->body_of(entry, scratch)).key();
      close(timer.entry, key);
    }
    state_->unref(timer.entry);
  }
  const ExpiryDue expiry_due{*state_, settings_.window + settings_.horizon};
  while (state_->expiries.pop(watermark, timer, expiry_due, DueOrder{})) {
    Entry& entry = state_->slab[timer.entry];
    if (entry.is(kImpression) && entry.is(kClosed) && entry.time + settings_.window + settings_.horizon == timer.due) {
      expire_impression(timer.entry);
    }
    state_->unref(timer.entry);
  }
  const HoldDue held_due{*state_, settings_.orphan_hold};
  while (state_->holds.pop(watermark, timer, held_due, HoldOrder{*state_})) {
    Entry& entry = state_->slab[timer.entry];
    if (entry.extra != nullptr && !entry.extra->held.empty()) {
      auto& held = entry.extra->held;
      const auto end = std::find_if(held.begin(), held.end(), [&](const CodeTime& each) {
        return each.time + settings_.orphan_hold > timer.due;
      });
      const auto count = static_cast<std::size_t>(end - held.begin());
      counters_.orphan += count;
      held_ -= count;
      code_times_ -= count;
      held.erase(held.begin(), end);
      if (held.empty()) {
        --held_entries_;
      } else if (count > 0) {
        state_->holds.add({held.front().time + settings_.orphan_hold, state_->ref(timer.entry)}, HoldOrder{*state_});
      }
      prune(timer.entry);
    }
    state_->unref(timer.entry);
  }
}

// --- actions ---------------------------------------------------------------------------------------------------------

void Core::hold(std::uint32_t slot, const Action& action) {
  Entry& entry = state_->slab[slot];
  if (watermark_ && *watermark_ >= action.time + settings_.orphan_hold) {
    ++counters_.orphan;
    return;
  }
  static const std::vector<CodeTime> kNone;
  const auto& known = entry.extra != nullptr ? entry.extra->held : kNone;
  const auto before = [](const CodeTime& a, const CodeTime& b) {
    return a.time != b.time ? a.time < b.time : a.code < b.code;
  };
  const CodeTime wanted{action.time, action.code};
  const auto at = std::lower_bound(known.begin(), known.end(), wanted, before);
  if (at != known.end() && at->time == wanted.time && at->code == wanted.code) {
    ++counters_.dup_action;
    return;
  }
  if (known.size() >= settings_.max_orphans) {
    ++counters_.orphan_overflow;
    return;
  }
  const auto place = at - known.begin();
  extras_ += entry.extra == nullptr ? 1 : 0;
  auto& held = entry.make_extra().held;
  held_entries_ += held.empty() ? 1 : 0;
  held.insert(held.begin() + place, wanted);
  ++held_;
  ++code_times_;
  if (place == 0) state_->holds.add({action.time + settings_.orphan_hold, state_->ref(slot)}, HoldOrder{*state_});
}

// Applies the held actions that do not precede the impression by more than the skew.
void Core::take_actions(Entry& entry, std::string_view key) {
  if (entry.extra == nullptr || entry.extra->held.empty()) return;
  auto& held = entry.extra->held;
  const std::int64_t start = entry.time - settings_.skew;
  const auto begin = std::find_if(held.begin(), held.end(), [&](const CodeTime& each) { return each.time >= start; });
  const std::vector<CodeTime> taken(begin, held.end());
  held.erase(begin, held.end());
  held_ -= taken.size();
  code_times_ -= taken.size();
  if (held.empty()) --held_entries_;
  for (const CodeTime& each : taken) take(entry, key, each.time, each.code);
}

void Core::judge_again(Entry& entry, std::int64_t time) {
  entry.time = time;
  if (entry.extra == nullptr) return;
  Extra& extra = *entry.extra;
  std::vector<CodeTime> codes;
  std::vector<CodeTime> after;
  for (auto* known : {&extra.codes, &extra.after}) {
    for (const CodeTime& each : *known) insert_code(each.time < time + settings_.window ? codes : after, each);
  }
  extra.codes = std::move(codes);
  extra.after = std::move(after);
}

void Core::take(Entry& entry, std::string_view key, std::int64_t time, std::int32_t code) {
  const bool is_after = time >= entry.time + settings_.window;
  if (settings_.is_fast) {
    if (is_after) {
      take_late(entry, key, time, code);
    } else {
      learn(entry, key, time, code);
    }
    return;
  }
  extras_ += entry.extra == nullptr ? 1 : 0;
  Extra& extra = entry.make_extra();
  CodeTime* in_window = find_code(extra.codes, code);
  CodeTime* after = in_window == nullptr ? find_code(extra.after, code) : nullptr;
  if (in_window != nullptr || after != nullptr) {
    ++counters_.dup_action;
    if (in_window != nullptr) {
      in_window->time = std::min(in_window->time, time);
    } else if (is_after) {
      after->time = std::min(after->time, time);
    } else {
      extra.after.erase(extra.after.begin() + (after - extra.after.data()));
      insert_code(extra.codes, {time, code});
    }
  } else if (extra.codes.size() + extra.after.size() >= settings_.max_codes) {
    ++counters_.action_overflow;
  } else {
    insert_code(is_after ? extra.after : extra.codes, {time, code});
    ++code_times_;
  }
}

void Core::take_late(Entry& entry, std::string_view key, std::int64_t time, std::int32_t code) {
  if (settings_.late == Late::kDrop && (entry.extra == nullptr || find_code(entry.extra->codes, code) == nullptr)) {
    ++counters_.late_dropped;
    return;
  }
  learn(entry, key, time, code);
}

void Core::learn(Entry& entry, std::string_view key, std::int64_t time, std::int32_t code) {
  (void)key;
  extras_ += entry.extra == nullptr ? 1 : 0;
  Extra& extra = entry.make_extra();
  if (find_code(extra.codes, code) != nullptr) {
    ++counters_.dup_action;
    return;
  }
  if (extra.codes.size() >= settings_.max_codes) {
    ++counters_.action_overflow;
    return;
  }
  list_codes(extra.codes, codes_);
  labels_of(entry, labels_);
  insert_code(extra.codes, {time, code});
  ++code_times_;
  labels_of(entry, new_labels_);
  if (labels_ == new_labels_) {
    counters_.late_no_change += settings_.is_fast ? 0 : 1;
    return;
  }
  counters_.late_emitted += settings_.is_fast ? 0 : 1;
  ++extra.emission;
  const bool is_correction = settings_.late == Late::kCorrect;
  if (settings_.is_fast || is_correction) {
    for (std::size_t task = 0; task < labels_.size(); ++task) {
      if (labels_[task] == new_labels_[task]) labels_[task] = new_labels_[task] = kInvalidLabel;
    }
  }
  list_codes(extra.codes, new_codes_);
  const std::int64_t cause = std::max(time, first_row_time(entry));
  if (is_correction && entry.is(kFirstRow)) {
    const bool is_weighted = entry.is(kFirstNegative) && settings_.samples_by_weight;
    emit(entry, labels_, codes_, -(is_weighted ? 1.0 / settings_.sample_rate : 1.0), cause);
  }
  emit(entry, new_labels_, new_codes_, 1.0, cause);
  extra.emitted = new_codes_;
}

// --- emissions -------------------------------------------------------------------------------------------------------

void Core::close(std::uint32_t place, std::string_view key) {
  Entry& entry = state_->slab[place];
  entry.set(kClosed);
  --open_;
  if (!settings_.is_fast) {
    emit_first(entry, key);
    if (entry.extra != nullptr && !entry.extra->after.empty()) {
      std::vector<CodeTime> after;
      after.swap(entry.extra->after);
      code_times_ -= after.size();
      std::sort(after.begin(), after.end(), [](const CodeTime& a, const CodeTime& b) {
        return a.time != b.time ? a.time < b.time : a.code < b.code;
      });
      for (const CodeTime& each : after) take_late(entry, key, each.time, each.code);
    }
  }
  if (settings_.late == Late::kDrop) {
    std::string scratch;
    state_->set_body(entry, std::string(Body(state_->body_of(entry, scratch)).without_payload()));
  }
  state_->expiries.add({entry.time + settings_.window + settings_.horizon, state_->ref(place)}, DueOrder{});
}

void Core::emit_first(Entry& entry, std::string_view key) {
  labels_of(entry, labels_);
  double weight = 1.0;
  if (std::none_of(labels_.begin(), labels_.end(), [](float label) { return label != 0; })) {
    if (draw_uniform(key, entry.item, settings_.salt) >= settings_.sample_rate) {
      ++counters_.sampled_out;
      return;
    }
    entry.set(kFirstNegative);
    if (settings_.samples_by_weight) weight = 1.0 / settings_.sample_rate;
  }
  static const std::vector<CodeTime> kNone;
  list_codes(entry.extra != nullptr ? entry.extra->codes : kNone, codes_);
  emit(entry, labels_, codes_, weight, first_row_time(entry));
  entry.set(kFirstRow);
  if (entry.extra != nullptr) entry.extra->emitted = codes_;
}

void Core::labels_of(const Entry& entry, std::vector<float>& labels) const {
  labels.assign(settings_.tasks.size(), 0.0F);
  if (entry.extra == nullptr) return;
  for (std::size_t task = 0; task < labels.size(); ++task) {
    const auto& positive = settings_.tasks[task];
    for (const CodeTime& each : entry.extra->codes) {
      if (std::binary_search(positive.begin(), positive.end(), each.code)) {
        labels[task] = 1.0F;
        break;
      }
    }
  }
}

// Event time from which the row of emission 0 can exist.
std::int64_t Core::first_row_time(const Entry& entry) const {
  return entry.time + (settings_.is_fast ? 0 : settings_.window);
}

void Core::emit(const Entry& entry, const std::vector<float>& labels, const std::vector<std::int32_t>& actions,
                double weight, std::int64_t cause_time) {
  std::string scratch;
  const Body body(state_->body_of(entry, scratch));
  const Body::Parts parts = body.parse(entry.time);
  Rows::Row row{};
  row.time = entry.time;
  row.item = entry.item;
  row.event_id = parts.event_id;
  row.ingest_time = parts.ingest_time;
  row.cause_time = cause_time;
  row.key_begin = rows_.bytes.size();
  row.key_size = static_cast<std::uint32_t>(parts.key.size());
  row.payload_size = static_cast<std::uint32_t>(parts.packed.size());
  rows_.bytes.append(parts.key).append(parts.packed);
  row.codes_begin = rows_.codes.size();
  row.actions = static_cast<std::uint32_t>(actions.size());
  rows_.codes.insert(rows_.codes.end(), actions.begin(), actions.end());
  if (entry.extra != nullptr) {
    const auto& before = entry.extra->emitted;
    row.pre_actions = static_cast<std::uint32_t>(before.size());
    rows_.codes.insert(rows_.codes.end(), before.begin(), before.end());
    row.emission = entry.extra->emission;
  }
  row.weight = weight;
  row.sample_rate = settings_.samples_by_weight ? 1.0F : static_cast<float>(settings_.sample_rate);
  rows_.labels.insert(rows_.labels.end(), labels.begin(), labels.end());
  rows_.rows.push_back(row);
}

// --- life of an entry ------------------------------------------------------------------------------------------------

// Forgets a closed impression. Held actions stay.
void Core::expire_impression(std::uint32_t place) {
  Entry& entry = state_->slab[place];
  if (entry.extra != nullptr) {
    code_times_ -= entry.extra->codes.size() + entry.extra->after.size();
    std::vector<CodeTime> held = std::move(entry.extra->held);
    *entry.extra = Extra{};
    entry.extra->held = std::move(held);
  }
  if (entry.extra != nullptr && !entry.extra->held.empty()) {
    std::string scratch;
    state_->set_body(entry, std::string(Body(state_->body_of(entry, scratch)).without_payload()));
  }
  entry.flags &= kLive | kSpilled;
  prune(place);
}

void Core::prune(std::uint32_t place) {
  Entry& entry = state_->slab[place];
  if (entry.is(kImpression) || (entry.extra != nullptr && !entry.extra->held.empty())) return;
  state_->table.remove(*state_, place);
  --live_;
  if (entry.extra != nullptr) {
    --extras_;
    delete entry.extra;
    entry.extra = nullptr;
  }
  entry.flags &= kSpilled;
  state_->recycle(place);
}

std::uint32_t Core::find_or_add(std::string_view key, std::uint64_t item) {
  const auto hash = static_cast<std::uint32_t>(mix(identity_hash(key, item)));
  std::string scratch;
  const auto known = state_->table.find(*state_, hash, [&](const Entry& entry) {
    return entry.item == item && Body(state_->body_of(entry, scratch)).key() == key;
  });
  if (known) return *known;
  const auto [entry, place] = state_->take_slot();
  entry.item = item;
  entry.hash = hash;
  entry.flags = kLive;
  state_->set_body(entry, Body::make_key(key));
  state_->table.add(*state_, place);
  ++live_;
  return place;
}

// --- bounds ----------------------------------------------------------------------------------------------------------

bool Core::spill_bucket(const std::vector<std::uint32_t>& places, std::size_t bytes, bool is_close) {
  std::map<std::int64_t, std::pair<std::string, std::vector<std::pair<std::uint32_t, std::uint64_t>>>> files;
  std::string scratch;
  for (const std::uint32_t place : places) {
    const Entry& entry = state_->slab[place];
    if (!entry.is(kImpression) || entry.is(kSpilled) || entry.is(kClosed) == is_close) continue;
    auto& [buffer, moved] = files[state_->spill_file(entry)];
    moved.emplace_back(place, buffer.size());
    put_fixed(buffer, entry.body_size());
    buffer.append(state_->body_of(entry, scratch));
  }
  for (auto& [number, file] : files) {
    auto& [buffer, moved] = file;
    std::sort(moved.begin(), moved.end());
    moved.erase(std::unique(moved.begin(), moved.end(), [](auto& a, auto& b) { return a.first == b.first; }),
                moved.end());
    const std::uint64_t begin = state_->spill->append(number, buffer, moved.size());
    for (const auto& [place, offset] : moved) {
      Entry& entry = state_->slab[place];
      state_->clear_body(entry);
      entry.offset = begin + offset;
      entry.set(kSpilled);
    }
  }
  return memory() <= bytes;
}

void Core::spill(std::size_t bytes) {
  if (!state_->spill || memory() <= bytes) return;
  if (settings_.late != Late::kDrop) {
    for (const auto& [bucket, places] : state_->expiries.far()) {
      if (spill_bucket(places, bytes, /*is_close=*/false)) return;
    }
  }
  for (const auto& [bucket, places] : state_->closes.far()) {
    if (spill_bucket(places, bytes, /*is_close=*/true)) return;
  }
}

std::size_t Core::close_oldest(std::size_t count) {
  const CloseDue close_due{*state_, settings_.window};
  std::size_t closed = 0;
  Timer timer{};
  while (closed < count && state_->closes.pop(INT64_MAX, timer, close_due, CloseOrder{*state_})) {
    Entry& entry = state_->slab[timer.entry];
    if (entry.is(kImpression) && !entry.is(kClosed) && entry.time + settings_.window == timer.due) {
      std::string scratch;
      const std::string key(Body(state_->body_of(entry, scratch)).key());
      close(timer.entry, key);
      ++closed;
    }
    state_->unref(timer.entry);
  }
  counters_.early_close += closed;
  return closed;
}

std::size_t Core::drop_oldest_held(std::size_t count) {
  const HoldDue held_due{*state_, settings_.orphan_hold};
  std::size_t dropped = 0;
  Timer timer{};
  while (dropped < count && state_->holds.pop(INT64_MAX, timer, held_due, HoldOrder{*state_})) {
    Entry& entry = state_->slab[timer.entry];
    if (entry.extra != nullptr && !entry.extra->held.empty() &&
        entry.extra->held.front().time + settings_.orphan_hold == timer.due) {
      const std::size_t actions = entry.extra->held.size();
      counters_.orphan_overflow += actions;
      held_ -= actions;
      code_times_ -= actions;
      entry.extra->held.clear();
      --held_entries_;
      ++dropped;
      prune(timer.entry);
    }
    state_->unref(timer.entry);
  }
  return dropped;
}

std::size_t Core::memory() const noexcept {
  return live_ * kEntryBytes + state_->body_bytes + extras_ * kExtraBytes + code_times_ * sizeof(CodeTime) +
         packer_.memory();
}

std::size_t Core::held_memory() const noexcept {
  return held_entries_ * (kEntryBytes + kExtraBytes) + held_ * sizeof(CodeTime);
}

std::uint64_t Core::spilled_bytes() const noexcept { return state_->spill ? state_->spill->bytes() : 0; }

}  // namespace joiner
