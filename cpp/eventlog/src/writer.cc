// writer.cc: collects records per partition and appends them in batches.
#include "eventlog/writer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "clock.h"
#include "engine/error.h"
#include "eventlog/error.h"
#include "eventlog/hash.h"

namespace eventlog {

TopicWriter::TopicWriter(std::vector<std::shared_ptr<Partition>> partitions, const std::string& wake_path,
                         WriterOptions options)
    : options_(options), wake_(wake_path), durability_(partitions.front()->settings().durability) {
  for (auto& partition : partitions) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->partition = std::move(partition);
  }
  thread_ = std::thread([this] { run(); });
}

TopicWriter::~TopicWriter() { stop(); }

void TopicWriter::stop() noexcept {
  std::thread thread;
  {
    const std::lock_guard held(mutex_);
    is_stopped_ = true;
    thread.swap(thread_);
  }
  changed_.notify_all();
  for (const auto& lane : lanes_) {
    const std::lock_guard held(lane->mutex);  // a write that began has ended
  }
  if (thread.joinable()) thread.join();
}

void TopicWriter::check_open(const Lane& lane) const {
  if (!is_stopped_) return;
  throw engine::ConfigError("the writer of " + lane.partition->settings().stream +
                            " is closed, expected an open one; make a new one");
}

TopicWriter::Lane& TopicWriter::lane_for(const Record& record, std::optional<std::uint32_t> partition) {
  const auto count = static_cast<std::uint32_t>(lanes_.size());
  if (partition) {
    if (*partition >= count) {
      throw engine::ConfigError("partition is " + std::to_string(*partition) + ", expected 0 to " +
                                std::to_string(count - 1));
    }
    return *lanes_[*partition];
  }
  if (count == 1) return *lanes_[0];
  if (!record.key.empty()) return *lanes_[choose_partition(record.key, count)];
  return *lanes_[turn_.fetch_add(1, std::memory_order_relaxed) % count];
}

void TopicWriter::write(const Record& record, std::optional<std::uint32_t> partition) {
  check_record(record);
  Lane& lane = lane_for(record, partition);
  bool is_due = false;
  {
    const std::lock_guard held(lane.mutex);
    check_open(lane);
    lane.partition->check_sound();  // a record that no append takes would fill the buffer of all partitions
    // Appends are refused for now: try again before more is taken.
    if (waiting_bytes_ >= options_.buffer_bytes) append_waiting(lane);
    if (waiting_bytes_ >= options_.buffer_bytes) {
      throw AppendRefused(lane.partition->settings().stream + ": " + std::to_string(waiting_bytes_) +
                          " bytes wait to be appended, expected at most " + std::to_string(options_.buffer_bytes) +
                          "; free space and flush");
    }
    if (lane.waiting.empty()) lane.since_ms = steady_ms();
    const bool is_full = !lane.waiting.empty() &&
                         (lane.waiting.back().body_bytes() >= options_.batch_bytes ||
                          lane.waiting.back().records() >= options_.batch_records || !lane.waiting.back().fits(record));
    if (lane.waiting.empty() || is_full) lane.waiting.emplace_back();
    const std::size_t before = lane.waiting.back().body_bytes();
    lane.waiting.back().add(record);
    waiting_bytes_ += lane.waiting.back().body_bytes() - before;
    is_due = options_.linger_ms == 0 || lane.waiting.back().body_bytes() >= options_.batch_bytes ||
             lane.waiting.back().records() >= options_.batch_records;
    // A backlog means that appends are refused: the background thread and flush try again.
    if (is_due && lane.waiting.size() == 1) {
      try {
        append_waiting(lane);
      } catch (const AppendRefused&) {
        is_due = false;  // the record stays here
      }
    }
  }
  if (is_due && options_.linger_ms == 0) settle(lane);
}

