// transform_groups.h: a few transforms of each sort, to send rows through.
#pragma once

#include <cstdint>

#include "engine/data/row.h"

namespace fuzz {

// The features that the record targets ask for, and by which transforms know them.
inline constexpr const char* kColumnNames[] = {"a", "b", "slot_3", "fc_slot_9", "d", "q", "i", "t", "made"};

// Bits of `groups`: filters, labels, features, tests of values, sampling, negatives.
// Returns false when a transform refused the rows.
bool run_transforms(std::uint8_t groups, const engine::data::Columns& columns, engine::data::Rows& rows);

}  // namespace fuzz
