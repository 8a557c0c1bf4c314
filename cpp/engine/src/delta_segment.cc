// delta_segment.cc: replays a segment into tables.
#include "engine/delta_segment.h"

#include <algorithm>
#include <iterator>

#include "delta_format.h"
#include "delta_reader.h"
#include "engine/error.h"
#include "rows.h"

namespace engine {

namespace {

std::string spell(std::span<const DeltaSlice> slices) {
  std::string text;
  for (const DeltaSlice& slice : slices) {
    if (!text.empty()) text += ", ";
    text += slice.kind + "(" + std::to_string(slice.dim) + ")";
  }
  return text;
}

// Which of the segment's tables goes into which of ours: those of the job itself only where we have them.
std::vector<std::uint32_t> matched(const DeltaHeader& header, std::span<Table* const> tables) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t number = 0; number < header.tables.size(); ++number) {
    const std::string& name = header.tables[number].name;
    const auto is_wanted = [&](const Table* table) { return table->config().name == name; };
    if (name.starts_with(kJobTables) && std::none_of(tables.begin(), tables.end(), is_wanted)) continue;
    found.push_back(number);
  }
  return found;
}

// Refuses tables whose rows mean something else.
void check_tables(const std::string& path, const DeltaHeader& header, std::span<const std::uint32_t> numbers,
                  std::span<Table* const> tables) {
  if (numbers.size() != tables.size()) {
    throw SchemaMismatch("the segment '" + path + "' holds " + std::to_string(numbers.size()) + " tables, there are " +
                         std::to_string(tables.size()) + "; replay it into the same tables");
  }
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const Table& table = *tables[t];
    const DeltaTable& ours = header.tables[numbers[t]];
    if (ours.name != table.config().name) {
      throw SchemaMismatch("the segment '" + path + "' holds a table '" + ours.name + "' where '" +
                           table.config().name + "' is asked for; replay it into tables of the same names");
    }
    const bool is_serving = header.flavour == DeltaFlavour::kServing;
    if (is_serving && !table.schema().is_serving()) {
      throw SchemaMismatch("table '" + ours.name + "': the segment '" + path +
                           "' is of the serving flavour, which no training can resume from; use a durable log");
    }
    const std::vector<DeltaSlice> wanted = delta_slices(table, header.flavour);
    const auto agrees = [](const DeltaSlice& one, const DeltaSlice& other) {
      return one.dim == other.dim && one.value_bytes == other.value_bytes && one.state_bytes == other.state_bytes &&
             one.kind == other.kind;
    };
    if (!std::equal(wanted.begin(), wanted.end(), ours.slices.begin(), ours.slices.end(), agrees)) {
      throw SchemaMismatch("table '" + ours.name + "' has slices " + spell(wanted) + ", the segment '" + path +
                           "' has " + spell(ours.slices));
    }
  }
}

// Applies a segment to one table.
class TableReplay {
 public:
  TableReplay(const DeltaReader& segment, std::uint32_t number, Table& table, ShardFilter keep)
      : segment_(segment),
        section_(segment.header().tables[number]),
        number_(number),
        table_(table),
        keep_(keep),
        is_decoded_(table.schema().is_serving() && segment.header().flavour == DeltaFlavour::kDurable),
        stored_(stored_row(section_)) {
    if (!is_decoded_) stored_ = {.columns = columns_of(table.schema()), .bytes = table.schema().row_bytes()};
  }

  void run() {
    if (section_.is_complete) find_stale();
    if (table_.size() == 0) table_.reserve(section_.upserts / keep_.count);
    std::vector<const DeltaReader::Piece*> blocks;
    for (const DeltaReader::Piece& piece : segment_.blocks()) {
      if (piece.table == number_) blocks.push_back(&piece);
    }
    upserted_.resize(stale_.empty() ? 0 : blocks.size());
    // Rows are numbered as they come in; a deterministic table takes them in the order of the file.
    Pool alone(1);
    Pool& pool = table_.config().is_deterministic ? alone : table_.pool();
    pool.run(blocks.size(), [&](std::size_t i) { upsert(i, *blocks[i]); });
    remove_tombstones();
    remove_stale();
    std::vector<float> scales;
    for (const DeltaSlice& slice : section_.slices) scales.push_back(slice.scale);
    table_.restore_extras(
        {.max_time_s = section_.max_time_s, .scales = scales, .filter = {}, .turn = section_.turn, .rows = 0});
  }

 private:
  // Ids of the segment's shard that are here, and perhaps should not.
  void find_stale() {
    const DeltaHeader& header = segment_.header();
    bool are_all_ours = true;
    for (std::size_t part = 0; part < kParts; ++part) {
      for (const std::int64_t id : table_.part_ids(part)) {
        const bool is_ours = static_cast<std::uint64_t>(id) % header.shard_count == header.shard_index;
        if (is_ours) stale_.push_back(id);
        are_all_ours = are_all_ours && is_ours;
      }
    }
    // Only clear() turns the event clock back, so the writer's table was cleared.
    if (are_all_ours && !table_.schema().is_serving() && section_.max_time_s < table_.max_time_s()) {
      table_.clear();
      stale_.clear();
    }
    std::sort(stale_.begin(), stale_.end());
  }

