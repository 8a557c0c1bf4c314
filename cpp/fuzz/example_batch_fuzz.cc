// example_batch_fuzz.cc: records that are ExampleBatches, read column by column.
#include "record_target.h"

namespace {

void run(fuzz::Bytes bytes) { fuzz::run_records(engine::data::RecordKind::kExampleBatch, bytes); }

const fuzz::Target target("example_batch", run, fuzz::Layout::kPieces, 2);

}  // namespace
