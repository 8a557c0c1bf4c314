// json_text_fuzz.cc: records in the JSON of requests, whether or not it is JSON.
#include <string>
#include <vector>

#include "engine/base64.h"
#include "engine/json_text.h"
#include "target.h"

namespace {

void run(fuzz::Bytes bytes) {
  const std::string json(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto lifted = engine::lift_records(json);
  if (!lifted) return;
  fuzz::expect(!lifted->records.empty(), "nothing was lifted");
  std::size_t size = lifted->rest.size();
  for (std::size_t i = 0; i < lifted->records.size(); ++i) {
    const std::string_view record = lifted->records[i];
    fuzz::expect(record.data() >= json.data() && record.data() + record.size() <= json.data() + json.size(),
                 "a record lies outside of the text");
    fuzz::expect(record.find_first_of("\"\\") == std::string_view::npos, "a record is not a plain string");
    const std::string mark = "{\"b64\":" + std::to_string(i) + "}";
    fuzz::expect(lifted->rest.find(mark) != std::string::npos, "a record has no place");
    size += record.size();
    if (const auto decoded = engine::base64_size(record)) {
      std::vector<std::byte> out(*decoded);
      (void)engine::decode_base64(record, out.data());
    }
  }
  // A mark without its number has at least two signs less than the text it replaced.
  fuzz::expect(size <= json.size() + 20 * lifted->records.size(), "more came out than went in");
}

const fuzz::Target target("json_text", run);

}  // namespace
