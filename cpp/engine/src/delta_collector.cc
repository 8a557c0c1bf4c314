// delta_collector.cc: drains touched ids, copies their rows or cuts the table, and writes them as columns.
#include "engine/delta_collector.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>
#include <utility>

#include "delta_format.h"
#include "engine/crc32c.h"
#include "engine/error.h"
#include "engine/failpoint.h"
#include "file.h"
#include "row_columns.h"

namespace engine {

namespace {

// State of a table beside its rows that a segment holds too. The counts of an admission filter are left out: they may
// be as large as the table and change with every call.
struct Extras {
  std::int64_t max_time_s = 0;
  std::uint64_t turn = 0;
  std::vector<float> scales;

  friend bool operator==(const Extras&, const Extras&) = default;
};

Extras extras_of(const Table& table) {
  return {.max_time_s = table.max_time_s(), .turn = table.turn(), .scales = table.scales()};
}

// Rows taken from a cut under one hold of a part's lock.
constexpr std::size_t kCutPieceRows = 2048;

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
    const RowSchema& schema = serving_ ? *serving_ : table_.schema();
    const auto row_at = [&](std::size_t i) {
      return schema.packed(stored(rows.rows.data() + i * table_.schema().row_bytes()));
    };
    pack_columns(schema, columns_, rows.ids, rows.times, row_at, bytes_.data() + sizeof count);
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
  std::optional<Table::Cut> cut;   // collected: of a complete segment, instead of blocks
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

DeltaCollector::~DeltaCollector() { abandon(); }

void DeltaCollector::abandon() noexcept {
  for (const auto& tracked : tables_) {
    if (tracked->cut) tracked->table->end_cut(CutUse::kDelta);
    tracked->cut.reset();
    tracked->blocks.clear();
    tracked->gone.clear();
  }
}

bool DeltaCollector::collect() {
  abandon();
  bool has_changed = false;
  for (const auto& tracked : tables_) {
    collect_table(*tracked);
    has_changed = has_changed || tracked->is_complete || !tracked->ids.empty() || tracked->extras != tracked->written;
  }
  return has_changed;
}

void DeltaCollector::collect_table(Tracked& tracked) {
  Table& table = *tracked.table;
  // Until the drained notes are merged: a failed allocation would lose them, and only a complete segment has all rows.
  const bool was_complete = std::exchange(tracked.is_complete, true);
  const std::vector<std::int64_t> touched = table.drain_touched();
  const std::uint64_t dropped = table.stats().touched_dropped;
  // After notes overflowed, or the event clock went back, which only clear() does, the segment must be complete.
  tracked.extras = extras_of(table);
  const bool has_gaps = dropped != tracked.dropped || tracked.extras.max_time_s < tracked.written.max_time_s;
  tracked.dropped = dropped;
  if (was_complete || has_gaps) {
    tracked.ids.clear();
    tracked.cut = table.begin_cut(CutUse::kDelta);
    tracked.cut->keeps_expired = true;
    return;
  }
  if (!touched.empty()) {
    std::vector<std::int64_t> merged;
    std::set_union(tracked.ids.begin(), tracked.ids.end(), touched.begin(), touched.end(), std::back_inserter(merged));
    tracked.ids = std::move(merged);
  }
  tracked.is_complete = false;
  const std::span<const std::int64_t> ids = tracked.ids;
  tracked.blocks.assign((ids.size() + kDeltaBlockRows - 1) / kDeltaBlockRows, {});
  table.pool().run(tracked.blocks.size(), [&](std::size_t i) {
    const std::size_t first = i * kDeltaBlockRows;
    tracked.blocks[i] = table.raw_rows(ids.subspan(first, std::min(kDeltaBlockRows, ids.size() - first)));
  });
  std::erase_if(tracked.blocks, [](const RawRows& rows) { return rows.ids.empty(); });
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
    if (tracked->cut) {
      table.upserts = tracked->cut->rows;
      table.blocks = static_cast<std::uint32_t>((table.upserts + kDeltaBlockRows - 1) / kDeltaBlockRows);
    }
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
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_io("rename a temporary file to", path);
  } catch (...) {
    ::unlink(temporary.c_str());
    abandon();
    throw;
  }
  failpoint("delta.after_rename");
  abandon();
  for (const auto& tracked : tables_) {
    tracked->is_complete = false;
    tracked->ids.clear();
    tracked->written = tracked->extras;
  }
}

void DeltaCollector::write_rows(const Tracked& tracked, OutputFile& file) const {
  BlockWriter writer(*tracked.table, flavour_);
  for (const RawRows& rows : tracked.blocks) writer.append(rows, file);
  append_checked(std::as_bytes(std::span(tracked.gone)), file);
  if (!tracked.cut) return;
  // Blocks are filled up over the ends of parts, so that the header can tell their number beforehand.
  RawRows block;
  const std::size_t row_bytes = tracked.table->schema().row_bytes();
  const auto write_block = [&] {
    writer.append(block, file);
    block.ids.clear();
    block.times.clear();
    block.rows.clear();
  };
  std::size_t taken = 0;
  RawRows piece;
  const auto pack = [&](const Table::CutRows& rows) {
    piece.ids.assign(rows.ids.begin(), rows.ids.end());
    piece.times.assign(rows.times.begin(), rows.times.end());
    piece.rows.clear();
    for (const RowView& row : rows.rows) tracked.table->schema().append_packed(row, piece.rows);
  };
  const auto flush = [&] {
    for (std::size_t at = 0; at < piece.ids.size();) {
      const std::size_t end = at + std::min(piece.ids.size() - at, kDeltaBlockRows - block.ids.size());
      const auto from = static_cast<std::ptrdiff_t>(at);
      const auto to = static_cast<std::ptrdiff_t>(end);
      const auto row = [&](std::ptrdiff_t i) {
        return piece.rows.begin() + i * static_cast<std::ptrdiff_t>(row_bytes);
      };
      block.ids.insert(block.ids.end(), piece.ids.begin() + from, piece.ids.begin() + to);
      block.times.insert(block.times.end(), piece.times.begin() + from, piece.times.begin() + to);
      block.rows.insert(block.rows.end(), row(from), row(to));
      if (block.ids.size() == kDeltaBlockRows) write_block();
      taken += end - at;
      at = end;
    }
  };
  for (std::size_t part = 0; part < kParts; ++part) {
    tracked.table->visit_cut(*tracked.cut, part, kCutPieceRows, pack, flush);
  }
  if (!block.ids.empty()) write_block();
  if (taken != tracked.cut->rows) {
    throw Error("table '" + tracked.table->config().name + "': the cut has " + std::to_string(tracked.cut->rows) +
                " rows, it handed out " + std::to_string(taken) + "; this is a defect");
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
    write_rows(*tracked, file);
  }
  append_checked(marks, file);
  file.finish();
}

}  // namespace engine