  void upsert(std::size_t number, const DeltaReader::Piece& piece) {
    static thread_local std::vector<std::byte> buffer;
    static thread_local RawRows stored;
    static thread_local RawRows kept;
    segment_.read(piece, buffer);
    unpack_columns(stored_.columns, piece.rows, buffer.data() + sizeof(std::uint32_t), stored_.bytes, stored.ids,
                   stored.times, stored.rows);
    if (!upserted_.empty()) upserted_[number] = stored.ids;
    const RowSchema& schema = table_.schema();
    if (!is_decoded_ && keep_.count == 1 && !table_.config().skip_zero_rows) {
      table_.import_rows(stored.ids, stored.times, stored.rows.data(), false);
      return;
    }
    kept = {};
    std::vector<std::int64_t> zeros;
    std::vector<float> values(schema.dim());
    std::vector<std::byte> row(schema.row_bytes());
    for (std::size_t i = 0; i < stored.ids.size(); ++i) {
      if (static_cast<std::uint64_t>(stored.ids[i]) % keep_.count != keep_.index) continue;
      const std::byte* bytes = stored.rows.data() + i * stored_.bytes;
      if (is_decoded_) {
        std::memcpy(values.data(), bytes, values.size() * sizeof(float));
        schema.set(row.data(), values.data());
        bytes = row.data();
      } else if (table_.config().skip_zero_rows) {
        schema.get(bytes, values.data());
      }
      if (table_.config().skip_zero_rows && is_zero_row(values.data(), values.size())) {
        zeros.push_back(stored.ids[i]);
        continue;
      }
      kept.ids.push_back(stored.ids[i]);
      kept.times.push_back(stored.times[i]);
      kept.rows.insert(kept.rows.end(), bytes, bytes + row.size());
    }
    table_.import_rows(kept.ids, kept.times, kept.rows.data(), false);
    if (!zeros.empty()) table_.erase(zeros);
  }

  void remove_tombstones() {
    for (const DeltaReader::Piece& piece : segment_.tombstones()) {
      if (piece.table != number_) continue;
      std::vector<std::byte> bytes;
      segment_.read(piece, bytes);
      std::vector<std::int64_t> ids(bytes.size() / sizeof(std::int64_t));
      std::memcpy(ids.data(), bytes.data(), bytes.size());
      table_.erase(ids);
    }
  }

  void remove_stale() {
    if (stale_.empty()) return;
    std::vector<std::int64_t> present;
    for (const auto& ids : upserted_) present.insert(present.end(), ids.begin(), ids.end());
    std::sort(present.begin(), present.end());
    std::vector<std::int64_t> gone;
    std::set_difference(stale_.begin(), stale_.end(), present.begin(), present.end(), std::back_inserter(gone));
    if (!gone.empty()) table_.erase(gone);
  }

  const DeltaReader& segment_;
  const DeltaTable& section_;
  std::uint32_t number_;
  Table& table_;
  ShardFilter keep_;
  bool is_decoded_;  // stored values are to be compressed for this table
  StoredRow stored_;
  std::vector<std::int64_t> stale_;
  std::vector<std::vector<std::int64_t>> upserted_;  // per block; only when something may be stale
};

}  // namespace

DeltaHeader read_delta_header(const std::string& path) { return DeltaReader(path).header(); }

DeltaHeader verify_delta(const std::string& path, Pool& pool) {
  const DeltaReader segment(path);
  segment.verify(pool);
  return segment.header();
}

std::vector<std::byte> read_delta_marks(const std::string& path) {
  const DeltaReader segment(path);
  std::vector<std::byte> marks;
  segment.read(segment.marks(), marks);
  return marks;
}

std::vector<std::vector<std::int64_t>> read_delta_ids(const std::string& path, ShardFilter keep) {
  const DeltaReader segment(path);
  std::vector<std::vector<std::int64_t>> found(segment.header().tables.size());
  std::vector<std::byte> bytes;
  const auto take = [&](const DeltaReader::Piece& piece, const std::byte* at, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto id = get<std::int64_t>(at + i * sizeof(std::int64_t));
      if (static_cast<std::uint64_t>(id) % keep.count == keep.index) found[piece.table].push_back(id);
    }
  };
  for (const DeltaReader::Piece& piece : segment.blocks()) {
    segment.read(piece, bytes);
    take(piece, bytes.data() + sizeof(std::uint32_t), piece.rows);
  }
  for (const DeltaReader::Piece& piece : segment.tombstones()) {
    segment.read(piece, bytes);
    take(piece, bytes.data(), bytes.size() / sizeof(std::int64_t));
  }
  return found;
}

DeltaHeader replay_delta(const std::string& path, std::span<Table* const> tables, ShardFilter keep) {
  const DeltaReader segment(path);
  const std::vector<std::uint32_t> numbers = matched(segment.header(), tables);
  check_tables(path, segment.header(), numbers, tables);
  if (!tables.empty()) segment.verify(tables[0]->pool());
  for (std::size_t t = 0; t < tables.size(); ++t) TableReplay(segment, numbers[t], *tables[t], keep).run();
  return segment.header();
}

}  // namespace engine
