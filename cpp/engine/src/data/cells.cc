// cells.cc: the common form of each feature message is read without a copy; other spellings (unpacked, in
// several pieces, an arm that comes again) is legal too, and is gathered in the block's arena.
#include "cells.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "varints.h"

namespace engine::data {

namespace {

using wire::kBlock;
using wire::kFixed32;
using wire::kFixed64;
using wire::kVarint;
using wire::Malformed;
using wire::Reader;
using wire::Tag;

// How the values of a list message are written, packed and not.
struct Spelling {
  std::uint32_t wire;   // of one value, unpacked
  std::uint32_t width;  // bytes of a value; 0 = a varint
};

constexpr Spelling kWords{kFixed64, 8};
constexpr Spelling kFloats{kFixed32, 4};
constexpr Spelling kDoubles{kFixed64, 8};
constexpr Spelling kVarints{kVarint, 0};

void check_whole(Bytes values, const Spelling& spelling) {
  if (spelling.width != 0 && values.size() % spelling.width != 0) {
    throw Malformed{"packed values take " + std::to_string(values.size()) + " bytes, not a multiple of " +
                        std::to_string(spelling.width),
                    values.data()};
  }
  if (spelling.width == 0) check_varints(values);
}

Bytes gather(const std::vector<std::byte>& bytes, Arena& arena) { return arena.copy({bytes.data(), bytes.size()}); }

// All occurrences of `field`, packed or not, in order.
Bytes packed_slow(Bytes message, std::uint32_t field, const Spelling& spelling, Arena& arena) {
  std::vector<std::byte> all;
  Reader reader(message);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field != field) {
      reader.skip(tag);
    } else if (tag.wire == kBlock) {
      const Bytes values = reader.block();
      check_whole(values, spelling);
      all.insert(all.end(), values.begin(), values.end());
    } else if (tag.wire == spelling.wire) {
      const std::byte* begin = reader.at();
      reader.skip(tag);
      all.insert(all.end(), begin, reader.at());
    } else {
      reader.skip(tag);  // of another type: protobuf takes it for an unknown field
    }
  }
  return gather(all, arena);
}

Bytes packed(Bytes message, std::uint32_t field, const Spelling& spelling, Arena& arena) {
  if (message.empty()) return {};
  Reader reader(message);
  const Tag tag = reader.tag();
  if (tag.field == field && tag.wire == kBlock) {
    const Bytes values = reader.block();
    if (reader.done()) {
      check_whole(values, spelling);
      return values;
    }
  }
  return packed_slow(message, field, spelling, arena);
}

// A message that is only kept: its structure is checked here, so that later readers cannot fail. Says whether any
// value is in it.
bool check_texts(Bytes message, std::uint32_t field) {
  bool has_values = false;
  Reader reader(message);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    has_values = has_values || (tag.field == field && tag.wire == kBlock);
    reader.skip(tag);
  }
  return has_values;
}

Cell make_cell(Bytes bytes, Arm arm, std::uint32_t field = 0) {
  if (bytes.empty()) return {};
  return {bytes.data(), static_cast<std::uint32_t>(bytes.size()), arm, static_cast<std::uint8_t>(field)};
}

Cell text_cell(Bytes message, std::uint32_t field) {
  return check_texts(message, field) ? make_cell(message, Arm::kBytes, field) : Cell{};
}

// Lists of lists stay a message; every list in it is checked, and copied into plain packed form when it is not.
Cell lists_cell(Bytes message, std::uint32_t field, Arm arm, const Spelling& spelling, Arena& arena) {
  bool is_plain = true;
  bool has_values = false;
  Reader reader(message);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field != field || tag.wire != kBlock) {
      reader.skip(tag);
      continue;
    }
    const Bytes list = reader.block();
    if (arm == Arm::kBytesLists) {
      has_values = check_texts(list, 1) || has_values;
      continue;
    }
    if (list.empty()) continue;
    Reader inner(list);
    const Tag first = inner.tag();
    if (first.field == 1 && first.wire == kBlock) {
      const Bytes values = inner.block();
      check_whole(values, spelling);
      has_values = has_values || !values.empty();
      is_plain = is_plain && inner.done();
    } else {
      is_plain = false;
    }
  }
  if (is_plain && !has_values) return {};
  if (is_plain) return make_cell(message, arm, field);

  std::vector<std::byte> all;
  const auto put_varint = [&all](std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) all.push_back(static_cast<std::byte>(value | 0x80));
    all.push_back(static_cast<std::byte>(value));
  };
  Reader again(message);
  while (!again.done()) {
    const Tag tag = again.tag();
    if (tag.field != field || tag.wire != kBlock) {
      again.skip(tag);
      continue;
    }
    const Bytes values = packed(again.block(), 1, spelling, arena);
    has_values = has_values || !values.empty();
    const std::size_t inner = values.empty() ? 0 : 1 + wire::varint_bytes(values.size()) + values.size();
    put_varint(std::uint64_t{1} << 3 | kBlock);
    put_varint(inner);
    if (inner == 0) continue;
    put_varint(std::uint64_t{1} << 3 | kBlock);
    put_varint(values.size());
    all.insert(all.end(), values.begin(), values.end());
  }
  return has_values ? make_cell(gather(all, arena), arm, 1) : Cell{};
}

