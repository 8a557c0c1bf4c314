// tf_example_fuzz.cc: records that are tf.Examples.
#include "record_target.h"

namespace {

void run(fuzz::Bytes bytes) { fuzz::run_records(engine::data::RecordKind::kTfExample, bytes); }

const fuzz::Target target("tf_example", run, fuzz::Layout::kPieces, 2);

}  // namespace
