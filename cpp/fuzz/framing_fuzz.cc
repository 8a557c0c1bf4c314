// framing_fuzz.cc: the frame scanner in all framings. How a stream is cut into pieces must not matter, reading must be
// resumable at every record, and records can be written again.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/framing.h"
#include "engine/data/row_op.h"
#include "target.h"

namespace {

using namespace engine::data;

struct Read {
  std::vector<std::vector<Records::Entry>> lots;
  std::vector<std::string> payloads;
  std::vector<std::uint64_t> ends;  // of each lot in the stream
  std::string error;
};

struct Limits {
  std::size_t records = 1;
  std::size_t bytes = 1;
};

void take_lots(FrameReader& reader, const Limits& limits, Read& read) {
  while (std::optional<Records> records = reader.take(limits.records, limits.bytes, false)) {
    fuzz::expect(records->size() > 0 && records->size() <= limits.records, "a lot is empty or too long");
    for (std::size_t i = 0; i < records->size(); ++i) {
      const Bytes payload = (*records)[i];
      read.payloads.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
    }
    read.lots.push_back(records->entries);
    read.ends.push_back(reader.offset());
    fuzz::expect(reader.records() >= read.payloads.size(), "records are miscounted");
  }
}

// Reads a stream in pieces of random sizes up to `most_piece`, 0 meaning in one piece.
Read read_stream(const Framing& framing, Bytes stream, const Limits& limits, std::size_t most_piece,
                 std::uint64_t offset = 0, std::uint64_t record = 0) {
  Read read;
  try {
    FrameReader reader(framing, "stream", offset, record);
    for (std::size_t at = 0; at < stream.size();) {
      std::size_t size = stream.size() - at;
      if (most_piece > 0) size = std::min(size, 1 + mix(most_piece, at) % most_piece);
      reader.feed(stream.subspan(at, size));
      at += size;
      take_lots(reader, limits, read);
    }
    reader.finish();
    take_lots(reader, limits, read);
    fuzz::expect(reader.offset() == offset + stream.size(), "bytes of a good stream are left");
  } catch (const engine::RecordCorrupt& error) {
    read.error = error.what();
    fuzz::expect(!read.error.empty(), "an error has no text");
  }
  return read;
}

bool is_equal(const Records::Entry& a, const Records::Entry& b) {
  return a.size == b.size && a.source_key == b.source_key && a.stream_offset == b.stream_offset;
}

void expect_equal(const Read& a, const Read& b) {
  fuzz::expect(a.error == b.error, "the pieces decide about the error");
  fuzz::expect(a.payloads == b.payloads, "the pieces decide about the payloads");
  fuzz::expect(a.lots.size() == b.lots.size(), "the pieces decide about the number of lots");
  for (std::size_t i = 0; i < a.lots.size(); ++i) {
    fuzz::expect(std::equal(a.lots[i].begin(), a.lots[i].end(), b.lots[i].begin(), b.lots[i].end(), is_equal),
                 "the pieces decide about the lots");
  }
}

// Writes the records again, each with its own sort id, and reads them back.
void expect_round_trip(const Framing& framing, Bytes stream, const Read& read, const Limits& limits) {
  std::vector<std::byte> again;
  std::size_t at = 0;
  std::size_t number = 0;
  for (const auto& lot : read.lots) {
    for (const Records::Entry& entry : lot) {
      const HeaderScan scan = scan_header(framing, stream.subspan(at));
      fuzz::expect(scan.header.has_value() && scan.damage.empty(), "a record was read without a header");
      const std::string& payload = read.payloads[number++];
      append_frame(again, framing, std::as_bytes(std::span(payload)), scan.header->sort_id, entry.source_key);
      at = static_cast<std::size_t>(entry.stream_offset) + entry.size + scan.header->footer_bytes;
    }
  }
  const Read copy = read_stream(framing, again, limits, 0);
  fuzz::expect(copy.error.empty(), "a written stream is refused");
  fuzz::expect(copy.payloads == read.payloads, "other payloads come back");
  std::size_t lots = 0;
  for (const auto& lot : copy.lots) {
    for (std::size_t i = 0; i < lot.size(); ++i, ++lots) {
      fuzz::expect(lot[i].size == copy.payloads[lots].size(), "sizes do not fit the payloads");
    }
  }
}

// Input: framing, longest piece, most records and most bytes of a lot, raw stream or pieces to be framed.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const std::uint8_t choice = input.byte();
  const std::size_t most_piece = input.byte();
  const Limits limits{std::size_t{1} + input.byte() % 16, std::size_t{1} << (input.byte() % 20)};
  const bool is_tfrecord = (choice & Framing::kTfRecord) != 0;
  const bool has_pieces = is_tfrecord && choice >= 128;
  Framing framing;
  if (!fuzz::accepts([&] { framing = Framing::of(choice & 0x3f); })) return;
  std::vector<std::byte> framed;
  if (has_pieces) framed = fuzz::frame_pieces(input.pieces(64));
  const Bytes stream = has_pieces ? Bytes(framed) : input.rest();

  const Read whole = read_stream(framing, stream, limits, 0);
  expect_equal(whole, read_stream(framing, stream, limits, std::max<std::size_t>(most_piece, 1)));
  if (has_pieces) fuzz::expect(whole.error.empty(), "a stream that was written is refused");
  if (framing.kind != Framing::Kind::kBare) {
    expect_round_trip(framing, stream, whole, limits);
    // Going on behind any lot gives the lots that follow.
    if (!whole.lots.empty()) {
      const std::size_t lot = most_piece % whole.lots.size();
      std::size_t before = 0;
      for (std::size_t i = 0; i <= lot; ++i) before += whole.lots[i].size();
      const std::uint64_t end = whole.ends[lot];
      const Read later = read_stream(framing, stream.subspan(static_cast<std::size_t>(end)), limits, 0, end, before);
      fuzz::expect(later.error == whole.error, "the error is another one after resuming");
      fuzz::expect(later.lots.size() == whole.lots.size() - lot - 1, "lots are missing after resuming");
      fuzz::expect(std::equal(later.payloads.begin(), later.payloads.end(),
                              whole.payloads.begin() + static_cast<std::ptrdiff_t>(before), whole.payloads.end()),
                   "other records follow after resuming");
    }
  }
}

const fuzz::Target target("framing", run);

}  // namespace
