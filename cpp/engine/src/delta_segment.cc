// delta_segment.cc: the header of a segment, and reading one back.
#include "engine/delta_segment.h"

#include <algorithm>
#include <charconv>

#include "delta_format.h"
#include "engine/crc32c.h"
#include "engine/error.h"
#include "file.h"
#include "row_columns.h"
#include "rows.h"

namespace engine {

namespace {

constexpr std::size_t kMostHeaderBytes = std::size_t{64} << 20;
constexpr std::size_t kCrcBytes = sizeof(std::uint32_t);

void put_text(std::vector<std::byte>& out, const std::string& text) {
  for (const char c : text) out.push_back(static_cast<std::byte>(c));
}

// A kind with its settings, in one spelling: "fixed_r8 r=1".
std::string spell(const PartConfig& part) {
  std::string text = part.kind;
  for (const auto& [name, value] : part.settings) {
    char number[32];
    const auto end = std::to_chars(std::begin(number), std::end(number), value).ptr;
    text += " " + name + "=" + std::string(number, end);
  }
  return text;
}

std::uint32_t hash_of_tables(std::span<const DeltaTable> tables) {
  std::vector<std::byte> bytes;
  for (const DeltaTable& table : tables) {
    put(bytes, static_cast<std::uint32_t>(table.name.size()));
    put_text(bytes, table.name);
    put(bytes, static_cast<std::uint32_t>(table.slices.size()));
    for (const DeltaSlice& slice : table.slices) {
      put(bytes, slice.dim);
      put(bytes, slice.value_bytes);
      put(bytes, slice.state_bytes);
      put(bytes, static_cast<std::uint32_t>(slice.kind.size()));
      put_text(bytes, slice.kind);
    }
  }
  return crc32c(0, bytes.data(), bytes.size());
}

[[noreturn]] void fail(const InputFile& file, std::uint64_t offset, const std::string& reason) {
  throw SnapshotCorrupt("'" + file.path() + "' at byte " + std::to_string(offset) + ": " + reason);
}

// Reads the fields of a header's body one after another.
class Fields {
 public:
  Fields(const InputFile& file, std::uint64_t offset, std::span<const std::byte> body)
      : file_(file), offset_(offset), body_(body) {}

  template <class T>
  T next() {
    const std::byte* from = take(sizeof(T));
    return get<T>(from);
  }
  std::string text(std::size_t bytes) {
    const std::byte* from = take(bytes);
    return {reinterpret_cast<const char*>(from), bytes};
  }
  // A number of things that take at least `each` bytes.
  std::uint32_t count(std::size_t each) {
    const auto number = next<std::uint32_t>();
    if (number > (body_.size() - at_) / each) refuse("it claims " + std::to_string(number) + " parts");
    return number;
  }
  [[nodiscard]] bool is_at_end() const noexcept { return at_ == body_.size(); }
  [[noreturn]] void refuse(const std::string& reason) const {
    fail(file_, offset_ + at_, "the header is wrong: " + reason);
  }

 private:
  const std::byte* take(std::size_t bytes) {
    if (bytes > body_.size() - at_) refuse("it ends too early");
    at_ += bytes;
    return body_.data() + at_ - bytes;
  }

