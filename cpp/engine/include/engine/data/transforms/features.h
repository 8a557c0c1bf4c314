// features.h: rules that make ids: other slots, crosses, and ids of plain values. All keep the row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/row_op.h"

namespace engine::data {

// A feature as a rule reads it: a cell or, when the row has none and `flat_slot` is a slot, the flat v1 ids of the
// slot.
struct FeatureRef {
  std::string name;
  std::uint32_t column = Columns::kUnwanted;
  std::int32_t flat_slot = -1;
};

struct SlotSwitch {
  FeatureRef from;
  std::uint32_t to_column = Columns::kUnwanted;  // equal to from.column: in place
  std::uint32_t slot = 0;
};

// Ids keep their signature and get another slot. v1 ids stay v1 when the slot exists there (below 1024), and become v2
// when it does not.
[[nodiscard]] RulePtr make_switch_slot(std::vector<SlotSwitch> switches);

// The crosses of every id of `a` (outer) with every id of `b` (inner). Two v1 features give v1 ids when the slot is
// below 1024; of two versions, v1 ids are made v2 first. Throws SchemaMismatch when a row would have more than 2^20 of
// them.
[[nodiscard]] RulePtr make_feature_combine(FeatureRef a, FeatureRef b, std::uint32_t slot, std::uint32_t to_column);

enum class Extraction : std::uint8_t {
  kHash,       // CityHash64 of the text; of an integer's decimal text
  kInt,        // an integer's own low 48 bits
  kInt64Hash,  // CityHash64 of the 8 little-endian bytes
  kLog2,       // trunc(log2(|v| + 1))
  kLn,         // CityHash64 of the text of floor(scale * ln(1 + v)); v below 0 counts as 0
  kRatio,      // CityHash64 of the text of floor(scale * v)
};

// Turns the values of a bytes, integer, float or double cell into v2 ids. Values that are not a number give none.
// Throws SchemaMismatch when the cell holds something that the method cannot take.
[[nodiscard]] RulePtr make_extract_fid(std::string name, std::uint32_t from_column, std::uint32_t to_column,
                                       std::uint32_t slot, Extraction method, double scale);

}  // namespace engine::data
