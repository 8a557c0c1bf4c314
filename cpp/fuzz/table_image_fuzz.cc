// table_image_fuzz.cc: footers and indexes of table images. One that is believed must be safe to use, and to change.
#include <cstring>
#include <vector>

#include "engine/index.h"
#include "engine/part.h"
#include "image_format.h"
#include "target.h"

namespace {

using engine::Index;
using engine::RingIndex;

constexpr std::uint32_t kRowBytes = 12;
constexpr std::size_t kMostBuckets = 64;

void read_footer(fuzz::Bytes bytes) {
  const std::vector<std::byte> layout(12);
  engine::ImageFooter footer;
  if (!fuzz::accepts([&] { footer = engine::decode_footer(bytes, kRowBytes, layout); })) return;
  const std::vector<std::byte> again = engine::encode_footer(footer);
  fuzz::expect(again.size() == bytes.size() && std::memcmp(again.data(), bytes.data(), again.size()) == 0,
               "a footer has two spellings");
  std::uint64_t end = 0;
  const auto places = engine::image_places(footer, &end);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::uint64_t next = i + 1 < places.size() ? places[i + 1].index : end;
    fuzz::expect(places[i].index <= places[i].rows && places[i].rows <= next, "parts overlap");
  }
}

void use_index(const std::vector<RingIndex::Bucket>& buckets, std::uint64_t rows, std::size_t part) {
  if (!fuzz::accepts([&] { engine::check_image_index(buckets, rows, part); })) return;
  Index index;
  std::vector<std::uint32_t> times;
  engine::read_image_index(buckets, index, times);
  fuzz::expect(times.size() == rows, "there is no time for each row");
  std::vector<std::int64_t> ids;
  index.for_each([&](std::int64_t id, std::uint32_t row) {
    fuzz::expect(row < rows, "a row lies behind the last one");
    ids.push_back(id);
  });
  fuzz::expect(ids.size() == rows, "there are more entries than rows");
  for (const std::int64_t id : ids) {
    fuzz::expect(index.find(id) != Index::kNoRow, "an id is not found where it stands");
    (void)index.find(~id);
  }
  index.reserve(1);
  if (index.find(7) == Index::kNoRow) {
    index.insert(7, 0);
    ids.push_back(7);
  }
  for (const std::int64_t id : ids) {
    fuzz::expect(index.find(id) != Index::kNoRow, "an id was lost with another");
    index.erase(id);
  }
  fuzz::expect(index.size() == 0, "something is left");
}

// Input: footer as a piece, part, rows, buckets.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  read_footer(input.piece());
  const std::size_t part = input.byte() % engine::kParts;
  const std::uint64_t rows = input.byte();
  const fuzz::Bytes lines = input.rest();
  std::vector<RingIndex::Bucket> buckets(std::min(kMostBuckets, lines.size() / sizeof(RingIndex::Bucket)));
  if (!buckets.empty()) std::memcpy(buckets.data(), lines.data(), buckets.size() * sizeof(RingIndex::Bucket));
  use_index(buckets, rows, part);
}

const fuzz::Target target("table_image", run);

}  // namespace