  const InputFile& file_;
  std::uint64_t offset_;
  std::span<const std::byte> body_;
  std::size_t at_ = 0;
};

DeltaTable decode_table(Fields& fields) {
  DeltaTable table;
  const auto name_bytes = fields.next<std::uint32_t>();
  const auto flags = fields.next<std::uint32_t>();
  if ((flags & ~kDeltaIsComplete) != 0) fields.refuse("flags " + std::to_string(flags) + " of a table are not known");
  table.is_complete = flags != 0;
  table.blocks = fields.next<std::uint32_t>();
  table.upserts = fields.next<std::uint64_t>();
  table.tombstones = fields.next<std::uint64_t>();
  table.max_time_s = fields.next<std::int64_t>();
  table.turn = fields.next<std::uint64_t>();
  table.name = fields.text(name_bytes);
  table.slices.resize(fields.count(5 * sizeof(std::uint32_t)));
  for (DeltaSlice& slice : table.slices) {
    slice.dim = fields.next<std::uint32_t>();
    slice.value_bytes = fields.next<std::uint32_t>();
    slice.state_bytes = fields.next<std::uint32_t>();
    const auto kind_bytes = fields.next<std::uint32_t>();
    slice.scale = fields.next<float>();
    slice.kind = fields.text(kind_bytes);
  }
  return table;
}

DeltaHeader decode_body(Fields fields) {
  const auto version = fields.next<std::uint32_t>();
  if (version != kDeltaVersion) {
    fields.refuse("version " + std::to_string(version) + " is not known to this release");
  }
  DeltaHeader header;
  const auto flavour = fields.next<std::uint32_t>();
  if (flavour != 1 && flavour != 2) fields.refuse("flavour " + std::to_string(flavour) + " is not known");
  header.flavour = static_cast<DeltaFlavour>(flavour);
  header.shard_index = fields.next<std::uint32_t>();
  header.shard_count = fields.next<std::uint32_t>();
  if (header.shard_index >= header.shard_count) fields.refuse("there is no such shard");
  header.log = fields.next<std::uint64_t>();
  header.sequence = fields.next<std::uint64_t>();
  header.previous = fields.next<std::uint64_t>();
  header.wall_time_us = fields.next<std::int64_t>();
  header.newest_event_s = fields.next<std::int64_t>();
  header.tables_hash = fields.next<std::uint32_t>();
  header.marks_bytes = fields.next<std::uint64_t>();
  header.tables.resize(fields.count(40));
  for (DeltaTable& table : header.tables) table = decode_table(fields);
  if (!fields.is_at_end()) fields.refuse("it is too long");
  if (header.tables_hash != hash_of_tables(header.tables)) fields.refuse("the hash of its tables does not match");
  return header;
}

// The columns of stored rows, and the row they make: values of all slices, then their states. This is a training row.
struct StoredRow {
  std::vector<Column> columns;
  std::size_t bytes = 0;
};

StoredRow stored_row(const DeltaTable& table) {
  StoredRow row;
  std::size_t state = 0;
  for (const DeltaSlice& slice : table.slices) state += slice.value_bytes;
  std::size_t value = 0;
  for (const DeltaSlice& slice : table.slices) {
    row.columns.push_back({value, slice.value_bytes});
    value += slice.value_bytes;
    if (slice.state_bytes == 0) continue;
    row.columns.push_back({state, slice.state_bytes});
    state += slice.state_bytes;
  }
  row.bytes = state;
  return row;
}

// An open segment whose header was read and whose pieces were found.
class SegmentReader {
 public:
  struct Piece {
    std::uint32_t table;
    std::uint32_t rows;
    std::uint64_t offset;
    std::uint64_t bytes;  // without the checksum
  };

  explicit SegmentReader(const std::string& path) : file_(path), size_(file_.size()) {
    std::uint64_t offset = read_header();
    for (std::uint32_t t = 0; t < header_.tables.size(); ++t) offset = find_pieces(t, offset);
    marks_ = {.table = 0, .rows = 0, .offset = offset, .bytes = header_.marks_bytes};
    if (header_.marks_bytes > 0) offset = end_of(marks_);
    if (offset != size_) {
      fail(file_, offset, "the segment ends here, the file has " + std::to_string(size_ - offset) + " bytes more");
    }
  }

  [[nodiscard]] const DeltaHeader& header() const noexcept { return header_; }
  [[nodiscard]] std::span<const Piece> blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::span<const Piece> tombstones() const noexcept { return tombstones_; }
  [[nodiscard]] const Piece& marks() const noexcept { return marks_; }

  // The bytes of a piece, checked.
  void read(const Piece& piece, std::vector<std::byte>& out) const {
    out.clear();
    if (piece.bytes == 0) return;
    out.resize(piece.bytes + kCrcBytes);
    if (!file_.read_at(piece.offset, out.data(), out.size())) fail(file_, piece.offset, "the file is cut off");
    if (crc32c(0, out.data(), piece.bytes) != get<std::uint32_t>(out.data() + piece.bytes)) {
      fail(file_, piece.offset, "checksum does not match");
    }
    out.resize(piece.bytes);
  }

  void verify(Pool& pool) const {
    std::vector<Piece> all(blocks_);
    all.insert(all.end(), tombstones_.begin(), tombstones_.end());
    all.push_back(marks_);
    pool.run(all.size(), [&](std::size_t i) {
      static thread_local std::vector<std::byte> buffer;
      read(all[i], buffer);
    });
  }

 private:
  std::uint64_t read_header() {
    constexpr std::size_t kOpening = sizeof kDeltaMagic + sizeof(std::uint32_t);
    std::vector<std::byte> opening(kOpening);
    if (!file_.read_at(0, opening.data(), kOpening)) fail(file_, 0, "the file is cut off in its first bytes");
    if (std::memcmp(opening.data(), kDeltaMagic, sizeof kDeltaMagic) != 0) fail(file_, 0, "this is no delta segment");
    const auto bytes = get<std::uint32_t>(opening.data() + sizeof kDeltaMagic);
    if (bytes > kMostHeaderBytes || kOpening + bytes + kCrcBytes > size_) {
      fail(file_, sizeof kDeltaMagic, "the header is cut off, or its length was altered");
    }
    std::vector<std::byte> body(bytes + kCrcBytes);
    if (!file_.read_at(kOpening, body.data(), body.size())) fail(file_, kOpening, "the header is cut off");
    if (crc32c(0, body.data(), bytes) != get<std::uint32_t>(body.data() + bytes)) {
      fail(file_, kOpening, "checksum of the header does not match");
    }
    header_ = decode_body(Fields(file_, kOpening, {body.data(), bytes}));
    return kOpening + body.size();
  }