// --- Example ---

struct ArmOfField {
  Arm arm = Arm::kNone;
  Spelling spelling{};
};

// By field number of monolith.io.proto.Feature.
constexpr std::array<ArmOfField, 17> kExampleArms{{
    {},
    {Arm::kFidV1, kWords},
    {Arm::kFidV2, kWords},
    {Arm::kFloat, kFloats},
    {Arm::kDouble, kDoubles},
    {Arm::kInt64, kVarints},
    {Arm::kBytes, {}},
    {Arm::kFidV2Lists, kWords},
    {Arm::kFloatLists, kFloats},
    {Arm::kDoubleLists, kDoubles},
    {Arm::kInt64Lists, kVarints},
    {Arm::kBytesLists, {}},
    {},
    {},
    {},
    {},
    {Arm::kFidV1Lists, kWords},
}};

constexpr std::uint32_t kInt64Value = 12;
constexpr std::uint32_t kFloatValue = 13;
constexpr std::uint32_t kDoubleValue = 14;
constexpr std::uint32_t kBytesValue = 15;

constexpr std::uint32_t kDoubleField = 4;  // up to here arms are lists of numbers of one width

// The content of field 1 of the message that is the only field of `feature`, where both are in the common form and
// short. Empty when they are not; then a closer look is needed.
Bytes short_list(Bytes feature) {
  constexpr std::size_t kHeads = 4;
  if (feature.size() <= kHeads || feature.size() > 0x7f) return {};
  const auto byte = [feature](std::size_t at) { return static_cast<std::size_t>(feature[at]); };
  const bool is_common = (byte(0) & 7) == kBlock && byte(0) < 0x80 && byte(0) >= 8 && byte(1) == feature.size() - 2 &&
                         byte(2) == (1 << 3 | kBlock) && byte(3) == feature.size() - kHeads;
  return is_common ? feature.subspan(kHeads) : Bytes{};
}

bool is_message_arm(std::uint32_t field) {
  return field < kExampleArms.size() && kExampleArms[field].arm != Arm::kNone;
}

Cell read_list(Bytes list, const ArmOfField& kind, Arena& arena) {
  switch (kind.arm) {
    case Arm::kBytes:
      return text_cell(list, 1);
    case Arm::kFidV1:
    case Arm::kFidV2:
    case Arm::kFloat:
    case Arm::kDouble:
    case Arm::kInt64:
      return make_cell(packed(list, 1, kind.spelling, arena), kind.arm);
    default:
      return lists_cell(list, 1, kind.arm, kind.spelling, arena);
  }
}

std::uint32_t scalar_wire(std::uint32_t field) {
  switch (field) {
    case kInt64Value:
      return kVarint;
    case kFloatValue:
      return kFixed32;
    case kDoubleValue:
      return kFixed64;
    default:
      return kBlock;
  }
}

Cell read_scalar(Bytes feature, std::uint32_t field, Bytes value, Arena& arena) {
  switch (field) {
    case kInt64Value:
      return make_cell(value, Arm::kInt64);
    case kFloatValue:
      return make_cell(value, Arm::kFloat);
    case kDoubleValue:
      return make_cell(value, Arm::kDouble);
    default: {
      // Other occurrences of the field may come before, and the last counts: keep the last alone.
      std::vector<std::byte> only;
      only.push_back(static_cast<std::byte>(field << 3 | kBlock));
      std::uint64_t size = value.size();
      for (; size >= 0x80; size >>= 7) only.push_back(static_cast<std::byte>(size | 0x80));
      only.push_back(static_cast<std::byte>(size));
      if (only.size() + value.size() == feature.size()) return make_cell(feature, Arm::kBytes, field);
      only.insert(only.end(), value.begin(), value.end());
      return make_cell(gather(only, arena), Arm::kBytes, field);
    }
  }
}

