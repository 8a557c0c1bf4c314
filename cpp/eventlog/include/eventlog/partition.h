// partition.h: one partition of a topic on disk: its segments, HEAD, epoch and owners. Appends, recovers, retains.
//
// Many processes append and read. An append holds the flock of LOCK for one commit; the kernel releases it when the
// holder dies, and HEAD.dirty then tells the next process to recover. Readers take no lock to read.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "eventlog/format.h"
#include "eventlog/scan.h"
#include "eventlog/shared_page.h"

namespace eventlog {

enum class Durability : std::uint8_t { kCommit, kInterval, kNever };

struct Settings {
  std::string stream = "log";  // name in errors
  std::string folder;
  std::uint64_t log = 0;
  std::uint32_t partition = 0;
  std::uint32_t partitions = 1;
  Durability durability = Durability::kInterval;
  std::uint64_t segment_bytes = std::uint64_t{256} << 20;
  std::int64_t segment_age_ms = 0;  // 0 = no limit, here and below
  std::uint64_t retain_bytes = 0;
  std::int64_t retain_ms = 0;
};

// A batch before it has an offset: room for the header, then the records.
class PendingBatch {
 public:
  PendingBatch() : bytes_(kBatchHeaderBytes) {}

  // Throws engine::ConfigError if a limit does not hold; the batch is then unchanged.
  void add(const Record& record);
  [[nodiscard]] std::uint32_t records() const noexcept { return records_; }
  [[nodiscard]] std::size_t body_bytes() const noexcept { return bytes_.size() - kBatchHeaderBytes; }
  [[nodiscard]] bool fits(const Record& record) const noexcept;

  std::uint64_t producer = 0;
  std::uint64_t owner = 0;
  std::uint64_t sequence = 0;

 private:
  friend class Partition;
  std::vector<std::byte> bytes_;
  std::uint32_t records_ = 0;
  std::int64_t largest_ms_ = kNoTime;
};

// Throws engine::ConfigError where a record is too large or its time is out of range.
void check_record(const Record& record);

struct Owner {
  std::uint64_t owner = 0;
  std::uint64_t sequence = 0;  // the last one before the active segment
};

struct Verified {
  std::uint64_t base = 0;
  std::uint64_t end = 0;
  std::uint64_t bytes = 0;
  std::uint64_t batches = 0;
  std::uint64_t records = 0;
  std::int64_t largest_ms = kNoTime;
  std::int64_t append_ms = 0;
  bool has_header = true;
  bool is_torn = false;
  std::vector<BadRange> bad;
};

// Concurrent, except in a process forked after it was made.
class Partition {
 public:
  // Creates the partition where its folder is empty, and recovers it where HEAD is absent, dirty or of another boot.
  // Throws engine::RecordCorrupt, engine::IoError, DataError.
  explicit Partition(Settings settings);

  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }

  // Appends one batch and returns its base offset. Throws AppendRefused (the log is unchanged), DataError (the
  // partition has failed), Fenced.
  std::uint64_t append(PendingBatch& batch);
  // Returns when the disk has all offsets below `end`. Callers share one fdatasync. Throws DataError if it fails.
  void sync(std::uint64_t end);

