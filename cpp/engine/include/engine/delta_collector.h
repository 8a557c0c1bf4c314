// delta_collector.h: gathers the changed rows of some tables and writes them as a segment of a delta log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/delta_segment.h"

namespace engine {

class OutputFile;

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
  // With `is_known`, the log already holds the rows that the tables hold now; otherwise the first segment is complete.
  DeltaCollector(std::vector<std::shared_ptr<Table>> tables, DeltaFlavour flavour, ShardFilter shard, bool is_known);
  ~DeltaCollector();
  DeltaCollector(const DeltaCollector&) = delete;
  DeltaCollector& operator=(const DeltaCollector&) = delete;

  // Copies the rows that changed since the last segment. Of a table whose next segment is complete, makes a cut
  // instead: write() then takes the rows block by block, and only changed rows need memory. Returns false when nothing
  // changed. All tables are as of one instant if no thread writes to them meanwhile.
  bool collect();
  // Drops the collected rows and ends the cuts. The next collect takes the changes again.
  void abandon() noexcept;
  // Writes the collected rows beside `path`, waits until the disk has them, and renames the file. On failure it
  // abandons the rows. The caller syncs the folder.
  void write(const std::string& path, const DeltaStamp& stamp, std::span<const std::byte> marks);

 private:
  struct Tracked;

  void collect_table(Tracked& tracked);
  void write_file(const std::string& path, const DeltaStamp& stamp, std::span<const std::byte> marks) const;
  void write_rows(const Tracked& tracked, OutputFile& file) const;
  [[nodiscard]] DeltaHeader describe(const DeltaStamp& stamp, std::size_t marks_bytes) const;

  DeltaFlavour flavour_;
  ShardFilter shard_;
  std::vector<std::unique_ptr<Tracked>> tables_;
};

}  // namespace engine
