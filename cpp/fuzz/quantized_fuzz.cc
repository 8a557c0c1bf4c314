// quantized_fuzz.cc: quantised vectors of any width.
#include <cmath>
#include <vector>

#include "engine/data/quantized.h"
#include "target.h"

namespace {

using namespace engine::data;

// Input: width, text.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const std::size_t width = input.byte();
  const Bytes text = input.rest();
  if (!has_quantized_prefix(text)) return;
  std::vector<float> values(width);
  const std::size_t body = text.size() - 6;
  const bool fits = width <= 4 ? body == 2 * width : body == 4 + width;
  fuzz::expect(decode_quantized(text, values) == fits, "a vector is read if and only if its length fits");
}

const fuzz::Target target("quantized", run);

}  // namespace
