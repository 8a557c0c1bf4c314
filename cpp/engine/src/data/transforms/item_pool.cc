// item_pool.cc: queues of items, their undo log and their wire format.
#include "engine/data/transforms/item_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/cells.h"
#include "data/line_scan.h"
#include "data/transforms/row_fault.h"
#include "engine/data/row_encoder.h"
#include "engine/error.h"
#include "engine/tfrecord.h"
#include "wire.h"

namespace engine::data {

namespace {

using wire::put_block;
using wire::put_varint;

// A channel is written in pieces of about this size, so that no record comes near the largest that readers take.
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;

// proto3: zero is not on the wire.
void put_int(std::string& out, std::uint32_t field, std::int64_t value) {
  if (value == 0) return;
  put_varint(out, std::uint64_t{field} << 3 | wire::kVarint);
  put_varint(out, static_cast<std::uint64_t>(value));
}

std::string item_message(const PooledItem& item, const std::vector<std::string>& names) {
  std::string message;
  put_int(message, 1, item.id);
  if (!item.features->flat_fids.empty()) {
    std::string fids;
    for (const std::int64_t fid : item.features->flat_fids) put_varint(fids, static_cast<std::uint64_t>(fid));
    put_block(message, 2, fids);
  }
  for (std::size_t i = 0; i < names.size(); ++i) append_named_feature(message, 3, names[i], item.features->cells[i]);
  put_int(message, 4, item.seen_count);
  put_int(message, 5, item.sample_count);
  return message;
}

}  // namespace

std::shared_ptr<const ItemFeatures> ItemFeatures::copy(const std::vector<Cell>& cells,
                                                       std::vector<std::int64_t> flat_fids) {
  auto features = std::make_shared<ItemFeatures>();
  std::size_t total = 0;
  for (const Cell& cell : cells) total += cell.size;
  features->bytes = std::make_unique_for_overwrite<std::byte[]>(total);
  features->cells = cells;
  features->flat_fids = std::move(flat_fids);
  std::byte* at = features->bytes.get();
  for (Cell& cell : features->cells) {
    if (cell.size > 0) std::memcpy(at, cell.data, cell.size);
    cell.data = at;
    at += cell.size;
  }
  return features;
}

ItemPool::ItemPool(std::vector<std::string> feature_names, std::size_t max_items)
    : names_(std::move(feature_names)), max_items_(max_items) {
  if (max_items == 0) throw ConfigError("max_item_num is 0; a pool holds at least one item per channel");
}

std::size_t ItemPool::channel_size(std::int64_t channel) const noexcept {
  const auto found = channels_.find(channel);
  return found == channels_.end() ? 0 : found->second.items.size();
}

std::vector<std::int64_t> ItemPool::channel_ids() const {
  std::vector<std::int64_t> ids;
  for (const auto& [id, channel] : channels_) ids.push_back(id);
  return ids;
}

std::vector<PooledItem> ItemPool::items(std::int64_t channel) const {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return {};
  return {found->second.items.begin(), found->second.items.end()};
}

bool ItemPool::count(std::int64_t channel, std::int64_t item) {
  const auto places = index_.find(channel);
  if (places == index_.end()) return false;
  const auto place = places->second.find(item);
  if (place == places->second.end()) return false;
  Channel& queue = channels_.at(channel);
  ++queue.items[place->second - queue.first_serial].seen_count;
  log({Change::Kind::kCounted, channel, place->second, {}});
  return true;
}

void ItemPool::insert(std::int64_t channel, std::int64_t item, std::shared_ptr<const ItemFeatures> features) {
  Channel& queue = channels_[channel];
  auto& places = index_[channel];
  const std::uint64_t serial = queue.first_serial + queue.items.size();
  queue.items.push_back({item, std::move(features), 1, 0});
  places.emplace(item, serial);
  ++total_;
  log({Change::Kind::kInserted, channel, serial, {}});
  if (queue.items.size() <= max_items_) return;
  PooledItem oldest = std::move(queue.items.front());
  queue.items.pop_front();
  places.erase(oldest.id);
  --total_;
  log({Change::Kind::kEvicted, channel, queue.first_serial++, std::move(oldest)});
}

std::int64_t ItemPool::channel_at(std::size_t position) const {
  for (const auto& [id, channel] : channels_) {
    if (position < channel.items.size()) return id;
    position -= channel.items.size();
  }
  return channels_.rbegin()->first;
}

std::int64_t ItemPool::id_at(std::int64_t channel, std::size_t position) const {
  return channels_.at(channel).items[position].id;
}

const PooledItem& ItemPool::sample(std::int64_t channel, std::size_t position) {
  Channel& queue = channels_.at(channel);
  PooledItem& item = queue.items[position];
  ++item.sample_count;
  log({Change::Kind::kSampled, channel, queue.first_serial + position, {}});
  return item;
}

// --- marks ---

void ItemPool::log(Change change) {
  drop_released();
  if (!marks_.empty()) log_.push_back(std::move(change));
}

std::uint64_t ItemPool::mark() {
  drop_released();
  marks_.emplace(++last_mark_, log_begin_ + log_.size());
  return last_mark_;
}

void ItemPool::drop_released() {
  const auto released = released_.take();
  if (released.empty()) return;
  for (const std::uint64_t mark : released) marks_.erase(mark);
  const std::uint64_t needed = marks_.empty() ? log_begin_ + log_.size() : marks_.begin()->second;
  log_.erase(log_.begin(), log_.begin() + static_cast<std::ptrdiff_t>(needed - log_begin_));
  log_begin_ = needed;
}

std::vector<std::byte> ItemPool::state_at(std::uint64_t mark) const {
  const auto found = marks_.find(mark);
  if (found == marks_.end()) throw_no_mark(mark);
  Channels past = channels_;  // features are shared, not copied
  const auto changes = static_cast<std::ptrdiff_t>(log_begin_ + log_.size() - found->second);
  std::for_each(log_.rbegin(), log_.rbegin() + changes, [&](const Change& change) { undo(past, change); });
  return encode(past, 0, 1);
}

void ItemPool::undo(Channels& channels, const Change& change) {
  const auto found = channels.find(change.channel);
  Channel& queue = found->second;
  switch (change.kind) {
    case Change::Kind::kInserted:
      queue.items.pop_back();
      if (queue.items.empty()) channels.erase(found);
      break;
    case Change::Kind::kEvicted:
      queue.items.push_front(change.evicted);
      --queue.first_serial;
      break;
    case Change::Kind::kCounted:
      --queue.items[change.serial - queue.first_serial].seen_count;
      break;
    case Change::Kind::kSampled:
      --queue.items[change.serial - queue.first_serial].sample_count;
      break;
  }
}

// --- wire format ---

std::vector<std::byte> ItemPool::state(std::uint32_t shard, std::uint32_t shards) const {
  return encode(channels_, shard, shards);
}

std::vector<std::byte> ItemPool::encode(const Channels& channels, std::uint32_t shard, std::uint32_t shards) const {
  std::vector<std::byte> out;
  for (const auto& [id, channel] : channels) {
    if (static_cast<std::uint64_t>(id) % shards != shard) continue;
    std::string message;
    put_int(message, 1, id);
    for (const PooledItem& item : channel.items) {
      if (message.size() > kPieceBytes) {
        append_record(out, std::as_bytes(std::span(message)));
        message.clear();
        put_int(message, 1, id);
      }
      put_block(message, 2, item_message(item, names_));
    }
    append_record(out, std::as_bytes(std::span(message)));
  }
  return out;
}

void ItemPool::restore(const std::vector<Bytes>& streams, const std::string& source) {
  Channels channels;
  Index index;
  for (const Bytes& stream : streams) {
    RecordScanner scanner(stream, 0, source);
    Bytes record;
    while (scanner.next(record)) {
      try {
        read_channel(record, channels, index);
      } catch (const wire::Malformed& fault) {
        scanner.fail("not a ChannelCache message: " + fault.reason);
      }
    }
    scanner.finish();
  }
  channels_ = std::move(channels);
  index_ = std::move(index);
  total_ = 0;
  for (const auto& [id, channel] : channels_) total_ += channel.items.size();
  log_.clear();
  log_begin_ = 0;
  marks_.clear();
}

void ItemPool::read_channel(Bytes message, Channels& channels, Index& index) const {
  std::int64_t id = 0;
  std::vector<PooledItem> items;
  scan_line(message, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field == 1 && tag.wire == wire::kVarint) return id = static_cast<std::int64_t>(reader.varint()), true;
    if (tag.field != 2 || tag.wire != wire::kBlock) return false;
    items.push_back(read_item(reader.block()));
    return true;
  });
  if (items.empty()) return;
  Channel& queue = channels[id];
  auto& places = index[id];
  for (PooledItem& item : items) {
    if (!places.emplace(item.id, queue.first_serial + queue.items.size()).second) continue;
    queue.items.push_back(std::move(item));
    if (queue.items.size() <= max_items_) continue;
    places.erase(queue.items.front().id);
    queue.items.pop_front();
    ++queue.first_serial;
  }
}

