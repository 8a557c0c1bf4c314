// predict_message_fuzz.cc: serialized PredictRequest messages.
#include "serving/score_request.h"
#include "target.h"

namespace {

void run(fuzz::Bytes bytes) {
  const auto request = serving::read_predict_message({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!request) return;
  fuzz::expect(!request->model.empty() && !request->input.empty(), "a name is missing");
  fuzz::expect(request->records != nullptr && request->records->size() > 0, "there are no records");
  std::size_t size = 0;
  for (std::size_t i = 0; i < request->records->size(); ++i) size += (*request->records)[i].size();
  fuzz::expect(size <= bytes.size(), "records are larger than their message");
}

const fuzz::Target target("predict_message", run, fuzz::Layout::kMessage);

}  // namespace
