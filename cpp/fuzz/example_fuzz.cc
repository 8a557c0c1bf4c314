// example_fuzz.cc: records that are Examples.
#include "record_target.h"

namespace {

void run(fuzz::Bytes bytes) { fuzz::run_records(engine::data::RecordKind::kExample, bytes); }

const fuzz::Target target("example", run, fuzz::Layout::kPieces, 2);

}  // namespace
