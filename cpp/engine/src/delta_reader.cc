// delta_reader.cc: finds the pieces of a segment and checks them.
#include "delta_reader.h"

#include "delta_format.h"
#include "engine/crc32c.h"
#include "engine/error.h"

namespace engine {

namespace {

constexpr std::size_t kMostDeltaHeaderBytes = std::size_t{64} << 20;
constexpr std::size_t kCrcBytes = sizeof(std::uint32_t);

}  // namespace

DeltaReader::DeltaReader(const std::string& path) : file_(path), size_(file_.size()) {
  std::uint64_t offset = read_header();
  for (std::uint32_t t = 0; t < header_.tables.size(); ++t) offset = find_pieces(t, offset);
  marks_ = {.table = 0, .rows = 0, .offset = offset, .bytes = header_.marks_bytes};
  if (header_.marks_bytes > 0) offset = end_of(marks_);
  if (offset != size_) {
    fail(offset, "the segment ends here, the file has " + std::to_string(size_ - offset) + " bytes more");
  }
}

void DeltaReader::fail(std::uint64_t offset, const std::string& reason) const {
  throw SnapshotCorrupt("'" + file_.path() + "' at byte " + std::to_string(offset) + ": " + reason);
}

void DeltaReader::read(const Piece& piece, std::vector<std::byte>& out) const {
  out.clear();
  if (piece.bytes == 0) return;
  out.resize(piece.bytes + kCrcBytes);
  if (!file_.read_at(piece.offset, out.data(), out.size())) fail(piece.offset, "the file is cut off");
  if (crc32c(0, out.data(), piece.bytes) != get<std::uint32_t>(out.data() + piece.bytes)) {
    fail(piece.offset, "checksum does not match");
  }
  out.resize(piece.bytes);
}

void DeltaReader::verify(Pool& pool) const {
  std::vector<Piece> all(blocks_);
  all.insert(all.end(), tombstones_.begin(), tombstones_.end());
  all.push_back(marks_);
  pool.run(all.size(), [&](std::size_t i) {
    static thread_local std::vector<std::byte> buffer;
    read(all[i], buffer);
  });
}

std::uint64_t DeltaReader::read_header() {
  constexpr std::size_t kOpening = sizeof kDeltaMagic + sizeof(std::uint32_t);
  std::vector<std::byte> opening(kOpening);
  if (!file_.read_at(0, opening.data(), kOpening)) fail(0, "the file is cut off in its first bytes");
  if (std::memcmp(opening.data(), kDeltaMagic, sizeof kDeltaMagic) != 0) fail(0, "the file is not a delta segment");
  const auto bytes = get<std::uint32_t>(opening.data() + sizeof kDeltaMagic);
  if (bytes > kMostDeltaHeaderBytes || kOpening + bytes + kCrcBytes > size_) {
    fail(sizeof kDeltaMagic, "the header is cut off, or its length was altered");
  }
  std::vector<std::byte> body(bytes + kCrcBytes);
  if (!file_.read_at(kOpening, body.data(), body.size())) fail(kOpening, "the header is cut off");
  if (crc32c(0, body.data(), bytes) != get<std::uint32_t>(body.data() + bytes)) {
    fail(kOpening, "checksum of the header does not match");
  }
  header_ = decode_delta_header({body.data(), bytes},
                                [&](std::size_t at, const std::string& reason) { fail(kOpening + at, reason); });
  return kOpening + body.size();
}

std::uint64_t DeltaReader::find_pieces(std::uint32_t number, std::uint64_t offset) {
  const DeltaTable& table = header_.tables[number];
  const std::size_t row_bytes = stored_row_bytes(stored_row(table).columns);
  std::uint64_t upserts = 0;
  for (std::uint32_t block = 0; block < table.blocks; ++block) {
    std::uint32_t rows = 0;
    if (!file_.read_at(offset, reinterpret_cast<std::byte*>(&rows), sizeof rows)) {
      fail(offset, "the file is cut off before block " + std::to_string(block) + " of table '" + table.name + "'");
    }
    if (rows > kDeltaBlockRows) fail(offset, "a block claims " + std::to_string(rows) + " rows");
    blocks_.push_back({.table = number, .rows = rows, .offset = offset, .bytes = sizeof rows + rows * row_bytes});
    upserts += rows;
    offset = end_of(blocks_.back());
  }
  if (upserts != table.upserts) {
    fail(offset, "table '" + table.name + "' has " + std::to_string(upserts) + " rows, expected the " +
                     std::to_string(table.upserts) + " of the header");
  }
  if (table.tombstones == 0) return offset;
  if (table.tombstones > size_ / sizeof(std::int64_t)) fail(offset, "the file is cut off in its tombstones");
  tombstones_.push_back(
      {.table = number, .rows = 0, .offset = offset, .bytes = table.tombstones * sizeof(std::int64_t)});
  return end_of(tombstones_.back());
}

std::uint64_t DeltaReader::end_of(const Piece& piece) const {
  if (piece.offset + kCrcBytes > size_ || piece.bytes > size_ - piece.offset - kCrcBytes) {
    fail(size_, "the file is cut off: the piece at byte " + std::to_string(piece.offset) + " is longer");
  }
  return piece.offset + piece.bytes + kCrcBytes;
}

}  // namespace engine