// The arm that is set last; a message arm that is set again while it is the set one is merged.
Cell read_example_feature_slow(Bytes feature, Arena& arena) {
  std::uint32_t arm_field = 0;
  Bytes value;
  std::vector<std::byte> merged;
  bool is_merged = false;
  Reader reader(feature);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    const bool is_scalar = tag.field >= kInt64Value && tag.field <= kBytesValue;
    if (!is_scalar && !is_message_arm(tag.field)) {
      reader.skip(tag);
      continue;
    }
    const std::uint32_t expected = is_scalar ? scalar_wire(tag.field) : kBlock;
    if (tag.wire != expected) {  // protobuf takes it for an unknown field
      reader.skip(tag);
      continue;
    }
    Bytes now;
    if (tag.wire == kBlock) {
      now = reader.block();
    } else {
      const std::byte* begin = reader.at();
      reader.skip(tag);
      now = {begin, reader.at()};
    }
    if (!is_scalar && tag.field == arm_field) {
      if (!is_merged) merged.assign(value.begin(), value.end());
      merged.insert(merged.end(), now.begin(), now.end());
      is_merged = true;
    } else {
      is_merged = false;
      value = now;
    }
    arm_field = tag.field;
  }
  if (arm_field == 0) return {};
  if (is_merged) value = gather(merged, arena);
  if (arm_field >= kInt64Value && arm_field <= kBytesValue) return read_scalar(feature, arm_field, value, arena);
  return read_list(value, kExampleArms[arm_field], arena);
}

}  // namespace

void check_varints(Bytes values) {
  if (varints::are_plain(values)) return;
  std::size_t length = 0;  // bytes of a number that has not ended
  for (const std::byte& byte : values) {
    if (length == 9 && byte > std::byte{1}) throw Malformed{"a number is longer than 64 bits", &byte};
    length = (byte & std::byte{0x80}) != std::byte{} ? length + 1 : 0;
  }
  if (length != 0) throw Malformed{"packed numbers end inside a number", values.data() + values.size()};
}

Bytes packed_fixed(Bytes message, std::uint32_t field, std::uint32_t width, Arena& arena) {
  return packed(message, field, width == 4 ? kFloats : kWords, arena);
}

Cell read_example_feature(Bytes feature, Arena& arena) {
  if (feature.empty()) return {};
  // Nearly every feature is one short list of numbers, packed: [arm][length] [1][length] numbers.
  if (const Bytes values = short_list(feature); !values.empty()) {
    const auto field = static_cast<std::uint32_t>(feature[0]) >> 3;
    const ArmOfField& kind = kExampleArms[field];
    if (field <= kDoubleField && values.size() % kind.spelling.width == 0) return make_cell(values, kind.arm);
    if (kind.arm == Arm::kInt64 && varints::are_plain(values)) return make_cell(values, kind.arm);
  }
  Reader reader(feature);
  const Tag tag = reader.tag();
  if (tag.wire == kBlock && is_message_arm(tag.field)) {
    const Bytes list = reader.block();
    if (reader.done()) return read_list(list, kExampleArms[tag.field], arena);
  }
  return read_example_feature_slow(feature, arena);
}

std::size_t read_short_features(Bytes list, Cell* cells, std::uint64_t most, std::uint64_t& count) noexcept {
  // [2][length] [arm][length - 2] [1][length - 4] values
  constexpr std::size_t kHeads = 6;
  const std::byte* at = list.data();
  const std::byte* const end = at + list.size();
  while (count < most && end - at >= static_cast<std::ptrdiff_t>(kHeads + 2)) {
    std::uint64_t head = 0;
    std::memcpy(&head, at, sizeof head);
    const std::uint64_t size = head >> 8 & 0xff;
    const std::uint64_t arm = head >> 19 & 0x1f;
    const std::uint64_t expected = std::uint64_t{2 << 3 | kBlock} | size << 8 | (arm << 3 | kBlock) << 16 |
                                   (size - 2) << 24 | std::uint64_t{1 << 3 | kBlock} << 32 | (size - 4) << 40;
    if (size <= 4 || size > 0x7f || (head & 0xffff'ffff'ffff) != expected || arm == 0 || arm > 6 ||
        static_cast<std::uint64_t>(end - at) < size + 2) {
      break;
    }
    const std::byte* const values = at + kHeads;
    const auto bytes = static_cast<std::uint32_t>(size - 4);
    const ArmOfField& kind = kExampleArms[arm];
    if (kind.arm == Arm::kInt64) {
      // The last number ends here, and none has ten bytes.
      if (bytes > 9 || values[bytes - 1] >= std::byte{0x80}) break;
      cells[count] = {values, bytes, kind.arm, 0};
    } else if (kind.arm == Arm::kBytes) {
      cells[count] = {values - 2, bytes + 2, Arm::kBytes, 1};
    } else {
      if ((bytes & (kind.spelling.width - 1)) != 0) break;
      cells[count] = {values, bytes, kind.arm, 0};
    }
    ++count;
    at += size + 2;
  }
  return static_cast<std::size_t>(at - list.data());
}

// --- Instance ---

