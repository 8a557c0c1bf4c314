// delta_format.h: what the writer and the reader of delta segments agree on. See delta_segment.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/delta_segment.h"

namespace engine {

inline constexpr char kDeltaMagic[8] = {'M', 'N', 'L', 'T', 'D', 'L', 'T', 'A'};
inline constexpr std::uint32_t kDeltaVersion = 1;
inline constexpr std::uint32_t kDeltaIsComplete = 1;
inline constexpr std::size_t kDeltaBlockRows = 16384;

// The slices of a table as a segment of this flavour stores them, scales included.
std::vector<DeltaSlice> delta_slices(const Table& table, DeltaFlavour flavour);

// Magic, header and its checksum; sets tables_hash.
std::vector<std::byte> encode_delta_header(DeltaHeader& header);

}  // namespace engine
