#include "target.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "engine/tfrecord.h"

namespace fuzz {

Target::Target(std::string target_name, Run target_run, Layout target_layout, std::size_t target_options)
    : name(std::move(target_name)), run(target_run), layout(target_layout), options(target_options) {
  all().push_back(this);
}

std::vector<const Target*>& Target::all() {
  static std::vector<const Target*> targets;
  return targets;
}

std::uint8_t Input::byte() {
  if (left_.empty()) return 0;
  const auto value = std::to_integer<std::uint8_t>(left_.front());
  left_ = left_.subspan(1);
  return value;
}

std::uint64_t Input::word() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 8) value |= std::uint64_t{byte()} << shift;
  return value;
}

Bytes Input::piece() {
  const std::size_t low = byte();
  const std::size_t high = byte();  // before the size is asked for: arguments have no order
  const std::size_t size = std::min(low | high << 8, left_.size());
  const Bytes taken = left_.first(size);
  left_ = left_.subspan(size);
  return taken;
}

std::vector<Bytes> Input::pieces(std::size_t most) {
  std::vector<Bytes> all;
  while (!done() && all.size() < most) all.push_back(piece());
  return all;
}

Bytes Input::rest() { return std::exchange(left_, {}); }

void fail(const std::string& reason) {
  std::fprintf(stderr, "fuzz: %s\n", reason.c_str());
  std::abort();
}

std::vector<std::byte> frame_pieces(const std::vector<Bytes>& pieces) {
  std::vector<std::byte> stream;
  for (const Bytes piece : pieces) engine::append_record(stream, piece);
  return stream;
}

}  // namespace fuzz
