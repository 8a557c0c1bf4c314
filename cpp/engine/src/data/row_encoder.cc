// row_encoder.cc: writes the Example wire format.
#include "engine/data/row_encoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "cell_values.h"
#include "engine/fid.h"
#include "wire.h"

namespace engine::data {

namespace {

using wire::kBlock;
using wire::kFixed32;
using wire::kVarint;
using wire::put_block;
using wire::put_tag;
using wire::put_varint;

void put_float(std::string& out, std::uint32_t field, float value) {
  put_tag(out, field, kFixed32);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// The arm of monolith.io.proto.Feature that spells a cell.
std::uint32_t arm_field(Arm arm) {
  switch (arm) {
    case Arm::kFidV1:
      return 1;
    case Arm::kFidV2:
      return 2;
    case Arm::kFloat:
      return 3;
    case Arm::kDouble:
      return 4;
    case Arm::kInt64:
    case Arm::kFixedInt64:
      return 5;
    case Arm::kBytes:
      return 6;
    case Arm::kFidV2Lists:
      return 7;
    case Arm::kFloatLists:
      return 8;
    case Arm::kDoubleLists:
      return 9;
    case Arm::kInt64Lists:
      return 10;
    case Arm::kBytesLists:
      return 11;
    case Arm::kFidV1Lists:
      return 16;
    case Arm::kNone:
      break;
  }
  return 0;
}

// The list message of a cell: its values as field 1.
std::string list_of(const Cell& cell) {
  std::string list;
  if (cell.arm == Arm::kFixedInt64) {
    std::string numbers;
    each_int(cell, [&](std::int64_t value) { return put_varint(numbers, static_cast<std::uint64_t>(value)), true; });
    put_block(list, 1, numbers);
    return list;
  }
  if (cell.arm < Arm::kBytes) {
    put_block(list, 1, as_text(cell.bytes()));
    return list;
  }
  wire::Reader reader(cell.bytes());
  while (!reader.done()) {
    const wire::Tag tag = reader.tag();
    if (tag.field == cell.field && tag.wire == kBlock) {
      put_block(list, 1, as_text(reader.block()));
    } else {
      reader.skip(tag);
    }
  }
  return list;
}

std::string feature_of(std::uint32_t arm, std::string_view list) {
  std::string feature;
  if (arm != 0) put_block(feature, arm, list);
  return feature;
}

void put_feature(std::string& out, std::string_view name, std::uint32_t arm, std::string_view list,
                 std::uint32_t field = 1) {
  std::string named;
  put_block(named, 1, name);
  put_block(named, 2, feature_of(arm, list));
  put_block(out, field, named);
}

constexpr std::string_view kZeroList{"\x0a\x04\0\0\0\0", 6};

void put_flat(std::string& out, Bytes fids) {
  std::vector<std::pair<std::uint32_t, std::string>> by_slot;
  for (std::size_t at = 0; at < fids.size(); at += 8) {
    std::int64_t fid = 0;
    std::memcpy(&fid, fids.data() + at, sizeof fid);
    const std::uint32_t slot = slot_v1(fid);
    auto found =
        std::find_if(by_slot.begin(), by_slot.end(), [slot](const auto& group) { return group.first == slot; });
    if (found == by_slot.end()) found = by_slot.insert(by_slot.end(), {slot, {}});
    found->second.append(reinterpret_cast<const char*>(fids.data() + at), 8);
  }
  for (const auto& [slot, ids] : by_slot) {
    std::string list;
    put_block(list, 1, ids);
    put_feature(out, "fc_slot_" + std::to_string(slot), 1, list);
  }
}

}  // namespace

std::string encode_feature(const Cell& cell) {
  return cell.arm == Arm::kNone ? std::string() : feature_of(arm_field(cell.arm), list_of(cell));
}

void append_named_feature(std::string& out, std::uint32_t field, std::string_view name, const Cell& cell) {
  if (cell.arm != Arm::kNone) put_feature(out, name, arm_field(cell.arm), list_of(cell), field);
}

std::vector<std::string> encode_examples(const Rows& rows, const Columns& columns) {
  std::vector<std::string> examples(rows.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::string& out = examples[row];
    const RowInfo& info = rows.info(row);
    put_flat(out, info.flat_fids);
    for (std::uint32_t column = 0; column < columns.size(); ++column) {
      const Cell cell = rows.cell(row, column);
      if (cell.arm != Arm::kNone) put_feature(out, columns.name(column), arm_field(cell.arm), list_of(cell));
    }
    if (!info.line.empty()) put_block(out, 100, as_text(info.line));
    if (info.label_count > 0) {
      put_block(out, 101, {reinterpret_cast<const char*>(info.labels), info.label_count * sizeof(float)});
    }
    // A zero is not told from a missing field; as a feature it is.
    if (info.weight == 0.0F) put_feature(out, "instance_weight", arm_field(Arm::kFloat), kZeroList);
    if (info.weight != 0.0F) put_float(out, 102, info.weight);
    if (info.source_key != 0) {
      put_tag(out, 103, kVarint);
      put_varint(out, info.source_key);
    }
  }
  return examples;
}

}  // namespace engine::data
