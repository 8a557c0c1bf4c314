// cells.h: feature messages of all formats -> cells. Private to the engine.
#pragma once

#include <cstdint>

#include "engine/data/row.h"
#include "wire.h"

namespace engine::data {

// `idl.matrix.proto.Example`'s Feature: one arm of a oneof. The last arm counts; the same arm again is merged.
[[nodiscard]] Cell read_example_feature(Bytes feature, Arena& arena);

// Reads Features at the beginning of `list`, fields `feature` of NamedFeatureList, while they are in the common form
// and short: one packed list of numbers, or one text. Stops before one that needs a closer look. Returns the bytes
// read.
[[nodiscard]] std::size_t read_short_features(Bytes list, Cell* cells, std::uint64_t most,
                                              std::uint64_t& count) noexcept;

// The Feature of Instance without its name: the first of its value fields that holds something.
[[nodiscard]] Cell read_instance_feature(Bytes feature, Arena& arena);

// tensorflow.Feature: bytes_list, float_list or int64_list.
[[nodiscard]] Cell read_tf_feature(Bytes feature, Arena& arena);

// The values of a packable field of fixed width in `message`, as one packed piece: a view when it lies so, else a copy.
[[nodiscard]] Bytes packed_fixed(Bytes message, std::uint32_t field, std::uint32_t width, Arena& arena);

// Throws wire::Malformed unless the bytes are whole varints of at most 64 bits.
void check_varints(Bytes values);

}  // namespace engine::data
