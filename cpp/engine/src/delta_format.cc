// delta_format.cc: the header of a segment, to bytes and back.
#include "delta_format.h"

#include <charconv>

#include "engine/crc32c.h"
#include "engine/error.h"

namespace engine {

namespace {

using Refuse = std::function<void(std::size_t, const std::string&)>;

constexpr std::uint32_t kDeltaVersion = 1;
constexpr std::uint32_t kIsComplete = 1;
// Values and optimizer state of a row: no optimizer keeps more than 15 words per column. Times the rows of a block,
// this stays far below 2^64.
constexpr std::uint64_t kMostRowBytes = std::uint64_t{kMostColumns} * 16 * sizeof(float);

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

// Reads the fields of a header's body one after another.
class Fields {
 public:
  Fields(std::span<const std::byte> body, const Refuse& refuse) : body_(body), refuse_(refuse) {}

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
    refuse_(at_, "the header is wrong: " + reason);
    throw SnapshotCorrupt(reason);
  }

 private:
  const std::byte* take(std::size_t bytes) {
    if (bytes > body_.size() - at_) refuse("it ends too early");
    at_ += bytes;
    return body_.data() + at_ - bytes;
  }

  std::span<const std::byte> body_;
  const Refuse& refuse_;
  std::size_t at_ = 0;
};

DeltaTable decode_table(Fields& fields) {
  DeltaTable table;
  const auto name_bytes = fields.next<std::uint32_t>();
  const auto flags = fields.next<std::uint32_t>();
  if ((flags & ~kIsComplete) != 0) fields.refuse("flags " + std::to_string(flags) + " of a table are not known");
  table.is_complete = flags != 0;
  table.blocks = fields.next<std::uint32_t>();
  table.upserts = fields.next<std::uint64_t>();
  table.tombstones = fields.next<std::uint64_t>();
  table.max_time_s = fields.next<std::int64_t>();
  table.turn = fields.next<std::uint64_t>();
  table.name = fields.text(name_bytes);
  table.slices.resize(fields.count(5 * sizeof(std::uint32_t)));
  std::uint64_t row_bytes = 0;
  for (DeltaSlice& slice : table.slices) {
    slice.dim = fields.next<std::uint32_t>();
    slice.value_bytes = fields.next<std::uint32_t>();
    slice.state_bytes = fields.next<std::uint32_t>();
    const auto kind_bytes = fields.next<std::uint32_t>();
    slice.scale = fields.next<float>();
    slice.kind = fields.text(kind_bytes);
    row_bytes += std::uint64_t{slice.value_bytes} + slice.state_bytes;
    if (slice.dim > kMostColumns || row_bytes > kMostRowBytes) {
      fields.refuse("a row of table '" + table.name + "' has " + std::to_string(row_bytes) +
                    " bytes or more, expected at most " + std::to_string(kMostRowBytes));
    }
  }
  return table;
}

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

std::uint32_t delta_tables_hash(std::span<Table* const> tables, DeltaFlavour flavour) {
  std::vector<DeltaTable> sections(tables.size());
  for (std::size_t t = 0; t < tables.size(); ++t) {
    sections[t].name = tables[t]->config().name;
    sections[t].slices = delta_slices(*tables[t], flavour);
  }
  return hash_of_tables(sections);
}

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
    put(body, table.is_complete ? kIsComplete : 0U);
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
  return body;
}

DeltaHeader decode_delta_header(std::span<const std::byte> body, const Refuse& refuse) {
  Fields fields(body, refuse);
  const auto version = fields.next<std::uint32_t>();
  if (version != kDeltaVersion) {
    fields.refuse("the format version is " + std::to_string(version) + ", expected " + std::to_string(kDeltaVersion) +
                  "; use the release that wrote it");
  }
  DeltaHeader header;
  const auto flavour = fields.next<std::uint32_t>();
  if (flavour != 1 && flavour != 2) fields.refuse("flavour " + std::to_string(flavour) + " is not known");
  header.flavour = static_cast<DeltaFlavour>(flavour);
  header.shard_index = fields.next<std::uint32_t>();
  header.shard_count = fields.next<std::uint32_t>();
  if (header.shard_index >= header.shard_count)
    fields.refuse("shard " + std::to_string(header.shard_index) + " of " + std::to_string(header.shard_count) +
                  " does not exist");
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

}  // namespace engine
