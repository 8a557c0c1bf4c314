// packer.cc: see packer.h.
#include "joiner/packer.h"

#include <algorithm>
#include <cstring>

#include "engine/error.h"
#include "wire.h"

namespace joiner {

namespace {

constexpr std::size_t kMaxHeads = 65535;
constexpr std::size_t kMaxHeadBytes = 512;
constexpr std::size_t kMaxPlaces = 4096;
constexpr std::uint32_t kFeatureFields = 2;  // named_feature 1, named_raw_feature 2

// Levels from a feature to its values: feature, list, values.
constexpr int kLevels = 3;

// Returns the bytes before the values of a feature: down to the last field of the last field. Sets `levels` to the
// number of fields on the way.
std::size_t head_size(const Field& feature, int& levels) {
  const char* begin = feature.whole.data();
  std::string_view body = feature.body;
  for (levels = 0; levels < kLevels; ++levels) {
    FieldReader reader(body);
    Field field{};
    Field last{};
    bool has_last = false;
    while (reader.next(field)) {
      last = field;
      has_last = true;
    }
    if (reader.is_broken() || !has_last || last.type != kBytes) break;
    body = last.body;
  }
  return static_cast<std::size_t>(body.data() - begin);
}

}  // namespace

bool Packer::pack_known(std::string_view field, std::size_t place, std::string& out) {
  if (place >= expected_.size() || expected_[place] == 0) return false;
  const Head& head = heads_[expected_[place] - 1];
  const std::size_t size = head.bytes.size();
  if (!head.is_fixed || field.size() != size + head.values_size) return false;
  if (std::memcmp(field.data(), head.bytes.data(), size) != 0) return false;
  put_varint(out, expected_[place]);
  out.append(field.substr(size));
  return true;
}

void Packer::pack_feature(std::string_view field, std::size_t place, bool is_fixed, std::string& out) {
  FieldReader reader(field);
  Field parsed{};
  int levels = 0;
  const std::size_t size = reader.next(parsed) ? head_size(parsed, levels) : kMaxHeadBytes + 1;
  const std::string_view head = field.substr(0, std::min(size, field.size()));
  auto found = size > kMaxHeadBytes ? numbers_.end() : numbers_.find(head);
  if (found == numbers_.end() && size <= kMaxHeadBytes && heads_.size() < kMaxHeads) {
    add_head(head, static_cast<std::uint32_t>(field.size() - size));
    found = numbers_.find(head);
  }
  if (found == numbers_.end()) {
    pack_raw(field, out);
    return;
  }
  Head& known = heads_[found->second - 1];
  known.is_fixed = known.is_fixed || (is_fixed && levels == kLevels);
  if (place >= expected_.size() && place < kMaxPlaces) expected_.resize(place + 1, 0);
  if (place < expected_.size()) expected_[place] = found->second;
  put_varint(out, found->second);
  out.append(field.substr(size));
}

void Packer::pack_raw(std::string_view bytes, std::string& out) {
  if (bytes.empty()) return;
  out.push_back('\0');
  put_varint(out, bytes.size());
  out.append(bytes);
}

void Packer::pack(std::string_view payload, std::string& out) {
  FieldReader reader(payload);
  Field field{};
  const char* raw = payload.data();
  std::size_t place = 0;
  while (reader.next(field)) {
    if (field.type != kBytes || field.number > kFeatureFields) continue;
    pack_raw({raw, static_cast<std::size_t>(field.whole.data() - raw)}, out);
    pack_feature(field.whole, place++, /*is_fixed=*/false, out);
    raw = field.whole.data() + field.whole.size();
  }
  pack_raw({raw, static_cast<std::size_t>(payload.data() + payload.size() - raw)}, out);
}

void Packer::unpack(std::string_view packed, std::string& out) const {
  visit(
      packed, [&](std::string_view head, std::string_view values) { out.append(head).append(values); },
      [&](std::string_view bytes) { out.append(bytes); });
}

void Packer::add_head(std::string_view head, std::uint32_t values_size) {
  heads_.push_back({std::string(head), values_size});
  numbers_.emplace(heads_.back().bytes, static_cast<std::uint32_t>(heads_.size()));
  memory_ += head.size() + 96;
}

void Packer::fail(const char* reason) {
  throw engine::SnapshotCorrupt(std::string("packed impression is corrupt: ") + reason);
}

}  // namespace joiner
