// line_id.cc: reads and edits serialized LineIds.
#include "engine/data/line_id.h"

#include <algorithm>

#include "data/line_scan.h"
#include "engine/error.h"

namespace engine::data {

namespace {

constexpr std::size_t kMostNumberBytes = 10;  // of a varint

bool is_integer(FieldKind kind) noexcept {
  return kind == FieldKind::kInt || kind == FieldKind::kFixed64 || kind == FieldKind::kFixed32;
}

// How one number of an integer kind lies on the wire.
std::uint32_t number_wire(FieldKind kind) noexcept {
  if (kind == FieldKind::kFixed64) return wire::kFixed64;
  return kind == FieldKind::kFixed32 ? wire::kFixed32 : wire::kVarint;
}

std::size_t number_bytes(FieldKind kind, std::int64_t value) noexcept {
  if (kind == FieldKind::kFixed64) return 8;
  return kind == FieldKind::kFixed32 ? 4 : wire::varint_bytes(static_cast<std::uint64_t>(value));
}

void write_number(wire::Writer& writer, FieldKind kind, std::int64_t value) noexcept {
  if (kind == FieldKind::kFixed64) return writer.fixed(value);
  if (kind == FieldKind::kFixed32) return writer.fixed(static_cast<std::uint32_t>(value));
  writer.varint(static_cast<std::uint64_t>(value));
}

// The line without `field`, then the field as `write` spells it.
template <typename Write>
Bytes replaced(Bytes line, std::uint32_t number, std::size_t value_bytes, Arena& arena, Write&& write) {
  std::byte* begin = arena.take(line.size() + tag_bytes(number) + value_bytes, 1);
  std::byte* end = copy_line_without(line, [&](std::uint32_t field) { return field == number; }, begin);
  wire::Writer writer(end);
  write(writer);
  return {begin, writer.at()};
}

}  // namespace

const std::vector<LineField>& standard_line_fields() {
  using namespace line_number;
  static const std::vector<LineField> fields = {
      {"uid", kUid, FieldKind::kFixed64, false, 0},
      {"req_time", kReqTime, FieldKind::kInt, false, 0},
      {"item_id", kItemId, FieldKind::kFixed64, false, 0},
      {"actions", kActions, FieldKind::kInt, true, 0},
      {"chnid", kChnid, FieldKind::kInt, false, 0},
      {"pre_actions", kPreActions, FieldKind::kInt, true, 0},
      {"sample_rate", kSampleRate, FieldKind::kFloat, false, 1.0},
      {"special_strategies", kSpecialStrategies, FieldKind::kInt, true, 0},
      {"device_type", kDeviceType, FieldKind::kText, false, 0},
      {"cid", 48, FieldKind::kText, false, 0},
      {"user_id", 49, FieldKind::kText, false, 0},
      {"is_draw", kIsDraw, FieldKind::kInt, false, 0},
      {"rank", kRank, FieldKind::kInt, false, 0},
      {"data_source_name", kDataSourceName, FieldKind::kText, false, 0},
  };
  return fields;
}

const LineField& find_field(const std::vector<LineField>& fields, std::string_view name) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.name == name; });
  if (found != fields.end()) return *found;
  std::string known;
  for (const auto& field : fields) known += (known.empty() ? "" : ", ") + field.name;
  throw ConfigError("LineId has no field '" + std::string(name) + "'; known fields: " + known);
}

// --- reading ---

bool line_has(Bytes line, std::uint32_t number) {
  bool has = false;
  scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field != number || tag.wire != wire::kBlock) {
      has |= tag.field == number;
      return false;
    }
    has |= !reader.block().empty();
    return true;
  });
  return has;
}

bool line_int(Bytes line, const LineField& field, std::int64_t& out) {
  bool has = false;
  scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field != field.number) return false;
    take_ints(field.kind, tag, reader, [&](std::int64_t value) { out = value, has = true; });
    return true;
  });
  return has;
}

bool line_real(Bytes line, const LineField& field, double& out) {
  bool has = false;
  scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field != field.number) return false;
    take_reals(field.kind, tag, reader, [&](double value) { out = value, has = true; });
    return true;
  });
  return has;
}

bool line_text(Bytes line, const LineField& field, std::string_view& out) {
  bool has = false;
  scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field != field.number) return false;
    if (tag.wire != wire::kBlock) throw_wrong_wire(tag, "text", reader.at());
    out = text_of(reader.block());
    return has = true;
  });
  return has;
}

void line_ints(Bytes line, const LineField& field, std::vector<std::int64_t>& out) {
  scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field != field.number) return false;
    take_ints(field.kind, tag, reader, [&](std::int64_t value) { out.push_back(value); });
    return true;
  });
}

