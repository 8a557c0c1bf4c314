// batch_rows.cc: the size stands behind the columns, which are skipped.
#include "engine/data/batch_rows.h"

#include <algorithm>

#include "../wire.h"

namespace engine::data {

std::optional<std::uint32_t> batch_rows(std::span<const std::byte> record) {
  constexpr std::uint32_t kBatchSize = 3;
  std::int32_t rows = 0;
  try {
    wire::Reader reader(record);
    while (!reader.done()) {
      const wire::Tag tag = reader.tag();
      if (tag.field == kBatchSize && tag.wire == wire::kVarint) {
        rows = static_cast<std::int32_t>(reader.varint());
      } else {
        reader.skip(tag);
      }
    }
  } catch (const wire::Malformed&) {
    return std::nullopt;
  }
  return static_cast<std::uint32_t>(std::max(rows, 0));
}

}  // namespace engine::data