Cell read_instance_feature(Bytes feature, Arena& arena) {
  constexpr std::uint32_t kFid = 2;
  constexpr std::uint32_t kFloatField = 3;
  constexpr std::uint32_t kInt64Field = 4;
  constexpr std::uint32_t kBytesField = 5;
  constexpr std::uint32_t kFidList = 6;
  constexpr std::uint32_t kFloatList = 7;
  constexpr std::uint32_t kInt64List = 8;
  constexpr std::uint32_t kBytesList = 9;

  std::uint32_t present = 0;  // a bit for each field that is there
  Bytes block;                // of the last field that was packed
  std::uint32_t blocks = 0;
  Reader reader(feature);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field >= kFid && tag.field <= kBytesList) {
      present |= 1U << tag.field;
      if (tag.wire == kBlock) {
        block = reader.block();
        ++blocks;
        continue;
      }
      blocks += 2;  // not the common form
    }
    reader.skip(tag);
  }
  const auto has = [present](std::uint32_t field) { return (present & (1U << field)) != 0; };
  const auto values = [&](std::uint32_t field, const Spelling& spelling) {
    if (blocks == 1) {
      check_whole(block, spelling);
      return block;
    }
    return packed_slow(feature, field, spelling, arena);
  };
  const auto fids = [&]() -> Cell {
    const Bytes flat = has(kFid) ? values(kFid, kWords) : Bytes{};
    if (!has(kFidList)) return make_cell(flat, Arm::kFidV2);
    Cell lists = lists_cell(feature, kFidList, Arm::kFidV2Lists, kWords, arena);
    if (flat.empty()) return lists;
    // Both are filled, which the format does not foresee: the ids of the lists follow the flat ones.
    std::vector<std::byte> all(flat.begin(), flat.end());
    Reader outer(lists.bytes());
    while (!outer.done()) {
      const Tag tag = outer.tag();
      if (tag.field != lists.field || tag.wire != kBlock) {
        outer.skip(tag);
        continue;
      }
      const Bytes list = packed(outer.block(), 1, kWords, arena);
      all.insert(all.end(), list.begin(), list.end());
    }
    return make_cell(gather(all, arena), Arm::kFidV2);
  };
  // A field may be there without values, such as a packed list of none.
  Cell cell;
  const auto is_next = [&](std::uint32_t field) { return cell.arm == Arm::kNone && has(field); };
  if (has(kFid) || has(kFidList)) cell = fids();
  if (is_next(kFloatField)) cell = make_cell(values(kFloatField, kFloats), Arm::kFloat);
  if (is_next(kInt64Field)) cell = make_cell(values(kInt64Field, kVarints), Arm::kInt64);
  if (is_next(kBytesField)) cell = text_cell(feature, kBytesField);
  if (is_next(kFloatList)) cell = lists_cell(feature, kFloatList, Arm::kFloatLists, kFloats, arena);
  if (is_next(kInt64List)) cell = lists_cell(feature, kInt64List, Arm::kInt64Lists, kVarints, arena);
  if (is_next(kBytesList)) cell = lists_cell(feature, kBytesList, Arm::kBytesLists, {}, arena);
  return cell;
}

// --- tf.Example ---

Cell read_tf_feature(Bytes feature, Arena& arena) {
  constexpr std::array<ArmOfField, 4> kArms{{{}, {Arm::kBytes, {}}, {Arm::kFloat, kFloats}, {Arm::kInt64, kVarints}}};
  const auto is_arm = [](const Tag& tag) { return tag.wire == kBlock && tag.field >= 1 && tag.field <= 3; };
  if (feature.empty()) return {};
  if (const Bytes values = short_list(feature); !values.empty()) {
    const auto field = static_cast<std::uint32_t>(feature[0]) >> 3;
    if (field == 3 && varints::are_plain(values)) return make_cell(values, Arm::kInt64);
    if (field == 2 && values.size() % 4 == 0) return make_cell(values, Arm::kFloat);
  }
  Reader reader(feature);
  const Tag tag = reader.tag();
  if (is_arm(tag)) {
    const Bytes list = reader.block();
    if (reader.done()) return read_list(list, kArms[tag.field], arena);
  }
  std::uint32_t arm_field = 0;
  std::vector<std::byte> merged;
  Reader again(feature);
  while (!again.done()) {
    const Tag next = again.tag();
    if (!is_arm(next)) {
      again.skip(next);
      continue;
    }
    const Bytes list = again.block();
    if (next.field != arm_field) merged.clear();
    merged.insert(merged.end(), list.begin(), list.end());
    arm_field = next.field;
  }
  return arm_field == 0 ? Cell{} : read_list(gather(merged, arena), kArms[arm_field], arena);
}

}  // namespace engine::data