void line_reals(Bytes line, const LineField& field, std::vector<double>& out) {
  scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field != field.number) return false;
    take_reals(field.kind, tag, reader, [&](double value) { out.push_back(value); });
    return true;
  });
}

void line_texts(Bytes line, const LineField& field, std::vector<std::string_view>& out) {
  scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field != field.number) return false;
    if (tag.wire != wire::kBlock) throw_wrong_wire(tag, "text", reader.at());
    out.push_back(text_of(reader.block()));
    return true;
  });
}

// --- editing ---

Bytes line_set_int(Bytes line, const LineField& field, std::int64_t value, Arena& arena) {
  return replaced(line, field.number, kMostNumberBytes, arena, [&](wire::Writer& writer) {
    write_tag(writer, field.number, number_wire(field.kind));
    write_number(writer, field.kind, value);
  });
}

Bytes line_set_real(Bytes line, const LineField& field, double value, Arena& arena) {
  return replaced(line, field.number, sizeof value, arena, [&](wire::Writer& writer) {
    if (field.kind == FieldKind::kFloat) {
      write_tag(writer, field.number, wire::kFixed32);
      return writer.fixed(static_cast<float>(value));
    }
    write_tag(writer, field.number, wire::kFixed64);
    writer.fixed(value);
  });
}

Bytes line_set_text(Bytes line, const LineField& field, std::string_view value, Arena& arena) {
  return replaced(line, field.number, kMostNumberBytes + value.size(), arena, [&](wire::Writer& writer) {
    write_tag(writer, field.number, wire::kBlock);
    writer.varint(value.size());
    writer.bytes(value.data(), value.size());
  });
}

Bytes line_add_ints(Bytes line, const LineField& field, std::span<const std::int64_t> values, Arena& arena) {
  if (!is_integer(field.kind)) throw ConfigError("LineId field '" + field.name + "' does not hold integers");
  if (values.empty()) return line;
  // The values join the packed block that the field ends with, so that the result equals the bytes that a protobuf
  // library would write. Behind an unpacked value they stand alone: in an earlier block they would not come last.
  const std::byte* block_begin = nullptr;  // the tag
  Bytes block;
  bool is_unpacked = field.number == line_number::kSpecialStrategies;  // the one field declared without packing
  for (wire::Reader reader(line); !reader.done();) {
    const std::byte* tag_begin = reader.at();
    const wire::Tag tag = reader.tag();
    if (tag.field == field.number && tag.wire == wire::kBlock) {
      block_begin = tag_begin;
      block = reader.block();
    } else {
      if (tag.field == field.number) is_unpacked = true, block_begin = nullptr;
      reader.skip(tag);
    }
  }
  std::size_t packed_bytes = 0;
  for (const std::int64_t value : values) packed_bytes += number_bytes(field.kind, value);
  const std::size_t tags = block_begin == nullptr && is_unpacked ? values.size() : 1;
  std::byte* begin = arena.take(line.size() + tags * tag_bytes(field.number) + kMostNumberBytes + packed_bytes, 1);
  wire::Writer writer(begin);
  if (block_begin != nullptr) {
    const std::byte* block_end = block.data() + block.size();
    writer.bytes(line.data(), static_cast<std::size_t>(block_begin - line.data()));
    write_tag(writer, field.number, wire::kBlock);
    writer.varint(block.size() + packed_bytes);
    writer.bytes(block.data(), block.size());
    for (const std::int64_t value : values) write_number(writer, field.kind, value);
    writer.bytes(block_end, static_cast<std::size_t>(line.data() + line.size() - block_end));
    return {begin, writer.at()};
  }
  writer.bytes(line.data(), line.size());
  if (!is_unpacked) {
    write_tag(writer, field.number, wire::kBlock);
    writer.varint(packed_bytes);
  }
  for (const std::int64_t value : values) {
    if (is_unpacked) write_tag(writer, field.number, number_wire(field.kind));
    write_number(writer, field.kind, value);
  }
  return {begin, writer.at()};
}

Bytes line_add_int(Bytes line, const LineField& field, std::int64_t value, Arena& arena) {
  return line_add_ints(line, field, {&value, 1}, arena);
}

Bytes line_clear(Bytes line, std::uint32_t number, Arena& arena) {
  if (line.empty()) return line;
  std::byte* begin = arena.take(line.size(), 1);
  return {begin, copy_line_without(line, [&](std::uint32_t field) { return field == number; }, begin)};
}

}  // namespace engine::data
