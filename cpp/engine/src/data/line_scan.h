// line_scan.h: the walk over a serialized LineId that readers and rules share. Private to the engine.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/line_id.h"
#include "wire.h"

namespace engine::data {

inline std::string_view text_of(Bytes bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

[[noreturn]] inline void throw_wrong_wire(const wire::Tag& tag, const char* declared, const std::byte* at) {
  throw wire::Malformed{"field " + std::to_string(tag.field) + " has wire type " + std::to_string(tag.wire) +
                            ", which does not fit its declaration as " + declared,
                        at};
}

// Calls take(value) for every number that one occurrence of an integer field holds, packed or not.
template <typename Take>
void take_ints(FieldKind kind, const wire::Tag& tag, wire::Reader& reader, Take&& take) {
  switch (kind) {
    case FieldKind::kInt:
      if (tag.wire == wire::kVarint) return take(static_cast<std::int64_t>(reader.varint()));
      if (tag.wire == wire::kBlock) {
        wire::Reader packed(reader.block());
        while (!packed.done()) take(static_cast<std::int64_t>(packed.varint()));
        return;
      }
      throw_wrong_wire(tag, "int", reader.at());
    case FieldKind::kFixed64:
      if (tag.wire == wire::kFixed64) return take(reader.fixed<std::int64_t>());
      if (tag.wire == wire::kBlock) {
        wire::Reader packed(reader.block());
        while (!packed.done()) take(packed.fixed<std::int64_t>());
        return;
      }
      throw_wrong_wire(tag, "fixed64", reader.at());
    default:
      if (tag.wire == wire::kFixed32) return take(static_cast<std::int64_t>(reader.fixed<std::uint32_t>()));
      if (tag.wire == wire::kBlock) {
        wire::Reader packed(reader.block());
        while (!packed.done()) take(static_cast<std::int64_t>(packed.fixed<std::uint32_t>()));
        return;
      }
      throw_wrong_wire(tag, "fixed32", reader.at());
  }
}

// The same for float and double fields.
template <typename Take>
void take_reals(FieldKind kind, const wire::Tag& tag, wire::Reader& reader, Take&& take) {
  if (kind == FieldKind::kFloat) {
    if (tag.wire == wire::kFixed32) return take(static_cast<double>(reader.fixed<float>()));
    if (tag.wire != wire::kBlock) throw_wrong_wire(tag, "float", reader.at());
    wire::Reader packed(reader.block());
    while (!packed.done()) take(static_cast<double>(packed.fixed<float>()));
    return;
  }
  if (tag.wire == wire::kFixed64) return take(reader.fixed<double>());
  if (tag.wire != wire::kBlock) throw_wrong_wire(tag, "double", reader.at());
  wire::Reader packed(reader.block());
  while (!packed.done()) take(packed.fixed<double>());
}

// Calls take(tag, reader) for every field; `take` consumes the value and returns true, or returns false to skip it.
template <typename Take>
void scan_line(Bytes line, Take&& take) {
  wire::Reader reader(line);
  while (!reader.done()) {
    const wire::Tag tag = reader.tag();
    if (!take(tag, reader)) reader.skip(tag);
  }
}

// Replaces the content of `out` by the values of a repeated int field (actions and the like).
inline void read_line_ints(Bytes line, std::uint32_t number, std::vector<std::int64_t>& out) {
  out.clear();
  scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field != number) return false;
    take_ints(FieldKind::kInt, tag, reader, [&](std::int64_t value) { out.push_back(value); });
    return true;
  });
}

// Writes the line without the fields that `drop` names; returns the end. `out` has room for the whole line.
template <typename Drop>
std::byte* copy_line_without(Bytes line, Drop&& drop, std::byte* out) {
  wire::Reader reader(line);
  while (!reader.done()) {
    const std::byte* begin = reader.at();
    const wire::Tag tag = reader.tag();
    reader.skip(tag);
    if (drop(tag.field)) continue;
    const auto size = static_cast<std::size_t>(reader.at() - begin);
    std::memcpy(out, begin, size);
    out += size;
  }
  return out;
}

// Tags of any field number; wire::Writer::tag knows those below 16 only.
inline void write_tag(wire::Writer& writer, std::uint32_t field, std::uint32_t wire_type) noexcept {
  writer.varint(std::uint64_t{field} << 3 | wire_type);
}

inline std::size_t tag_bytes(std::uint32_t field) noexcept { return wire::varint_bytes(std::uint64_t{field} << 3); }

}  // namespace engine::data
