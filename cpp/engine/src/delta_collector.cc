// delta_collector.cc: drains touched ids, copies their rows, and writes them as columns.
#include "engine/delta_collector.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "delta_format.h"
#include "engine/crc32c.h"
#include "engine/error.h"
#include "engine/failpoint.h"
#include "file.h"
#include "row_columns.h"

namespace engine {

namespace {

// What a table keeps beside its rows, and a segment with it. The counts of an admission filter are not among it: they
// may be as large as the table and change with every call.
struct Extras {
  std::int64_t max_time_s = 0;
  std::uint64_t turn = 0;
  std::vector<float> scales;

  friend bool operator==(const Extras&, const Extras&) = default;
};

Extras extras_of(const Table& table) {
  return {.max_time_s = table.max_time_s(), .turn = table.turn(), .scales = table.scales()};
}

std::vector<std::int64_t> all_ids(const Table& table) {
  std::vector<std::int64_t> ids;
  for (std::size_t part = 0; part < kShards; ++part) {
    const std::vector<std::int64_t> some = table.shard_ids(part);
    ids.insert(ids.end(), some.begin(), some.end());
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

// Writes rows of one table, compressed when the segment is for serving and the table is not.
class BlockWriter {
 public:
  BlockWriter(const Table& table, DeltaFlavour flavour) : table_(table) {
    if (flavour == DeltaFlavour::kServing && !table.schema().is_serving()) {
      serving_ = std::make_unique<RowSchema>(table.config().slices, 0, true);
      values_.resize(table.schema().dim());
      row_.resize(serving_->row_bytes());
    }
    columns_ = columns_of(serving_ ? *serving_ : table.schema());
  }

  void append(const RawRows& rows, OutputFile& file) {
    const auto count = static_cast<std::uint32_t>(rows.ids.size());
    bytes_.resize(sizeof count + count * stored_row_bytes(columns_));
    std::memcpy(bytes_.data(), &count, sizeof count);
    pack_columns(
        columns_, rows.ids, rows.times,
        [&](std::size_t i) { return stored(rows.rows.data() + i * table_.schema().row_bytes()); },
        bytes_.data() + sizeof count);
    put(bytes_, crc32c(0, bytes_.data(), bytes_.size()));
    file.append(bytes_);
  }

 private:
  const std::byte* stored(const std::byte* row) {
    if (!serving_) return row;
    table_.schema().get(row, values_.data());
    serving_->set(row_.data(), values_.data());
    return row_.data();
  }

  const Table& table_;
  std::unique_ptr<RowSchema> serving_;
  std::vector<Column> columns_;
  std::vector<float> values_;
  std::vector<std::byte> row_;
  std::vector<std::byte> bytes_;
};

void append_checked(std::span<const std::byte> bytes, OutputFile& file) {
  if (bytes.empty()) return;
  file.append(bytes);
  std::vector<std::byte> checksum;
  put(checksum, crc32c(0, bytes.data(), bytes.size()));
  file.append(checksum);
}

}  // namespace

struct DeltaCollector::Tracked {
  std::shared_ptr<Table> table;
  bool is_complete = false;        // the next segment holds all rows
  std::vector<std::int64_t> ids;   // sorted; changed since the last segment that was written
  std::uint64_t dropped = 0;       // the table's count of notes dropped, when last looked at
  std::vector<RawRows> blocks;     // collected
  std::vector<std::int64_t> gone;  // collected: sorted ids without a row
  Extras extras;                   // collected
  Extras written;
};

DeltaCollector::DeltaCollector(std::vector<std::shared_ptr<Table>> tables, DeltaFlavour flavour, ShardFilter shard,
                               bool is_known)
    : flavour_(flavour), shard_(shard) {
  for (auto& table : tables) {
    if (flavour == DeltaFlavour::kDurable && table->schema().is_serving()) {
      throw ConfigError("table '" + table->config().name +
                        "' is a serving table: it has no optimizer state; write its log with flavour 'serving'");
    }
    auto tracked = std::make_unique<Tracked>();
    (void)table->drain_touched();  // from here on the table takes notes
    tracked->dropped = table->stats().touched_dropped;
    tracked->is_complete = !is_known;
    tracked->written = extras_of(*table);
    tracked->table = std::move(table);
    tables_.push_back(std::move(tracked));
  }
}

DeltaCollector::~DeltaCollector() = default;

bool DeltaCollector::collect() {
  bool has_changed = false;
  for (const auto& tracked : tables_) {
    collect_table(*tracked);
    has_changed = has_changed || tracked->is_complete || !tracked->ids.empty() || tracked->extras != tracked->written;
  }
  return has_changed;
}

void DeltaCollector::collect_table(Tracked& tracked) {
  Table& table = *tracked.table;
  const std::vector<std::int64_t> touched = table.drain_touched();
  const std::uint64_t dropped = table.stats().touched_dropped;
  // Notes that overflowed, or an event clock that went back, which only clear() does: say everything anew.
  tracked.extras = extras_of(table);
  if (dropped != tracked.dropped || tracked.extras.max_time_s < tracked.written.max_time_s) tracked.is_complete = true;
  tracked.dropped = dropped;
  if (tracked.is_complete) {
    tracked.ids = all_ids(table);
  } else if (!touched.empty()) {
    std::vector<std::int64_t> merged;
    std::set_union(tracked.ids.begin(), tracked.ids.end(), touched.begin(), touched.end(), std::back_inserter(merged));
    tracked.ids = std::move(merged);
  }
  const std::span<const std::int64_t> ids = tracked.ids;
  tracked.blocks.assign((ids.size() + kDeltaBlockRows - 1) / kDeltaBlockRows, {});
  table.pool().run(tracked.blocks.size(), [&](std::size_t i) {
    const std::size_t first = i * kDeltaBlockRows;
    tracked.blocks[i] = table.raw_rows(ids.subspan(first, std::min(kDeltaBlockRows, ids.size() - first)));
  });
  std::erase_if(tracked.blocks, [](const RawRows& rows) { return rows.ids.empty(); });
  tracked.gone.clear();
  if (tracked.is_complete) return;
  auto at = ids.begin();
  for (const RawRows& rows : tracked.blocks) {
    const auto end = std::upper_bound(at, ids.end(), rows.ids.back());
    std::set_difference(at, end, rows.ids.begin(), rows.ids.end(), std::back_inserter(tracked.gone));
    at = end;
  }
  tracked.gone.insert(tracked.gone.end(), at, ids.end());
}

DeltaHeader DeltaCollector::describe(const DeltaStamp& stamp, std::size_t marks_bytes) const {
  DeltaHeader header{.flavour = flavour_,
                     .shard_index = static_cast<std::uint32_t>(shard_.index),
                     .shard_count = static_cast<std::uint32_t>(shard_.count),
                     .log = stamp.log,
                     .sequence = stamp.sequence,
                     .previous = stamp.previous,
                     .wall_time_us = stamp.wall_time_us,
                     .newest_event_s = 0,
                     .tables_hash = 0,
                     .marks_bytes = marks_bytes,
                     .tables = {}};
  for (const auto& tracked : tables_) {
    DeltaTable table{.name = tracked->table->config().name,
                     .is_complete = tracked->is_complete,
                     .blocks = static_cast<std::uint32_t>(tracked->blocks.size()),
                     .upserts = 0,
                     .tombstones = tracked->gone.size(),
                     .max_time_s = tracked->extras.max_time_s,
                     .turn = tracked->extras.turn,
                     .slices = delta_slices(*tracked->table, flavour_)};
    for (const RawRows& rows : tracked->blocks) table.upserts += rows.ids.size();
    for (std::size_t k = 0; k < table.slices.size(); ++k) table.slices[k].scale = tracked->extras.scales[k];
    header.newest_event_s = std::max(header.newest_event_s, table.max_time_s);
    header.tables.push_back(std::move(table));
  }
  return header;
}

void DeltaCollector::write(const std::string& path, const DeltaStamp& stamp, std::span<const std::byte> marks) {
  const std::string temporary = path + ".tmp";
  try {
    write_file(temporary, stamp, marks);
    failpoint("delta.before_rename");
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      throw IoError("cannot rename '" + temporary + "' to '" + path + "': " + std::strerror(errno));
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  failpoint("delta.after_rename");
  for (const auto& tracked : tables_) {
    tracked->is_complete = false;
    tracked->ids.clear();
    tracked->blocks.clear();
    tracked->gone.clear();
    tracked->written = tracked->extras;
  }
}

void DeltaCollector::write_file(const std::string& path, const DeltaStamp& stamp,
                                std::span<const std::byte> marks) const {
  DeltaHeader header = describe(stamp, marks.size());
  OutputFile file(path);
  failpoint("delta.file_made");
  file.append(std::as_bytes(std::span(kDeltaMagic)));
  const std::vector<std::byte> body = encode_delta_header(header);
  std::vector<std::byte> length;
  put(length, static_cast<std::uint32_t>(body.size()));
  file.append(length);
  append_checked(body, file);
  for (const auto& tracked : tables_) {
    BlockWriter writer(*tracked->table, flavour_);
    for (const RawRows& rows : tracked->blocks) writer.append(rows, file);
    append_checked(std::as_bytes(std::span(tracked->gone)), file);
  }
  append_checked(marks, file);
  file.finish();
}

}  // namespace engine