  std::uint64_t find_pieces(std::uint32_t number, std::uint64_t offset) {
    const DeltaTable& table = header_.tables[number];
    const std::size_t row_bytes = stored_row_bytes(stored_row(table).columns);
    std::uint64_t upserts = 0;
    for (std::uint32_t block = 0; block < table.blocks; ++block) {
      std::uint32_t rows = 0;
      if (!file_.read_at(offset, reinterpret_cast<std::byte*>(&rows), sizeof rows)) {
        fail(file_, offset,
             "the file is cut off before block " + std::to_string(block) + " of table '" + table.name + "'");
      }
      if (rows > kDeltaBlockRows) fail(file_, offset, "a block claims " + std::to_string(rows) + " rows");
      blocks_.push_back({.table = number, .rows = rows, .offset = offset, .bytes = sizeof rows + rows * row_bytes});
      upserts += rows;
      offset = end_of(blocks_.back());
    }
    if (upserts != table.upserts) {
      fail(file_, offset,
           "table '" + table.name + "' has " + std::to_string(upserts) + " rows, the header says " +
               std::to_string(table.upserts));
    }
    if (table.tombstones == 0) return offset;
    if (table.tombstones > size_ / sizeof(std::int64_t)) fail(file_, offset, "the file is cut off in its tombstones");
    tombstones_.push_back({.table = number,
                           .rows = static_cast<std::uint32_t>(0),
                           .offset = offset,
                           .bytes = table.tombstones * sizeof(std::int64_t)});
    return end_of(tombstones_.back());
  }

  [[nodiscard]] std::uint64_t end_of(const Piece& piece) const {
    if (piece.offset + kCrcBytes > size_ || piece.bytes > size_ - piece.offset - kCrcBytes) {
      fail(file_, size_, "the file is cut off: what begins at byte " + std::to_string(piece.offset) + " is longer");
    }
    return piece.offset + piece.bytes + kCrcBytes;
  }