  [[nodiscard]] std::uint64_t visible_end() const noexcept;
  [[nodiscard]] std::uint64_t written_end() const noexcept {
    return head()->written_end.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::uint64_t durable_end() const noexcept {
    return head()->durable_end.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::uint64_t first() const noexcept { return head()->first.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t epoch() const noexcept { return head()->epoch.load(std::memory_order_acquire); }
  [[nodiscard]] std::int64_t largest_ms() const noexcept { return head()->largest_ms.load(std::memory_order_acquire); }
  [[nodiscard]] std::int64_t append_ms() const noexcept { return head()->append_ms.load(std::memory_order_acquire); }
  [[nodiscard]] bool has_failed() const noexcept { return head()->failed.load(std::memory_order_acquire) != 0; }

  // Throws DataError if an fdatasync has failed, so that the partition takes no appends.
  void check_sound() const;

  // Maps HEAD again where its file was deleted. Takes no lock in the usual case.
  void refresh();

  // Takes a producer id: returns its owner number, larger than every earlier one.
  std::uint64_t take_producer(std::uint64_t producer);
  // The sequence of the producer's last batch, 0 for none.
  [[nodiscard]] std::uint64_t last_sequence(std::uint64_t producer);

  // Removes old segments as the settings tell; runs after each roll by itself. Returns the segments removed.
  std::size_t retain(std::int64_t now_ms);
  // Removes the segments that end at or before `offset`, except the active one.
  std::size_t trim(std::uint64_t offset);
  // Closes the active segment and starts the next.
  void roll();

  // Scans every segment. Changes nothing.
  [[nodiscard]] std::vector<Verified> verify() const;
  // Rebuilds a damaged header of the last segment, recovers, and starts a new segment after a failed fdatasync.
  // Returns a line for each change.
  static std::vector<std::string> repair(const Settings& settings);

  // Base offsets of the segments on disk, ascending.
  [[nodiscard]] std::vector<std::uint64_t> segments() const;
  [[nodiscard]] std::string path_of(std::uint64_t base, const char* suffix = ".log") const;

  struct Counts {
    std::uint64_t torn_tails = 0;
    std::uint64_t torn_bytes = 0;
    std::uint64_t bad_records = 0;
    std::uint64_t recoveries = 0;
    std::uint64_t syncs = 0;
    std::uint64_t sync_us = 0;
  };
  [[nodiscard]] Counts counts() const;

 private:
  struct OpenSegment {
    Descriptor file;
    Descriptor index;
    std::uint64_t base = ~std::uint64_t{0};
    std::uint64_t recoveries = 0;
  };

  [[nodiscard]] Head* head() const noexcept {
    return static_cast<Head*>(page_.load(std::memory_order_acquire)->data());
  }
  std::uint64_t append_batch(PendingBatch& batch);
  void map_head();
  void check_process() const;
  void prepare_locked();
  void recover_locked();
  [[nodiscard]] Scan recover_last_locked(std::uint64_t base, std::uint64_t& epoch);
  [[nodiscard]] Scan replace_torn_segment(std::uint64_t base, std::uint64_t& epoch);
  void cut_tail(std::uint64_t base, Bytes segment, std::uint64_t end_bytes);
  void note_bad_ranges(std::uint64_t base, const Scan& scan);
  void check_index(std::uint64_t base, Bytes segment, Scan& scan);
  void fill_head(std::uint64_t base, const Scan& scan, std::uint64_t epoch);
  void write_epoch(std::uint64_t epoch);
  [[nodiscard]] Scan tail_of(std::uint64_t base) const;
  [[nodiscard]] std::int64_t last_append_ms(const std::vector<std::uint64_t>& bases, std::size_t place,
                                            std::int64_t now_ms) const;
  bool clear_failure();
  void load_owners_locked();
  void save_owners_locked();
  void create_segment(std::uint64_t base, std::uint64_t epoch);
  void roll_locked();
  std::size_t remove_segments_locked(std::uint64_t end_base);
  std::size_t retain_locked(std::int64_t now_ms);
  void open_active(OpenSegment& segment, bool with_index) const;
  void write_batch_locked(PendingBatch& batch);
  void note_index_locked(const BatchHeader& header, std::uint64_t position);
  void check_owner_locked(const PendingBatch& batch);
  void save_hints_locked(std::uint64_t base);
  [[noreturn]] void fail_sync(const std::string& path, int code);

  Settings settings_;
  int process_;
  std::uint64_t boot_;
  Descriptor lock_;
  std::string lock_path_;
  mutable std::mutex mutex_;  // appends of this process
  std::mutex sync_mutex_;
  // Old pages stay mapped: a reader may hold one. A page is replaced only when its file was deleted.
  std::vector<std::unique_ptr<SharedPage>> pages_;
  std::atomic<SharedPage*> page_{nullptr};
  OpenSegment active_;
  OpenSegment synced_;
  std::uint64_t owners_version_ = 0;
  std::map<std::uint64_t, Owner> owners_;
  Counts counts_;
  std::atomic<std::uint64_t> syncs_{0};
  std::atomic<std::uint64_t> sync_us_{0};
};

[[nodiscard]] std::int64_t wall_ms() noexcept;

}  // namespace eventlog
