// predict_json_fuzz.cc: JSON bodies of REST, and their paths.
#include "serving/score_request.h"
#include "target.h"

namespace {

void run(fuzz::Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  serving::ScoreRequest target;
  if (serving::read_predict_path(text, target)) fuzz::expect(!target.model.empty(), "a model has no name");
  const auto request = serving::read_predict_json(text, 1000);
  if (!request) return;
  fuzz::expect(request->records != nullptr && request->records->size() > 0, "there are no records");
  std::size_t size = 0;
  for (std::size_t i = 0; i < request->records->size(); ++i) size += (*request->records)[i].size();
  fuzz::expect(size <= bytes.size(), "records are larger than their text");
}

const fuzz::Target target("predict_json", run);

}  // namespace
