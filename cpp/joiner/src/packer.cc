// packer.cc: see packer.h.
#include "joiner/packer.h"

#include "engine/error.h"
#include "wire.h"

namespace joiner {

namespace {

constexpr std::size_t kMaxHeads = 65535;
constexpr std::size_t kMaxHeadBytes = 512;
constexpr std::uint32_t kFeatureFields = 2;  // named_feature 1, named_raw_feature 2

// Returns the bytes before the values of a feature: down to the last field of the last field, at most three levels.
std::size_t head_size(const Field& feature) {
  const char* begin = feature.whole.data();
  std::string_view body = feature.body;
  for (int level = 0; level < 3; ++level) {
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

void Packer::pack(std::string_view payload, std::string& out) {
  FieldReader reader(payload);
  Field field{};
  const char* raw = payload.data();
  const char* end = payload.data() + payload.size();
  const auto put_raw = [&](const char* until) {
    if (until == raw) return;
    out.push_back('\0');
    put_varint(out, static_cast<std::uint64_t>(until - raw));
    out.append(raw, static_cast<std::size_t>(until - raw));
    raw = until;
  };
  while (reader.next(field)) {
    if (field.type != kBytes || field.number > kFeatureFields) continue;
    const std::size_t size = head_size(field);
    if (size > kMaxHeadBytes) continue;
    const std::string_view head = field.whole.substr(0, size);
    auto found = numbers_.find(head);
    if (found == numbers_.end()) {
      if (heads_.size() >= kMaxHeads) continue;
      add_head(head, static_cast<std::uint32_t>(field.whole.size() - size));
      found = numbers_.find(head);
    }
    put_raw(field.whole.data());
    put_varint(out, found->second);
    out.append(field.whole.substr(size));
    raw = field.whole.data() + field.whole.size();
  }
  put_raw(end);
}

void Packer::unpack(std::string_view packed, std::string& out) const {
  FieldReader reader(packed);
  while (!reader.is_at_end()) {
    std::uint64_t number = 0;
    std::uint64_t size = 0;
    const bool is_whole = reader.varint(number) && (number != 0 || reader.varint(size));
    if (!is_whole || number > heads_.size()) throw engine::SnapshotCorrupt("packed impression: unknown feature head");
    if (number != 0) {
      const Head& head = heads_[number - 1];
      out.append(head.bytes);
      size = head.values_size;
    }
    if (size > reader.rest().size()) throw engine::SnapshotCorrupt("packed impression: truncated values");
    out.append(reader.take(size));
  }
}

void Packer::add_head(std::string_view head, std::uint32_t values_size) {
  heads_.push_back({std::string(head), values_size});
  numbers_.emplace(heads_.back().bytes, static_cast<std::uint32_t>(heads_.size()));
  memory_ += head.size() + 96;
}

}  // namespace joiner
