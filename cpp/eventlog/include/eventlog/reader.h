// reader.h: reads partitions in order, seeks by offset and time, and waits for new records without polling.
//
// A reader loads the visible end first and reads bytes after that, so every byte it looks at belongs to a committed
// batch. It checks both checksums of each batch. Used by one thread at a time; `interrupt` may come from another.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/records.h"
#include "eventlog/partition.h"

namespace eventlog {

// Records of one partition with consecutive offsets.
struct Chunk {
  std::uint32_t partition = 0;
  std::uint64_t begin = 0;  // offsets
  std::uint64_t end = 0;
  std::uint32_t epoch = 0;        // of the last batch
  engine::data::Records records;  // the values
  std::vector<engine::data::Records::Entry> keys;
  std::vector<std::int64_t> times_ms;
  std::vector<std::int64_t> append_ms;

  [[nodiscard]] Bytes key(std::size_t index) const noexcept {
    return {records.buffer->data() + keys[index].begin, keys[index].size};
  }
};

struct ReaderOptions {
  bool skips_lost = false;     // continue at the first offset when retention has removed the next record
  bool skips_corrupt = false;  // continue after a damaged batch
};

class PartitionReader {
 public:
  PartitionReader(std::shared_ptr<Partition> partition, ReaderOptions options);

  // Continues at `offset`. Throws DataError if it lies above the end, or if the record before it has another epoch;
  // epoch 0 checks nothing.
  void seek(std::uint64_t offset, std::uint64_t epoch = 0);
  // The first offset whose record has an event time of at least `time_ms`; the end where no record has.
  [[nodiscard]] std::uint64_t find_time(std::int64_t time_ms);
  // The epoch of the batch that holds `offset`; none where it is removed or damaged.
  [[nodiscard]] std::optional<std::uint32_t> epoch_of(std::uint64_t offset);
  // The append time of the batch that holds the next record; none at the end.
  [[nodiscard]] std::optional<std::int64_t> next_append_ms();

  // The next records, at most `most_records` and below offset `limit`; none at the visible end.
  // Throws engine::RecordCorrupt, DataError.
  [[nodiscard]] std::optional<Chunk> read(std::size_t most_records, std::uint64_t limit);

  [[nodiscard]] std::uint64_t next() const noexcept { return next_; }
  [[nodiscard]] std::uint32_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_; }
  [[nodiscard]] std::uint64_t corrupt_batches() const noexcept { return corrupt_batches_; }
  [[nodiscard]] std::uint64_t corrupt_records() const noexcept { return corrupt_records_; }
  [[nodiscard]] Partition& partition() noexcept { return *partition_; }
  [[nodiscard]] const Partition& partition() const noexcept { return *partition_; }

 private:
  void check_epoch();
  bool open_segment();
  bool step_to_next_segment();
  void skip_damage(const char* reason);
  void jump_over(std::uint64_t end, std::uint64_t position, const std::string& reason);
  bool take_batches(Chunk& chunk, std::size_t most_records, std::uint64_t end);
  [[nodiscard]] std::string stream() const { return partition_->settings().stream; }

  std::shared_ptr<Partition> partition_;
  ReaderOptions options_;
  Descriptor file_;
  std::uint64_t base_ = 0;             // of the open segment
  std::uint64_t position_ = 0;         // of the batch that holds `next_`, or of one before it
  std::uint64_t position_offset_ = 0;  // the offset of the batch at `position_`
  std::uint64_t next_ = 0;
  std::uint32_t epoch_ = 0;
  std::uint64_t head_epoch_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t corrupt_batches_ = 0;
  std::uint64_t corrupt_records_ = 0;
  bool has_read_segment_ = false;
};

// Several partitions of a topic, read in turn.
class TopicReader {
 public:
  TopicReader(std::vector<std::shared_ptr<Partition>> partitions, const std::string& wake_path, ReaderOptions options);

  [[nodiscard]] std::size_t size() const noexcept { return readers_.size(); }
  [[nodiscard]] PartitionReader& operator[](std::size_t index) noexcept { return *readers_[index]; }

  // The next records of any partition; waits at most `wait_ms` for them. None when the time is over or after interrupt.
  [[nodiscard]] std::optional<Chunk> read(std::size_t most_records, std::int64_t wait_ms);
  // Ends a `read` that waits, and every later one. Concurrent.
  void interrupt() noexcept;

 private:
  [[nodiscard]] std::optional<Chunk> read_any(std::size_t most_records);
  void help_sync();

  std::vector<std::unique_ptr<PartitionReader>> readers_;
  std::vector<std::int64_t> unsynced_since_ms_;
  Wake wake_;
  std::size_t turn_ = 0;
  std::atomic<bool> is_interrupted_{false};
};

}  // namespace eventlog
