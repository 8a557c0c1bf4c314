// snapshot_fuzz.cc: part files of snapshots, and the numbers that a manifest claims of them.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

#include "engine/crc32c.h"
#include "engine/snapshot.h"
#include "memory_file.h"
#include "row_columns.h"
#include "small_tables.h"
#include "target.h"

namespace {

using namespace engine;

constexpr std::uint64_t kGeneration = 7;
constexpr std::uint32_t kBlockMark = 0x4B434C42;
constexpr std::uint32_t kTailMark = 0x4C494154;
constexpr std::size_t kTailBytes = 24;

// The opening of a part of the training table: the file of an empty one, without its tail.
const std::vector<std::byte>& opening() {
  static const std::vector<std::byte> bytes = [] {
    char folder[] = "/dev/shm/snapshot_fuzz.XXXXXX";  // no disk to wait for
    fuzz::expect(::mkdtemp(folder) != nullptr, "no folder can be made");
    const std::string path = std::string(folder) + "/part";
    Table& table = *fuzz::small_tables().training;
    table.clear();
    write_snapshot(table, table.begin_cut(), kGeneration, {path}, 0, 1);
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
    ::unlink(path.c_str());
    ::rmdir(folder);
    const auto all = std::as_bytes(std::span(content));
    return std::vector<std::byte>(all.begin(), all.end() - kTailBytes);
  }();
  return bytes;
}

// A block whose checksums fit, however many rows its header claims.
void append_block(std::vector<std::byte>& file, std::uint32_t rows, fuzz::Bytes content,
                  std::span<const Column> columns) {
  std::vector<std::byte> header;
  put(header, kBlockMark);
  put(header, rows);
  std::size_t at = 0;
  const auto add = [&](std::size_t width) {
    const std::size_t end = std::min(content.size(), at + rows * width);
    put(header, crc32c(0, content.data() + at, end - at));
    at = end;
  };
  add(sizeof(std::int64_t));
  add(sizeof(std::uint32_t));
  for (const Column& column : columns) add(column.bytes);
  put(header, crc32c(0, header.data(), header.size()));
  file.insert(file.end(), header.begin(), header.end());
  file.insert(file.end(), content.begin(), content.end());
}

// Input: options; numbers of tail and manifest, which options may replace by the right ones; blocks: each a byte of
// rows and a piece.
void run(fuzz::Bytes bytes) {
  static fuzz::MemoryFile memory;
  fuzz::SmallTables& tables = fuzz::small_tables();
  const std::vector<std::byte>& begin = opening();
  tables.clear();
  Table& table = *tables.training;
  fuzz::Input input(bytes);
  const std::uint8_t options = input.byte();
  std::uint64_t rows = input.word();
  std::uint64_t blocks = input.byte();
  SnapshotPart part{.path = memory.path(), .bytes = input.word(), .rows = input.word()};
  std::vector<std::byte> file(begin);
  std::uint64_t told_rows = 0;
  std::uint64_t told_blocks = 0;
  const std::vector<Column> columns = columns_of(table.schema());
  while (!input.done() && told_blocks < 8) {
    std::uint32_t count = input.byte();
    if ((options & 8) != 0 && count == 255) count = static_cast<std::uint32_t>(input.word());
    append_block(file, count, input.piece(), columns);
    told_rows += count;
    ++told_blocks;
  }
  if ((options & 1) == 0) rows = told_rows, blocks = told_blocks;
  std::vector<std::byte> tail;
  put(tail, kTailMark);
  put(tail, rows);
  put(tail, blocks);
  put(tail, crc32c(0, tail.data(), tail.size()));
  file.insert(file.end(), tail.begin(), tail.end());
  if ((options & 16) != 0 && !file.empty()) {
    // One byte of the file is another one: nothing but the row bytes themselves may go unnoticed, and those do not.
    file[rows % file.size()] ^= static_cast<std::byte>(1);
  }
  memory.write(file);
  if ((options & 2) == 0) part.bytes = file.size();
  if ((options & 4) == 0) part.rows = told_rows;

  const bool is_sound = fuzz::accepts([&] { verify_snapshot(table.schema(), kGeneration, {&part, 1}, table.pool()); });
  fuzz::expect(!is_sound || (options & 16) == 0, "a changed byte went unnoticed");
  std::size_t taken = 0;
  const bool is_read = fuzz::accepts([&] { taken = read_snapshot(table, kGeneration, {&part, 1}, {}); });
  fuzz::expect(is_read == is_sound, "a part is verified and not read, or the other way round");
  fuzz::check_table(table);
  if (!is_read) return;
  fuzz::expect(taken == part.rows && table.size() <= taken, "another number of rows was taken");
}

const fuzz::Target target("snapshot", run);

}  // namespace