  InputFile file_;
  std::uint64_t size_;
  DeltaHeader header_;
  std::vector<Piece> blocks_;
  std::vector<Piece> tombstones_;
  Piece marks_{};
};

std::string spell(std::span<const DeltaSlice> slices) {
  std::string text;
  for (const DeltaSlice& slice : slices) {
    if (!text.empty()) text += ", ";
    text += slice.kind + "(" + std::to_string(slice.dim) + ")";
  }
  return text;
}

// Refuses tables whose rows mean something else.
void check_tables(const std::string& path, const DeltaHeader& header, std::span<Table* const> tables) {
  if (header.tables.size() != tables.size()) {
    throw SchemaMismatch("the segment '" + path + "' holds " + std::to_string(header.tables.size()) +
                         " tables, there are " + std::to_string(tables.size()) + "; replay it into the same tables");
  }
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const Table& table = *tables[t];
    const DeltaTable& ours = header.tables[t];
    if (ours.name != table.config().name) {
      throw SchemaMismatch("the segment '" + path + "' holds a table '" + ours.name + "' where '" +
                           table.config().name + "' is asked for; replay it into tables of the same names");
    }
    const bool is_serving = header.flavour == DeltaFlavour::kServing;
    if (is_serving && !table.schema().is_serving()) {
      throw SchemaMismatch("table '" + ours.name + "': the segment '" + path +
                           "' is of the serving flavour, which no training can go on from; use a durable log");
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

// Changes one table as a segment says.
class TableReplay {
 public:
  TableReplay(const SegmentReader& segment, std::uint32_t number, Table& table, ShardFilter keep)
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
    std::vector<const SegmentReader::Piece*> blocks;
    for (const SegmentReader::Piece& piece : segment_.blocks()) {
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
    for (std::size_t part = 0; part < kShards; ++part) {
      for (const std::int64_t id : table_.shard_ids(part)) {
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

  void upsert(std::size_t number, const SegmentReader::Piece& piece) {
    static thread_local std::vector<std::byte> buffer;
    static thread_local RawRows stored;
    static thread_local RawRows kept;
    segment_.read(piece, buffer);
    unpack_columns(stored_.columns, piece.rows, buffer.data() + sizeof(std::uint32_t), stored_.bytes, stored.ids,
                   stored.times, stored.rows);
    if (!upserted_.empty()) upserted_[number] = stored.ids;
    const RowSchema& schema = table_.schema();
    if (!is_decoded_ && keep_.count == 1 && !table_.config().skip_zero_rows) {
      table_.import_rows(stored.ids, stored.times, stored.rows.data());
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
    table_.import_rows(kept.ids, kept.times, kept.rows.data());
    if (!zeros.empty()) table_.erase(zeros);
  }

  void remove_tombstones() {
    for (const SegmentReader::Piece& piece : segment_.tombstones()) {
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

  const SegmentReader& segment_;
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

std::vector<DeltaSlice> delta_slices(const Table& table, DeltaFlavour flavour) {
  std::vector<DeltaSlice> slices;
  const std::vector<float> scales = table.scales();
  for (std::size_t k = 0; k < scales.size(); ++k) {
    const RowSchema::Slice& slice = table.schema().slices()[k];
    const bool is_durable = flavour == DeltaFlavour::kDurable;
    const std::size_t value_bytes = is_durable ? slice.dim * sizeof(float) : slice.compressor->bytes(slice.dim);
    const std::size_t state_bytes = is_durable ? slice.optimizer->state_words() * sizeof(float) : 0;
    slices.push_back({.dim = slice.dim,
                      .value_bytes = static_cast<std::uint32_t>(value_bytes),
                      .state_bytes = static_cast<std::uint32_t>(state_bytes),
                      .kind = is_durable ? slice.optimizer_kind : spell(table.config().slices[k].compressor),
                      .scale = scales[k]});
  }
  return slices;
}

std::vector<std::byte> encode_delta_header(DeltaHeader& header) {
  header.tables_hash = hash_of_tables(header.tables);
  std::vector<std::byte> body;
  put(body, kDeltaVersion);
  put(body, static_cast<std::uint32_t>(header.flavour));
  put(body, header.shard_index);
  put(body, header.shard_count);
  put(body, header.log);
  put(body, header.sequence);
  put(body, header.previous);
  put(body, header.wall_time_us);
  put(body, header.newest_event_s);
  put(body, header.tables_hash);
  put(body, header.marks_bytes);
  put(body, static_cast<std::uint32_t>(header.tables.size()));
  for (const DeltaTable& table : header.tables) {
    put(body, static_cast<std::uint32_t>(table.name.size()));
    put(body, table.is_complete ? kDeltaIsComplete : 0U);
    put(body, table.blocks);
    put(body, table.upserts);
    put(body, table.tombstones);
    put(body, table.max_time_s);
    put(body, table.turn);
    put_text(body, table.name);
    put(body, static_cast<std::uint32_t>(table.slices.size()));
    for (const DeltaSlice& slice : table.slices) {
      put(body, slice.dim);
      put(body, slice.value_bytes);
      put(body, slice.state_bytes);
      put(body, static_cast<std::uint32_t>(slice.kind.size()));
      put(body, slice.scale);
      put_text(body, slice.kind);
    }
  }
  std::vector<std::byte> bytes;
  for (const char c : kDeltaMagic) bytes.push_back(static_cast<std::byte>(c));
  put(bytes, static_cast<std::uint32_t>(body.size()));
  bytes.insert(bytes.end(), body.begin(), body.end());
  put(bytes, crc32c(0, body.data(), body.size()));
  return bytes;
}

DeltaHeader read_delta_header(const std::string& path) { return SegmentReader(path).header(); }

DeltaHeader verify_delta(const std::string& path, Pool& pool) {
  const SegmentReader segment(path);
  segment.verify(pool);
  return segment.header();
}

std::vector<std::byte> read_delta_marks(const std::string& path) {
  const SegmentReader segment(path);
  std::vector<std::byte> marks;
  segment.read(segment.marks(), marks);
  return marks;
}

std::uint32_t delta_tables_hash(std::span<Table* const> tables, DeltaFlavour flavour) {
  std::vector<DeltaTable> sections(tables.size());
  for (std::size_t t = 0; t < tables.size(); ++t) {
    sections[t].name = tables[t]->config().name;
    sections[t].slices = delta_slices(*tables[t], flavour);
  }
  return hash_of_tables(sections);
}

DeltaHeader replay_delta(const std::string& path, std::span<Table* const> tables, ShardFilter keep) {
  const SegmentReader segment(path);
  check_tables(path, segment.header(), tables);
  if (!tables.empty()) segment.verify(tables[0]->pool());
  for (std::size_t t = 0; t < tables.size(); ++t) {
    TableReplay(segment, static_cast<std::uint32_t>(t), *tables[t], keep).run();
  }
  return segment.header();
}

}  // namespace engine
