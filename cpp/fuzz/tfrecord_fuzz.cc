// tfrecord_fuzz.cc: the TFRecord scanner, on raw bytes and on streams with good checksums.
#include <algorithm>
#include <vector>

#include "engine/tfrecord.h"
#include "target.h"

namespace {

using fuzz::Bytes;

std::vector<Bytes> scan(Bytes stream, std::uint64_t base) {
  engine::RecordScanner scanner(stream, base, "stream");
  std::vector<Bytes> records;
  Bytes record;
  while (scanner.next(record)) records.push_back(record);
  scanner.finish();
  fuzz::expect(scanner.consumed() == stream.size(), "bytes of a good stream are left");
  return records;
}

bool is_equal(Bytes a, Bytes b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

// Input: 0 and a raw stream, or the place to damage (two bytes, odd) and pieces that become records.
void run(Bytes bytes) {
  fuzz::Input input(bytes);
  const std::uint8_t mode = input.byte();
  if (mode % 2 == 0) {
    const Bytes raw = input.rest();
    fuzz::accepts([&] {
      std::vector<std::byte> again;
      for (const Bytes record : scan(raw, mode)) engine::append_record(again, record);
      fuzz::expect(is_equal(again, raw), "a stream that was read is written otherwise");
    });
    return;
  }
  const std::size_t place = static_cast<std::size_t>(mode) << 8 | input.byte();
  const std::uint8_t damage = input.byte();
  const std::vector<Bytes> pieces = input.pieces(64);
  std::vector<std::byte> stream = fuzz::frame_pieces(pieces);
  fuzz::expect(fuzz::accepts([&] {
                 const std::vector<Bytes> records = scan(stream, 0);
                 fuzz::expect(std::equal(records.begin(), records.end(), pieces.begin(), pieces.end(), is_equal),
                              "records are not those that were written");
               }),
               "a stream that was written is refused");
  if (stream.empty() || damage == 0) return;
  stream[place % stream.size()] ^= static_cast<std::byte>(damage);
  fuzz::expect(!fuzz::accepts([&] { (void)scan(stream, 0); }), "a damaged byte went unnoticed");
}

const fuzz::Target target("tfrecord", run);

}  // namespace
