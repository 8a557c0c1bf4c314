// image_format.h: the layout of a table image, and the checks of its footer and index; see engine/table_image.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/index.h"
#include "engine/ring_index.h"

namespace engine {

// One part of the table: `buckets` lines of index, then `rows` rows.
struct ImagePart {
  std::uint64_t rows = 0;
  std::uint64_t buckets = 0;
  std::uint32_t index_crc = 0;
  std::uint32_t rows_crc = 0;
};

struct ImageFooter {
  std::uint32_t row_bytes = 0;
  std::int64_t max_time_s = 0;
  std::vector<std::byte> layout;  // of the rows: two tables that can share an image have the same
  std::vector<ImagePart> parts;

  [[nodiscard]] std::uint64_t rows() const noexcept;
};

// Where the sections of a part begin.
struct ImagePlace {
  std::uint64_t index = 0;
  std::uint64_t rows = 0;
};

inline constexpr char kImageMagic[8] = {'M', 'N', 'L', 'T', 'I', 'M', 'G', '1'};
// Sections begin at a multiple of this, the first of them right there: the magic has a separate line.
inline constexpr std::size_t kImageAlignment = kLineBytes;
// The file ends with the footer's length, its checksum and the magic.
inline constexpr std::size_t kImageTailBytes = 2 * sizeof(std::uint32_t) + sizeof kImageMagic;

constexpr std::uint64_t image_aligned(std::uint64_t offset) noexcept {
  return (offset + kImageAlignment - 1) / kImageAlignment * kImageAlignment;
}

[[nodiscard]] std::vector<std::byte> encode_footer(const ImageFooter& footer);

// Throws SnapshotCorrupt with a reason that does not name the file. Rows of another width or layout are refused too.
[[nodiscard]] ImageFooter decode_footer(std::span<const std::byte> bytes, std::uint32_t row_bytes,
                                        std::span<const std::byte> layout);

// Where the parts lie, and behind them the footer. The footer was decoded: nothing overflows.
[[nodiscard]] std::vector<ImagePlace> image_places(const ImageFooter& footer, std::uint64_t* end);

// Refuses an index by which anyone could go astray: every entry is of this part, can be found where it stands, and
// names the row of its turn; and a search comes to an end. Throws SnapshotCorrupt with a reason.
void check_image_index(std::span<const RingIndex::Bucket> buckets, std::uint64_t rows, std::size_t part);

// Fills an index, and the times by row, from the entries of an image that was checked.
void read_image_index(std::span<const RingIndex::Bucket> buckets, Index& index, std::vector<std::uint32_t>& times);

}  // namespace engine
