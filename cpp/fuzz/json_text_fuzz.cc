// json_text_fuzz.cc: records in the JSON of requests. What is lifted out can be put back, and is then lifted out again.
#include <string>
#include <vector>

#include "engine/base64.h"
#include "engine/json_text.h"
#include "target.h"

namespace {

std::string put_back(const engine::LiftedRecords& lifted) {
  std::string text;
  std::size_t copied = 0;
  for (std::size_t i = 0; i < lifted.records.size(); ++i) {
    const std::string mark = "{\"b64\":" + std::to_string(i) + "}";
    const std::size_t at = lifted.rest.find(mark, copied);
    fuzz::expect(at != std::string::npos, "a record has no place");
    text += lifted.rest.substr(copied, at - copied);
    text += "{\"b64\":\"" + std::string(lifted.records[i]) + "\"}";
    copied = at + mark.size();
  }
  return text + lifted.rest.substr(copied);
}

void run(fuzz::Bytes bytes) {
  const std::string json(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto lifted = engine::lift_records(json);
  if (!lifted) return;
  fuzz::expect(!lifted->records.empty(), "nothing was lifted");
  for (const std::string_view record : lifted->records) {
    if (const auto size = engine::base64_size(record)) {
      std::vector<std::byte> out(*size);
      (void)engine::decode_base64(record, out.data());
    }
  }
  const std::string text = put_back(*lifted);
  const auto again = engine::lift_records(text);
  fuzz::expect(again && again->rest == lifted->rest && again->records == lifted->records, "it is not the same again");
}

const fuzz::Target target("json_text", run);

}  // namespace
