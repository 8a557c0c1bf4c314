// sample_rate.h: LineId.sample_rate of a row. Private to the engine.
#pragma once

#include "engine/data/line_id.h"
#include "engine/data/row_op.h"

namespace engine::data {

inline float sample_rate_of(RowView row) {
  static const LineField& field = find_field(standard_line_fields(), "sample_rate");
  double rate = field.default_value;
  line_real(row.info().line, field, rate);
  return static_cast<float>(rate);
}

// Ask first whether the row has that rate already: most rows have 1, which is not on the wire.
inline void set_sample_rate(RowView row, float rate) {
  static const LineField& field = find_field(standard_line_fields(), "sample_rate");
  RowInfo& info = row.info();
  info.line = line_set_real(info.line, field, static_cast<double>(rate), row.block.arena());
}

}  // namespace engine::data
