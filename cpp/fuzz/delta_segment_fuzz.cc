// delta_segment_fuzz.cc: segments of delta logs. One that is accepted leaves tables that hold together; one that is
// refused leaves them as they were.
#include <algorithm>
#include <vector>

#include "delta_format.h"
#include "engine/crc32c.h"
#include "engine/delta_segment.h"
#include "memory_file.h"
#include "row_columns.h"
#include "small_tables.h"
#include "target.h"

namespace {

using namespace engine;

// Bytes with their checksum, so that checksums do not stand in the fuzzer's way.
void append_checked(std::vector<std::byte>& file, fuzz::Bytes bytes) {
  file.insert(file.end(), bytes.begin(), bytes.end());
  put(file, crc32c(0, bytes.data(), bytes.size()));
}

// The header of a segment that fits the tables, with the numbers that the input tells.
std::vector<std::byte> make_header(fuzz::Input& input, const Table& table, DeltaFlavour flavour, std::size_t blocks) {
  DeltaHeader header;
  header.flavour = flavour;
  header.shard_count = input.byte() % 4 + 1;
  header.shard_index = input.byte() % header.shard_count;
  header.sequence = 1;
  DeltaTable section;
  section.name = table.config().name;
  const std::uint8_t flags = input.byte();
  section.is_complete = (flags & 1) != 0;
  section.blocks = static_cast<std::uint32_t>(blocks);
  section.upserts = input.byte();
  section.tombstones = input.byte() % 8;
  section.max_time_s = static_cast<std::int64_t>(input.word());
  section.slices = delta_slices(table, flavour);
  if ((flags & 2) != 0) {
    DeltaSlice& slice = section.slices[flags >> 7];
    slice.value_bytes = static_cast<std::uint32_t>(input.word());
    slice.state_bytes = static_cast<std::uint32_t>(input.word());
  }
  header.marks_bytes = (flags & 4) != 0 ? 5 : 0;
  header.tables = {section};
  return encode_delta_header(header);
}

// Input: options, then by option the header's bytes as a piece, or its numbers; blocks, tombstones and marks as pieces.
void run(fuzz::Bytes bytes) {
  static fuzz::MemoryFile memory;
  fuzz::SmallTables& tables = fuzz::small_tables();
  tables.clear();
  fuzz::Input input(bytes);
  const std::uint8_t options = input.byte();
  const bool is_raw = (options & 1) != 0;
  const bool is_serving = (options & 2) != 0;
  Table& table = is_serving ? *tables.serving : *tables.training;
  const DeltaFlavour flavour = is_serving && (options & 4) != 0 ? DeltaFlavour::kServing : DeltaFlavour::kDurable;
  const std::size_t blocks = (options >> 4) & 3;

  std::vector<std::byte> body;
  if (is_raw) {
    const fuzz::Bytes raw = input.piece();
    body.assign(raw.begin(), raw.end());
  } else {
    body = make_header(input, table, flavour, blocks);
  }
  std::vector<std::byte> file;
  for (const char c : kDeltaMagic) file.push_back(static_cast<std::byte>(c));
  put(file, static_cast<std::uint32_t>(body.size()));
  append_checked(file, body);
  for (const fuzz::Bytes piece : input.pieces(8)) append_checked(file, piece);
  memory.write(file);

  (void)fuzz::accepts([&] { (void)read_delta_marks(memory.path()); });
  const bool is_sound = fuzz::accepts([&] { (void)verify_delta(memory.path(), table.pool()); });
  std::vector<std::vector<std::int64_t>> ids;
  const bool has_ids = fuzz::accepts([&] { ids = read_delta_ids(memory.path(), {}); });
  fuzz::expect(!is_sound || has_ids, "a segment that was verified cannot be read");
  Table* const target[] = {&table};
  const bool is_replayed = fuzz::accepts([&] { (void)replay_delta(memory.path(), target, {}); });
  fuzz::expect(!is_replayed || is_sound, "a segment that is refused was replayed");
  fuzz::expect(is_replayed || table.size() == 0, "a segment that was refused has left rows");
  fuzz::check_table(table);
  if (!is_replayed) return;
  std::size_t touched = 0;
  for (const auto& each : ids) touched += each.size();
  fuzz::expect(table.size() <= touched, "a table has rows that no segment names");
  // A replay of the same segment changes nothing.
  const std::size_t rows = table.size();
  fuzz::expect(fuzz::accepts([&] { (void)replay_delta(memory.path(), target, {}); }), "a second replay is refused");
  fuzz::expect(table.size() == rows, "a second replay gives another number of rows");
}

const fuzz::Target target("delta_segment", run);

}  // namespace
