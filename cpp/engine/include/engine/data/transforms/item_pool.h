// item_pool.h: items seen lately, by channel, to draw negatives from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/data/row.h"
#include "engine/data/transforms/released_marks.h"

namespace engine::data {

// The features of one item, copied out of the row it was seen in. Immutable once it is in a pool.
struct ItemFeatures {
  std::vector<Cell> cells;  // one per feature of the pool, in its order; they point into `bytes`
  std::unique_ptr<std::byte[]> bytes;
  std::vector<std::int64_t> flat_fids;  // v1 ids of the item's slots

  // Copies the cells.
  static std::shared_ptr<const ItemFeatures> copy(const std::vector<Cell>& cells, std::vector<std::int64_t> flat_fids);
};

struct PooledItem {
  std::int64_t id = 0;
  std::shared_ptr<const ItemFeatures> features;
  std::int64_t seen_count = 0;
  std::int64_t sample_count = 0;
};

// Per channel a queue: the first sighting of an item puts it at the end and keeps its features, later ones only count,
// and the oldest leaves when there are more than `max_items`. Exclusive.
//
// A mark names the present state. While marks are live, every change is kept in a log, so that the state at a mark can
// be written out later; the log reaches back to the oldest live mark.
class ItemPool {
 public:
  ItemPool(std::vector<std::string> feature_names, std::size_t max_items);

  [[nodiscard]] const std::vector<std::string>& feature_names() const noexcept { return names_; }
  [[nodiscard]] std::size_t size() const noexcept { return total_; }
  [[nodiscard]] std::size_t channel_size(std::int64_t channel) const noexcept;
  [[nodiscard]] std::size_t channel_count() const noexcept { return channels_.size(); }
  // Ids of the channels, ascending.
  [[nodiscard]] std::vector<std::int64_t> channel_ids() const;
  // The items of a channel, oldest first.
  [[nodiscard]] std::vector<PooledItem> items(std::int64_t channel) const;

  // Counts a sighting; false when the item is not in the channel.
  bool count(std::int64_t channel, std::int64_t item);
  // Adds an item that is not in the channel.
  void insert(std::int64_t channel, std::int64_t item, std::shared_ptr<const ItemFeatures> features);
  // The channel that holds the item at `position` (below size()) when all channels are laid end to end.
  [[nodiscard]] std::int64_t channel_at(std::size_t position) const;
  [[nodiscard]] std::int64_t id_at(std::int64_t channel, std::size_t position) const;
  // The item at that place of the channel's queue, 0 being the oldest; its sample count includes this draw.
  const PooledItem& sample(std::int64_t channel, std::size_t position);

  // A TFRecord stream of ChannelCache messages: channels ascending, items oldest first. Of `shards` parts, the one with
  // the channels whose id modulo `shards` is `shard`.
  [[nodiscard]] std::vector<std::byte> state(std::uint32_t shard = 0, std::uint32_t shards = 1) const;
  // Replaces everything by the content of the streams. Throws RecordCorrupt, and then nothing has changed.
  void restore(const std::vector<Bytes>& streams, const std::string& source);

  [[nodiscard]] std::uint64_t mark();
  [[nodiscard]] std::vector<std::byte> state_at(std::uint64_t mark) const;
  // Concurrent; takes effect with the next change or mark.
  void release(std::uint64_t mark) { released_.add(mark); }
  // Changes that are kept for live marks.
  [[nodiscard]] std::size_t log_size() const noexcept { return log_.size(); }

 private:
  struct Channel {
    std::deque<PooledItem> items;
    std::uint64_t first_serial = 0;  // of items.front(); each item has the next number, for ever
  };
  using Channels = std::map<std::int64_t, Channel>;
  using Index = std::unordered_map<std::int64_t, std::unordered_map<std::int64_t, std::uint64_t>>;

  struct Change {
    enum class Kind : std::uint8_t { kInserted, kEvicted, kCounted, kSampled } kind;
    std::int64_t channel;
    std::uint64_t serial;
    PooledItem evicted;
  };

  void log(Change change);
  void drop_released();
  static void undo(Channels& channels, const Change& change);
  [[nodiscard]] std::vector<std::byte> encode(const Channels& channels, std::uint32_t shard,
                                              std::uint32_t shards) const;
  void read_channel(Bytes message, Channels& channels, Index& index) const;
  [[nodiscard]] PooledItem read_item(Bytes message) const;

  std::vector<std::string> names_;
  std::size_t max_items_;
  Channels channels_;
  Index index_;  // channel -> item -> serial
  std::size_t total_ = 0;
  std::deque<Change> log_;
  std::uint64_t log_begin_ = 0;                   // the number of log_.front()
  std::map<std::uint64_t, std::uint64_t> marks_;  // mark -> number of the first change after it
  std::uint64_t last_mark_ = 0;
  ReleasedMarks released_;
};

}  // namespace engine::data