// Appends the lane's batches in order. The caller holds the lane's mutex.
void TopicWriter::append_waiting(Lane& lane) {
  bool has_appended = false;
  while (!lane.waiting.empty()) {
    PendingBatch& batch = lane.waiting.front();
    try {
      lane.end = lane.partition->append(batch) + batch.records();
    } catch (const AppendRefused&) {
      refused_appends_ += 1;
      if (has_appended) wake_.notify();
      throw;
    }
    has_appended = true;
    waiting_bytes_ -= batch.body_bytes();
    written_bytes_ += batch.body_bytes();
    written_records_ += batch.records();
    lane.waiting.pop_front();
  }
  if (has_appended && durability_ != Durability::kCommit) wake_.notify();
}

// Waits for the disk where the topic promises it.
void TopicWriter::settle(Lane& lane) {
  if (durability_ != Durability::kCommit) return;
  std::uint64_t end = 0;
  {
    const std::lock_guard held(lane.mutex);
    end = lane.end;
  }
  lane.partition->sync(end);
  // Also where nothing was left to sync: the end of a segment syncs, and wakes up no reader.
  if (lane.told.exchange(end) != end) wake_.notify();
}

void TopicWriter::flush() {
  // Every lane, also after one that fails: the records of the others need not wait for it.
  std::exception_ptr failure;
  const auto attempt = [&](const auto& step) {
    try {
      step();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  for (const auto& lane : lanes_) {
    attempt([&] {
      const std::lock_guard held(lane->mutex);
      append_waiting(*lane);
    });
  }
  for (const auto& lane : lanes_) attempt([&] { settle(*lane); });
  if (failure) std::rethrow_exception(failure);
}

std::uint64_t TopicWriter::append(std::uint32_t partition, PendingBatch& batch) {
  if (partition >= lanes_.size()) {
    throw engine::ConfigError("partition is " + std::to_string(partition) + ", expected 0 to " +
                              std::to_string(lanes_.size() - 1));
  }
  Lane& lane = *lanes_[partition];
  std::uint64_t base = 0;
  {
    const std::lock_guard held(lane.mutex);
    check_open(lane);
    append_waiting(lane);  // records that came first stay first
    try {
      base = lane.partition->append(batch);
    } catch (const AppendRefused&) {
      refused_appends_ += 1;
      throw;
    }
    lane.end = base + batch.records();
    written_bytes_ += batch.body_bytes();
    written_records_ += batch.records();
  }
  if (durability_ == Durability::kCommit) {
    settle(lane);
  } else {
    wake_.notify();
  }
  return base;
}

// --- background
// -------------------------------------------------------------------------------------------------------

void TopicWriter::run() {
  std::int64_t sync_due_ms = steady_ms() + options_.interval_ms;
  std::unique_lock held(mutex_);
  while (!is_stopped_) {
    const std::int64_t step_ms = std::clamp<std::int64_t>(options_.linger_ms, 1, options_.interval_ms);
    changed_.wait_for(held, std::chrono::milliseconds(step_ms), [this] { return is_stopped_.load(); });
    if (is_stopped_) return;
    held.unlock();
    const std::int64_t now_ms = steady_ms();
    const bool is_sync_due = durability_ == Durability::kInterval && now_ms >= sync_due_ms;
    if (is_sync_due) sync_due_ms = now_ms + options_.interval_ms;
    for (const auto& lane : lanes_) serve(*lane, now_ms, is_sync_due);
    held.lock();
  }
}

void TopicWriter::serve(Lane& lane, std::int64_t now_ms, bool is_sync_due) noexcept {
  try {
    {
      const std::lock_guard held(lane.mutex);
      if (!lane.waiting.empty() && now_ms - lane.since_ms >= options_.linger_ms) append_waiting(lane);
    }
    settle(lane);
    if (is_sync_due && lane.partition->durable_end() < lane.partition->written_end()) {
      lane.partition->sync(lane.partition->written_end());
    }
  } catch (const std::exception&) {
    // The records stay here, and the next write or flush raises.
  }
}

}  // namespace eventlog
