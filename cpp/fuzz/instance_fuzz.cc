// instance_fuzz.cc: records that are Instances.
#include "record_target.h"

namespace {

void run(fuzz::Bytes bytes) { fuzz::run_records(engine::data::RecordKind::kInstance, bytes); }

const fuzz::Target target("instance", run, fuzz::Layout::kPieces, 2);

}  // namespace
