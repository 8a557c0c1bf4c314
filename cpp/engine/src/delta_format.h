// delta_format.h: constants and codecs shared by the writer and the reader of delta segments. See delta_segment.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/delta_segment.h"
#include "row_columns.h"

namespace engine {

inline constexpr char kDeltaMagic[8] = {'M', 'N', 'L', 'T', 'D', 'L', 'T', 'A'};
inline constexpr std::size_t kDeltaBlockRows = 16384;

// The slices of a table as a segment of this flavour stores them, scales included.
std::vector<DeltaSlice> delta_slices(const Table& table, DeltaFlavour flavour);

// The columns of stored rows, and the row they make: values of all slices, then their states. This is a training row.
struct StoredRow {
  std::vector<Column> columns;
  std::size_t bytes = 0;
};

StoredRow stored_row(const DeltaTable& table);

// The body of a header; sets tables_hash.
std::vector<std::byte> encode_delta_header(DeltaHeader& header);
// And back. refuse(offset, reason) must throw.
DeltaHeader decode_delta_header(std::span<const std::byte> body,
                                const std::function<void(std::size_t, const std::string&)>& refuse);

}  // namespace engine
