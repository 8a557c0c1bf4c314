// shard.h: one shard of all tables, with pull and push. Every transport ends here; the shard does not depend on any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dataplane/call_stats.h"
#include "dataplane/client_marks.h"
#include "dataplane/job_records.h"
#include "dataplane/push_gate.h"
#include "dataplane/shard_map.h"
#include "dataplane/wire.h"
#include "engine/shared_mutex.h"
#include "engine/table.h"

namespace dataplane {

// Bytes of a reply that are in memory together, however slowly the peer takes them.
inline constexpr std::size_t kReplyWindowBytes = std::size_t{4} << 20;

// Where the rows of a pull go, piece by piece.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // Memory for the next `bytes` of the reply, aligned for floats. Asked for once all that was given is filled.
  virtual std::byte* room(std::size_t bytes) = 0;
  // The next `bytes` of the room are filled.
  virtual void filled(std::size_t bytes) = 0;
};

// Concurrent.
class Shard {
 public:
  // Figures of one table.
  struct TableFigures {
    std::string name;
    std::uint64_t rows = 0;
    std::uint64_t bytes = 0;
    std::uint64_t ids_pulled = 0;
    std::uint64_t ids_pushed = 0;
  };

  // `names` are sorted, one per table. Throws ConfigError.
  Shard(std::uint32_t index, std::uint32_t count, std::vector<std::shared_ptr<engine::Table>> tables,
        std::vector<std::string> names);

  [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
  [[nodiscard]] std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(map_.shards()); }
  // Random; another one for each Shard ever made.
  [[nodiscard]] std::uint64_t instance() const noexcept { return instance_; }
  [[nodiscard]] std::uint64_t tables_hash() const noexcept { return tables_hash_; }

  // A payload at a multiple of 8, as pull() and push() take them, parsed and checked. Throws ConfigError.
  [[nodiscard]] PullRequest read_pull(Bytes payload) const;
  [[nodiscard]] std::size_t reply_bytes(const PullRequest& request, bool half) const noexcept;
  // Throws ConfigError when the reply is larger than the setting of that name. Call before room is made for it.
  void check_reply(const PullRequest& request, bool half, std::size_t most_bytes, const char* setting) const;
  // Throws Late before the first row; once one is handed out, the rest follows whatever the time.
  void pull(const PullRequest& request, bool half, Deadline deadline, RowSink& sink);

  // Applies the gradients, and replaces the job record of the push, once per (client, sequence), however often the
  // client repeats them. Throws Late, SequenceForgotten, PartlyApplied and the engine's errors; except for
  // PartlyApplied nothing was changed.
  void push(Bytes payload, bool half, Deadline deadline);

  // While held, no push is under way: tables and marks agree. Pushes wait, so hold it for an instant.
  [[nodiscard]] engine::SharedMutex& push_lock() noexcept { return push_lock_; }
  [[nodiscard]] ClientMarks& marks() noexcept { return marks_; }
  [[nodiscard]] JobRecords& records() noexcept { return records_; }

  // Replaces a job record without a push. A thread that holds the push lock alone sees no change.
  void put_record(JobRecord record);

  // Holds back all pushes from now on, until release_pushes() or for as long as the lease; returns when no push is
  // under way any more. The caller names the hold; it ends the one before.
  void hold_pushes(std::uint64_t hold, Clock::duration lease);
  // Lets some pushes through and waits until they are done. False when they are not in time, or the hold is over.
  bool settle_pushes(std::uint64_t hold, std::span<const PushName> pushes, Deadline deadline);
  // False when the hold was over before, so that other pushes may have passed.
  bool release_pushes(std::uint64_t hold) { return gate_.open(hold); }

  [[nodiscard]] const CallStats& pull_stats() const noexcept { return pulls_; }
  [[nodiscard]] const CallStats& push_stats() const noexcept { return pushes_; }
  [[nodiscard]] std::uint64_t repeats() const noexcept { return repeats_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t lates() const noexcept { return lates_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::vector<TableFigures> table_figures() const;

 private:
  struct Member {
    std::shared_ptr<engine::Table> table;
    std::string name;
    std::atomic<std::uint64_t> ids_pulled{0};
    std::atomic<std::uint64_t> ids_pushed{0};
  };

  void check_ids(std::uint32_t number, std::span<const std::int64_t> ids) const;
  void check_time(Deadline deadline);
  void apply(const PushRequest& request, bool half, Deadline deadline);

  std::uint32_t index_;
  ShardMap map_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<TableShape> shapes_;
  std::uint64_t instance_;
  std::uint64_t tables_hash_;
  engine::SharedMutex push_lock_;
  PushGate gate_;
  ClientMarks marks_;
  JobRecords records_;
  CallStats pulls_;
  CallStats pushes_;
  std::atomic<std::uint64_t> repeats_{0};
  std::atomic<std::uint64_t> lates_{0};
};

}  // namespace dataplane
