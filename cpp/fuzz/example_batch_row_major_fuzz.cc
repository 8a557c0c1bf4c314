// example_batch_row_major_fuzz.cc: records that are ExampleBatchRowMajors.
#include "record_target.h"

namespace {

void run(fuzz::Bytes bytes) { fuzz::run_records(engine::data::RecordKind::kExampleBatchRowMajor, bytes); }

const fuzz::Target target("example_batch_row_major", run, fuzz::Layout::kPieces, 2);

}  // namespace
