// record_target.h: the way of a record through the engine: bytes -> rows -> batch, rows -> Examples -> the same rows,
// and through transforms. Each kind of record is a separate target.
#pragma once

#include "engine/data/row_parser.h"
#include "target.h"

namespace fuzz {

// Input: options of the parser, groups of transforms, then records: each its length in two bytes, and its bytes.
void run_records(engine::data::RecordKind kind, Bytes bytes);

}  // namespace fuzz
