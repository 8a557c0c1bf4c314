// writer.h: collects records per partition and appends them in batches.
//
// A batch is appended when it is large, when its first record is `linger_ms` old, or on flush. A record that an append
// refuses (a full disk) stays here and is tried again. One background thread serves the linger and the interval syncs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "eventlog/partition.h"

namespace eventlog {

struct WriterOptions {
  std::int64_t linger_ms = 5;  // 0 = append each record by itself
  std::int64_t interval_ms = 200;
  std::size_t batch_bytes = std::size_t{64} << 10;
  std::uint32_t batch_records = 1000;
  std::size_t buffer_bytes = std::size_t{64} << 20;  // most bytes that wait while appends are refused
};

// Concurrent, except in a process forked after it was made.
class TopicWriter {
 public:
  TopicWriter(std::vector<std::shared_ptr<Partition>> partitions, const std::string& wake_path, WriterOptions options);
  ~TopicWriter();
  TopicWriter(const TopicWriter&) = delete;
  TopicWriter& operator=(const TopicWriter&) = delete;

  // Takes one record. Without a partition, the key chooses it; records without a key go to each partition in turn.
  // Throws engine::ConfigError (a limit, or stopped), DataError (the buffer is full, or the partition has failed).
  void write(const Record& record, std::optional<std::uint32_t> partition);
  // Appends all records that wait, and makes them durable as the topic is set. Tries every partition, then throws the
  // first error: AppendRefused, DataError.
  void flush();
  // Appends one batch by itself and returns its base offset. Durable as the topic is set.
  std::uint64_t append(std::uint32_t partition, PendingBatch& batch);
  // Stops the background thread and refuses later records. Those that wait stay for `flush`. May be called twice.
  void stop() noexcept;

  [[nodiscard]] std::size_t waiting_bytes() const noexcept { return waiting_bytes_; }
  [[nodiscard]] std::uint64_t written_records() const noexcept { return written_records_; }
  [[nodiscard]] std::uint64_t written_bytes() const noexcept { return written_bytes_; }
  [[nodiscard]] std::uint64_t refused_appends() const noexcept { return refused_appends_; }

 private:
  struct Lane {
    std::shared_ptr<Partition> partition;
    std::mutex mutex;
    std::deque<PendingBatch> waiting;
    std::int64_t since_ms = 0;           // of the first waiting record
    std::uint64_t end = 0;               // of the last batch appended here
    std::atomic<std::uint64_t> told{0};  // the durable end that readers were woken up for
  };

  void check_open(const Lane& lane) const;
  [[nodiscard]] Lane& lane_for(const Record& record, std::optional<std::uint32_t> partition);
  void append_waiting(Lane& lane);
  void settle(Lane& lane);
  void run();
  void serve(Lane& lane, std::int64_t now_ms, bool is_sync_due) noexcept;

  const WriterOptions options_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Wake wake_;
  Durability durability_;
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<std::size_t> waiting_bytes_{0};
  std::atomic<std::uint64_t> written_records_{0};
  std::atomic<std::uint64_t> written_bytes_{0};
  std::atomic<std::uint64_t> refused_appends_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> is_stopped_{false};
  std::thread thread_;
};

}  // namespace eventlog
