// delta_collector.h: gathers what changed in some tables and writes it as a segment of a delta log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/delta_segment.h"

namespace engine {

// Where a segment stands in its log.
struct DeltaStamp {
  std::uint64_t log = 0;
  std::uint64_t sequence = 0;
  std::uint64_t previous = 0;
  std::int64_t wall_time_us = 0;
};

// Takes the tables' notes of touched ids, so a table has one collector. Exclusive.
class DeltaCollector {
 public:
  // With `is_known`, what the tables hold now is in the log already; otherwise the first segment holds all of it.
  DeltaCollector(std::vector<std::shared_ptr<Table>> tables, DeltaFlavour flavour, ShardFilter shard, bool is_known);
  ~DeltaCollector();
  DeltaCollector(const DeltaCollector&) = delete;
  DeltaCollector& operator=(const DeltaCollector&) = delete;

  // Copies what changed since the last segment. False when nothing did. All tables are as of one instant if nobody
  // writes to them meanwhile.
  bool collect();
  // Writes what was collected beside `path`, waits until the disk has it, and renames it. What cannot be written stays
  // changed: the next collect takes it again, as it is then. The caller syncs the folder.
  void write(const std::string& path, const DeltaStamp& stamp, std::span<const std::byte> marks);

 private:
  struct Tracked;

  void collect_table(Tracked& tracked);
  void write_file(const std::string& path, const DeltaStamp& stamp, std::span<const std::byte> marks) const;
  [[nodiscard]] DeltaHeader describe(const DeltaStamp& stamp, std::size_t marks_bytes) const;

  DeltaFlavour flavour_;
  ShardFilter shard_;
  std::vector<std::unique_ptr<Tracked>> tables_;
};

}  // namespace engine
