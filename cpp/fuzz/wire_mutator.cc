// wire_mutator.cc: changes messages from the inside. A byte changed at random breaks the lengths around it, and a
// parser refuses the rest unread; here a field is chosen at any depth, changed, doubled or dropped, and all lengths
// are made to fit again.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "target.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

using engine::wire::kBlock;
using fuzz::Bytes;

constexpr int kMostDepth = 6;
constexpr std::size_t kGrowth = 64;

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  [[nodiscard]] std::size_t pick(std::size_t count) { return random_() % count; }

  [[nodiscard]] std::string bytes(Bytes value) {
    std::string changed = text(value);
    changed.resize(value.size() + kGrowth);
    changed.resize(
        LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(changed.data()), value.size(), value.size() + kGrowth));
    return changed;
  }

  [[nodiscard]] std::string message(Bytes value, int depth = 0) {
    std::vector<Field> fields;
    if (value.empty() || !split(value, fields)) return bytes(value);
    const Field& field = fields[pick(fields.size())];
    std::string changed;
    switch (pick(8)) {
      case 0:  // dropped
        break;
      case 1:  // doubled
        changed = text(field.all) + text(field.all);
        break;
      case 2:  // put at the end of the message as well
        return text(value) + text(field.all);
      default:
        if (field.wire == kBlock) {
          const std::string inner = depth < kMostDepth ? message(field.value, depth + 1) : bytes(field.value);
          changed = text(field.tag) + varint(inner.size()) + inner;
        } else {
          changed = text(field.tag) + bytes(field.value);
        }
    }
    const auto before = static_cast<std::size_t>(field.all.data() - value.data());
    return text(value.first(before)) + changed + text(value.subspan(before + field.all.size()));
  }

 private:
  struct Field {
    std::uint32_t wire;
    Bytes all;
    Bytes tag;
    Bytes value;
  };

  static std::string text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

  static std::string varint(std::size_t value) {
    std::string out;
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
    out.push_back(static_cast<char>(value));
    return out;
  }

  static bool split(Bytes value, std::vector<Field>& fields) {
    try {
      engine::wire::Reader reader(value);
      while (!reader.done()) {
        const std::byte* begin = reader.at();
        const engine::wire::Tag tag = reader.tag();
        const std::byte* tag_end = reader.at();
        Bytes inner;
        if (tag.wire == kBlock) {
          inner = reader.block();
        } else {
          reader.skip(tag);
          inner = {tag_end, reader.at()};
        }
        fields.push_back({tag.wire, {begin, reader.at()}, {begin, tag_end}, inner});
      }
      return true;
    } catch (const engine::wire::Malformed&) {
      return false;
    }
  }

  std::minstd_rand random_;
};

std::string mutate_pieces(Mutator& mutator, Bytes bytes) {
  fuzz::Input input(bytes);
  const std::vector<Bytes> pieces = input.pieces(bytes.size());
  const std::size_t chosen = mutator.pick(pieces.size());
  std::string out;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::string piece{reinterpret_cast<const char*>(pieces[i].data()), pieces[i].size()};
    if (i == chosen) piece = mutator.message(pieces[i]);
    if (piece.size() > 0xffff) piece.resize(0xffff);
    out.push_back(static_cast<char>(piece.size()));
    out.push_back(static_cast<char>(piece.size() >> 8));
    out += piece;
  }
  return out;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  const fuzz::Target& target = *fuzz::Target::all().front();
  Mutator mutator(seed);
  if (target.layout == fuzz::Layout::kBytes || size <= target.options || mutator.pick(4) == 0) {
    return LLVMFuzzerMutate(data, size, most);
  }
  const Bytes rest{reinterpret_cast<const std::byte*>(data) + target.options, size - target.options};
  const std::string changed =
      target.layout == fuzz::Layout::kPieces ? mutate_pieces(mutator, rest) : mutator.message(rest);
  if (changed.size() > most - target.options) return LLVMFuzzerMutate(data, size, most);
  if (!changed.empty()) std::memcpy(data + target.options, changed.data(), changed.size());
  return target.options + changed.size();
}