PooledItem ItemPool::read_item(Bytes message) const {
  PooledItem item;
  std::vector<Cell> cells(names_.size());
  std::vector<std::int64_t> fids;
  Arena arena;
  scan_line(message, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field == 2) {
      take_ints(FieldKind::kInt, tag, reader, [&](std::int64_t fid) { fids.push_back(fid); });
      return true;
    }
    if (tag.field == 3 && tag.wire == wire::kBlock) {
      std::string_view name;
      Bytes feature;
      scan_line(reader.block(), [&](const wire::Tag& inner, wire::Reader& named) {
        if (inner.wire != wire::kBlock || (inner.field != 1 && inner.field != 2)) return false;
        if (inner.field == 1) {
          name = text_of(named.block());
        } else {
          feature = named.block();
        }
        return true;
      });
      const auto place = std::find(names_.begin(), names_.end(), name);
      if (place != names_.end()) {
        cells[static_cast<std::size_t>(place - names_.begin())] = read_example_feature(feature, arena);
      }
      return true;
    }
    if (tag.wire != wire::kVarint) return false;
    if (tag.field == 1) return item.id = static_cast<std::int64_t>(reader.varint()), true;
    if (tag.field == 4) return item.seen_count = static_cast<std::int64_t>(reader.varint()), true;
    if (tag.field == 5) return item.sample_count = static_cast<std::int64_t>(reader.varint()), true;
    return false;
  });
  item.features = ItemFeatures::copy(cells, std::move(fids));
  return item;
}

}  // namespace engine::data
