// row_encoder.h: rows -> serialized Examples, for everything that wants a row as a message again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/row.h"

namespace engine::data {

// One Example per row: the columns' cells by name, flat v1 ids grouped by slot as `fc_slot_N` in order of first
// appearance, labels, LineId with its unknown fields, weight, data source. Throws wire::Malformed never: cells were
// checked when they were made.
[[nodiscard]] std::vector<std::string> encode_examples(const Rows& rows, const Columns& columns);

// The cell as a Feature; empty for a cell without values.
[[nodiscard]] std::string encode_feature(const Cell& cell);

// Appends field `field` of a message: the cell as a NamedFeature. Nothing is written for a cell without values.
void append_named_feature(std::string& out, std::uint32_t field, std::string_view name, const Cell& cell);

}  // namespace engine::data
