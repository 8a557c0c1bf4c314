// http1_fuzz.cc: heads and chunked bodies of HTTP/1.1. The first byte decides the size of the pieces.
#include "serving/http1.h"
#include "target.h"

namespace {

constexpr std::size_t kMaxBody = 1 << 16;

void read_chunks(const std::string& text, std::size_t step) {
  serving::ChunkReader reader(kMaxBody);
  std::string buffer;
  for (std::size_t at = 0; at < text.size(); at += step) {
    buffer += text.substr(at, step);
    if (reader.take(buffer)) return;
    fuzz::expect(reader.body.size() <= kMaxBody, "a body is too large");
  }
}

void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const std::size_t step = std::size_t{input.byte()} + 1;
  const fuzz::Bytes rest = input.rest();
  const std::string text(reinterpret_cast<const char*>(rest.data()), rest.size());
  try {
    const serving::Http1Head head = serving::read_head(text, kMaxBody);
    fuzz::expect(head.length <= kMaxBody && !(head.is_chunked && head.length > 0), "a body has two lengths");
    fuzz::expect(head.path.starts_with('/') && head.path.find_first_of(" \r\n") == std::string::npos,
                 "a path is wrong");
  } catch (const serving::HttpError& error) {
    fuzz::expect(error.status() >= 400 && error.status() < 600, "a status is no error");
  }
  try {
    read_chunks(text, step);
  } catch (const serving::HttpError&) {  // a wrong chunk
  }
}

const fuzz::Target target("http1", run, fuzz::Layout::kBytes, 1);

}  // namespace
