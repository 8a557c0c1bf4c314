// image_format.cc: the footer of a table image, and the check of its index.
#include "image_format.h"

#include <algorithm>
#include <numeric>

#include "engine/error.h"
#include "engine/part.h"
#include "row_columns.h"

namespace engine {

namespace {

constexpr std::uint32_t kImageVersion = 1;
constexpr std::uint64_t kMostRows = 0xFFFFFFFEU;
constexpr std::size_t kPartBytes = 2 * sizeof(std::uint64_t) + 2 * sizeof(std::uint32_t);

// Takes numbers off the front.
class FooterReader {
 public:
  explicit FooterReader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class T>
  T number() {
    return get<T>(take(sizeof(T)).data());
  }
  std::span<const std::byte> take(std::size_t bytes) {
    if (bytes > left_.size()) throw SnapshotCorrupt("the footer is cut off");
    const auto taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }
  [[nodiscard]] std::size_t left() const noexcept { return left_.size(); }

 private:
  std::span<const std::byte> left_;
};

[[noreturn]] void fail_index(std::size_t part, std::size_t bucket, const char* reason) {
  throw SnapshotCorrupt("the index of part " + std::to_string(part) + ", bucket " + std::to_string(bucket) + ": " +
                        reason);
}

}  // namespace

std::uint64_t ImageFooter::rows() const noexcept {
  return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const ImagePart& part) { return sum + part.rows; });
}

std::vector<std::byte> encode_footer(const ImageFooter& footer) {
  std::vector<std::byte> out;
  put(out, kImageVersion);
  put(out, footer.row_bytes);
  put(out, footer.max_time_s);
  put(out, static_cast<std::uint32_t>(footer.layout.size()));
  out.insert(out.end(), footer.layout.begin(), footer.layout.end());
  put(out, static_cast<std::uint32_t>(footer.parts.size()));
  for (const ImagePart& part : footer.parts) {
    put(out, part.rows);
    put(out, part.buckets);
    put(out, part.index_crc);
    put(out, part.rows_crc);
  }
  return out;
}

ImageFooter decode_footer(std::span<const std::byte> bytes, std::uint32_t row_bytes,
                          std::span<const std::byte> layout) {
  FooterReader reader(bytes);
  if (const auto version = reader.number<std::uint32_t>(); version != kImageVersion) {
    throw SnapshotCorrupt("the format version is " + std::to_string(version) + ", expected " +
                          std::to_string(kImageVersion) + "; use the release that wrote it");
  }
  ImageFooter footer;
  footer.row_bytes = reader.number<std::uint32_t>();
  footer.max_time_s = reader.number<std::int64_t>();
  const auto its_layout = reader.take(reader.number<std::uint32_t>());
  if (footer.row_bytes != row_bytes || !std::ranges::equal(its_layout, layout)) {
    throw SnapshotCorrupt("the rows are those of another table");
  }
  footer.layout.assign(its_layout.begin(), its_layout.end());
  if (const auto parts = reader.number<std::uint32_t>(); parts != kParts || reader.left() != parts * kPartBytes) {
    throw SnapshotCorrupt("the footer has " + std::to_string(parts) + " parts, expected " + std::to_string(kParts));
  }
  for (std::size_t i = 0; i < kParts; ++i) {
    ImagePart part;
    part.rows = reader.number<std::uint64_t>();
    part.buckets = reader.number<std::uint64_t>();
    part.index_crc = reader.number<std::uint32_t>();
    part.rows_crc = reader.number<std::uint32_t>();
    if (part.rows > kMostRows || part.buckets > RingIndex::kMostBuckets ||
        !RingIndex::has_room(part.rows, part.buckets)) {
      throw SnapshotCorrupt("part " + std::to_string(i) + " claims " + std::to_string(part.rows) + " rows in " +
                            std::to_string(part.buckets) + " buckets");
    }
    footer.parts.push_back(part);
  }
  return footer;
}

std::vector<ImagePlace> image_places(const ImageFooter& footer, std::uint64_t* end) {
  std::vector<ImagePlace> places;
  std::uint64_t at = kImageAlignment;
  for (const ImagePart& part : footer.parts) {
    const std::uint64_t rows = at + part.buckets * sizeof(RingIndex::Bucket);
    places.push_back({.index = at, .rows = rows});
    at = image_aligned(rows + part.rows * footer.row_bytes);
  }
  *end = at;
  return places;
}

void check_image_index(std::span<const RingIndex::Bucket> buckets, std::uint64_t rows, std::size_t part) {
  const auto count = static_cast<std::uint32_t>(buckets.size());
  if (!RingIndex::has_room(rows, count)) fail_index(part, 0, "it is too full");
  // Buckets that are full without a gap up to the one looked at, around the ring: as far as an entry may be from home.
  std::size_t run = 0;
  while (run < count && RingIndex::is_full(buckets[count - 1 - run])) ++run;
  std::uint64_t seen = 0;
  for (std::uint32_t b = 0; b < count; ++b) {
    const RingIndex::Bucket& bucket = buckets[b];
    std::size_t filled = 0;
    for (; filled < RingIndex::kWidth && bucket.rows[filled] != 0; ++filled) {
      const std::uint64_t hash = mix(static_cast<std::uint64_t>(bucket.ids[filled]));
      const std::uint32_t home = RingIndex::home_in(hash, count);
      const std::uint32_t distance = b >= home ? b - home : b + (count - home);
      if (part_of(hash) != part) fail_index(part, b, "an id belongs to another part");
      if (distance > run) fail_index(part, b, "an id stands where no search finds it");
      if (bucket.rows[filled] != ++seen) fail_index(part, b, "a row number is out of turn");
    }
    for (std::size_t i = filled; i < RingIndex::kWidth; ++i) {
      if (bucket.rows[i] != 0) fail_index(part, b, "an entry stands behind a gap");
    }
    run = filled == RingIndex::kWidth ? run + 1 : 0;
  }
  if (seen != rows) fail_index(part, 0, "it does not name as many rows as there are");
}

void read_image_index(std::span<const RingIndex::Bucket> buckets, Index& index, std::vector<std::uint32_t>& times) {
  constexpr std::size_t kBucketsAhead = 8;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    if (b + kBucketsAhead < buckets.size()) {
      for (const std::int64_t id : buckets[b + kBucketsAhead].ids) index.fetch(id);
    }
    for (std::size_t i = 0; i < RingIndex::kWidth && buckets[b].rows[i] != 0; ++i) {
      index.reserve(1);
      index.insert(buckets[b].ids[i], buckets[b].rows[i] - 1);
      times.push_back(buckets[b].times[i]);
    }
  }
}

}  // namespace engine
