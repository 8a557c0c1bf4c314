#include "engine/data/framing_probe.h"

#include <algorithm>
#include <initializer_list>
#include <span>

#include "engine/tfrecord.h"
#include "wire.h"

namespace engine::data {

namespace {

// How a field's value may lie on the wire. Repeated numbers may be packed or not.
enum class Shape : std::uint8_t { kVarint, kVarints, kFlag, kFixed64s, kFixed32s, kText, kBytes, kMessage };

// The messages below, by their place in kTypes.
enum Type : std::uint8_t {
  kInstanceType,
  kExampleType,
  kExampleBatchType,
  kRowMajorType,
  kTfExampleType,
  kLineId,
  kLabelTag,
  kInstanceFeature,
  kFixed64List,
  kFloatList,
  kDoubleList,
  kVarintList,
  kBytesList,
  kFixed64Lists,
  kFloatLists,
  kDoubleLists,
  kVarintLists,
  kBytesLists,
  kFeature,
  kRawFeature,
  kNamedFeature,
  kNamedRawFeature,
  kFeatureColumn,
  kRawFeatureColumn,
  kTfFeatures,
  kTfFeatureEntry,
  kTfFeature,
  kNoType,
};

struct Field {
  std::uint32_t number;
  Shape shape;
  Type type = kNoType;
};

struct MessageType {
  std::span<const Field> fields;
  bool is_open = false;      // fields that are not listed are normal
  std::uint32_t needed = 0;  // a field without which the message makes no sense
};

constexpr Field kInstanceFields[] = {{1, Shape::kFixed64s},
                                     {2, Shape::kFixed32s},
                                     {3, Shape::kFixed32s},
                                     {4, Shape::kFixed32s},
                                     {5, Shape::kMessage, kLineId},
                                     {6, Shape::kFixed32s},
                                     {7, Shape::kMessage, kLabelTag},
                                     {8, Shape::kFixed64s},
                                     {9, Shape::kMessage, kInstanceFeature},
                                     {100, Shape::kVarint}};
constexpr Field kExampleFields[] = {{1, Shape::kMessage, kNamedFeature},
                                    {2, Shape::kMessage, kNamedRawFeature},
                                    {100, Shape::kMessage, kLineId},
                                    {101, Shape::kFixed32s},
                                    {102, Shape::kFixed32s},
                                    {103, Shape::kVarint}};
constexpr Field kExampleBatchFields[] = {{1, Shape::kMessage, kFeatureColumn},
                                         {2, Shape::kMessage, kRawFeatureColumn},
                                         {3, Shape::kVarint},
                                         {100, Shape::kVarint}};
constexpr Field kRowMajorFields[] = {
    {1, Shape::kMessage, kNamedFeature}, {2, Shape::kMessage, kNamedRawFeature}, {3, Shape::kMessage, kExampleType}};
constexpr Field kTfExampleFields[] = {{1, Shape::kMessage, kTfFeatures}};
constexpr Field kLineIdFields[] = {
    {2, Shape::kFixed64s}, {3, Shape::kVarint},    {4, Shape::kFixed64s}, {6, Shape::kVarints}, {19, Shape::kVarint},
    {23, Shape::kVarints}, {27, Shape::kFixed32s}, {39, Shape::kVarints}, {41, Shape::kText},   {48, Shape::kText},
    {49, Shape::kText},    {87, Shape::kFlag},     {145, Shape::kVarint}, {235, Shape::kText}};
constexpr Field kLabelTagFields[] = {{1, Shape::kVarint}, {2, Shape::kFixed32s}};
constexpr Field kInstanceFeatureFields[] = {{1, Shape::kText},
                                            {2, Shape::kFixed64s},
                                            {3, Shape::kFixed32s},
                                            {4, Shape::kVarints},
                                            {5, Shape::kBytes},
                                            {6, Shape::kMessage, kFixed64List},
                                            {7, Shape::kMessage, kFloatList},
                                            {8, Shape::kMessage, kVarintList},
                                            {9, Shape::kMessage, kBytesList}};
constexpr Field kFixed64ListFields[] = {{1, Shape::kFixed64s}};
constexpr Field kFloatListFields[] = {{1, Shape::kFixed32s}};
constexpr Field kVarintListFields[] = {{1, Shape::kVarints}};
constexpr Field kBytesListFields[] = {{1, Shape::kBytes}};
constexpr Field kFixed64ListsFields[] = {{1, Shape::kMessage, kFixed64List}};
constexpr Field kFloatListsFields[] = {{1, Shape::kMessage, kFloatList}};
constexpr Field kDoubleListsFields[] = {{1, Shape::kMessage, kDoubleList}};
constexpr Field kVarintListsFields[] = {{1, Shape::kMessage, kVarintList}};
constexpr Field kBytesListsFields[] = {{1, Shape::kMessage, kBytesList}};
constexpr Field kFeatureFields[] = {{1, Shape::kMessage, kFixed64List},
                                    {2, Shape::kMessage, kFixed64List},
                                    {3, Shape::kMessage, kFloatList},
                                    {4, Shape::kMessage, kDoubleList},
                                    {5, Shape::kMessage, kVarintList},
                                    {6, Shape::kMessage, kBytesList},
                                    {7, Shape::kMessage, kFixed64Lists},
                                    {8, Shape::kMessage, kFloatLists},
                                    {9, Shape::kMessage, kDoubleLists},
                                    {10, Shape::kMessage, kVarintLists},
                                    {11, Shape::kMessage, kBytesLists},
                                    {12, Shape::kVarint},
                                    {13, Shape::kFixed32s},
                                    {14, Shape::kFixed64s},
                                    {15, Shape::kBytes},
                                    {16, Shape::kMessage, kFixed64Lists}};
constexpr Field kRawFeatureFields[] = {{1, Shape::kMessage, kFeature}};
constexpr Field kNamedFeatureFields[] = {
    {1, Shape::kText}, {2, Shape::kMessage, kFeature}, {3, Shape::kVarint}, {6, Shape::kVarint}};
constexpr Field kNamedRawFeatureFields[] = {{1, Shape::kText}, {2, Shape::kMessage, kRawFeature}, {3, Shape::kVarint}};
constexpr Field kFeatureColumnFields[] = {
    {1, Shape::kText}, {2, Shape::kMessage, kFeature}, {3, Shape::kFlag}, {4, Shape::kVarint}};
constexpr Field kRawFeatureColumnFields[] = {
    {1, Shape::kText}, {2, Shape::kMessage, kRawFeature}, {3, Shape::kFlag}, {4, Shape::kVarint}};
constexpr Field kTfFeaturesFields[] = {{1, Shape::kMessage, kTfFeatureEntry}};
constexpr Field kTfFeatureEntryFields[] = {{1, Shape::kText}, {2, Shape::kMessage, kTfFeature}};
constexpr Field kTfFeatureFields[] = {
    {1, Shape::kMessage, kBytesList}, {2, Shape::kMessage, kFloatList}, {3, Shape::kMessage, kVarintList}};

const MessageType kTypes[] = {
    {kInstanceFields},
    {kExampleFields},
    {kExampleBatchFields, false, 3},
    {kRowMajorFields, false, 3},
    {kTfExampleFields},
    {kLineIdFields, true},  // production LineIds have many more fields than are published
    {kLabelTagFields},
    {kInstanceFeatureFields},
    {kFixed64ListFields},
    {kFloatListFields},
    {kFixed64ListFields},
    {kVarintListFields},
    {kBytesListFields},
    {kFixed64ListsFields},
    {kFloatListsFields},
    {kDoubleListsFields},
    {kVarintListsFields},
    {kBytesListsFields},
    {kFeatureFields},
    {kRawFeatureFields},
    {kNamedFeatureFields},
    {kNamedRawFeatureFields},
    {kFeatureColumnFields},
    {kRawFeatureColumnFields},
    {kTfFeaturesFields},
    {kTfFeatureEntryFields},
    {kTfFeatureFields},
};
static_assert(std::size(kTypes) == kNoType);

// UTF-8 that a person could have typed: names and ids, no control characters.
bool is_text(Bytes bytes) noexcept {
  for (std::size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned>(bytes[i]);
    std::size_t more = 0;
    if (lead < 0x20 || lead == 0x7f) return false;
    if (lead >= 0x80) {
      if (lead >= 0xc2 && lead < 0xe0)
        more = 1;
      else if (lead >= 0xe0 && lead < 0xf0)
        more = 2;
      else if (lead >= 0xf0 && lead < 0xf5)
        more = 3;
      else
        return false;
    }
    if (bytes.size() - i <= more) return false;
    for (std::size_t k = 1; k <= more; ++k) {
      if ((static_cast<unsigned>(bytes[i + k]) & 0xc0U) != 0x80) return false;
    }
    i += more + 1;
  }
  return true;
}

// Walks one message. Types nest at most five deep, so the recursion is bounded whatever the bytes.
class Walker {
 public:
  MessageFit fit;

  // False when the bytes cannot be this message.
  bool walk(Bytes bytes, Type type) {
    const MessageType& message = kTypes[type];
    bool has_needed = message.needed == 0;
    wire::Reader reader(bytes);
    while (!reader.done()) {
      const wire::Tag tag = reader.tag();
      const Field* const end = message.fields.data() + message.fields.size();
      const Field* const field =
          std::find_if(message.fields.data(), end, [&](const Field& each) { return each.number == tag.field; });
      if (field == end) {
        reader.skip(tag);
        if (!message.is_open) ++fit.unknown;
        continue;
      }
      if (!value(reader, tag, *field)) return false;
      ++fit.known;
      has_needed = has_needed || tag.field == message.needed;
    }
    if (!has_needed) ++fit.unknown;
    return true;
  }

 private:
  bool value(wire::Reader& reader, const wire::Tag& tag, const Field& field) {
    switch (field.shape) {
      case Shape::kVarint:
      case Shape::kFlag:
        return tag.wire == wire::kVarint && (reader.varint() < 2 || field.shape == Shape::kVarint);
      case Shape::kVarints:
        return varints(reader, tag);
      case Shape::kFixed64s:
        return fixed(reader, tag, wire::kFixed64, 8);
      case Shape::kFixed32s:
        return fixed(reader, tag, wire::kFixed32, 4);
      case Shape::kText:
        return tag.wire == wire::kBlock && is_text(reader.block());
      case Shape::kBytes:
        if (tag.wire != wire::kBlock) return false;
        reader.block();
        return true;
      case Shape::kMessage:
        return tag.wire == wire::kBlock && walk(reader.block(), field.type);
    }
    return false;
  }

  static bool varints(wire::Reader& reader, const wire::Tag& tag) {
    if (tag.wire == wire::kVarint) return reader.varint(), true;
    if (tag.wire != wire::kBlock) return false;
    wire::Reader inner(reader.block());
    while (!inner.done()) inner.varint();
    return true;
  }

  static bool fixed(wire::Reader& reader, const wire::Tag& tag, std::uint32_t wire_type, std::size_t width) {
    if (tag.wire == wire_type) return reader.skip(tag), true;
    return tag.wire == wire::kBlock && reader.block().size() % width == 0;
  }
};

void note_words(const FrameHeader& header, FramingProbe& probe) noexcept {
  const bool is_zero =
      header.lagrangex_word == 0 && header.prefix_word == 0 && header.skipped_word == 0 && header.sort_id.empty();
  probe.has_zero_words = probe.has_zero_words && is_zero;
  probe.has_high_words = probe.has_high_words || header.lagrangex_word >> 32 != 0;
}

}  // namespace

RecordFit fit_messages(Bytes payload) {
  RecordFit fits;
  for (std::size_t i = 0; i < kMessages; ++i) {
    Walker walker;
    bool is_possible = false;
    try {
      is_possible = walker.walk(payload, static_cast<Type>(i));
    } catch (const wire::Malformed&) {
      is_possible = false;
    }
    if (is_possible) {
      fits[i] = walker.fit;
    } else {
      fits[i].misfits = 1;
    }
  }
  return fits;
}

FramingProbe probe_framing(const Framing& framing, Bytes bytes, std::size_t most_records, bool is_whole) {
  FramingProbe probe;
  if (framing.kind == Framing::Kind::kBare) {
    probe.is_cut = !is_whole;
    if (!is_whole || bytes.empty()) return probe;
    probe.records = 1;
    probe.bytes = bytes.size();
    probe.fit = fit_messages(bytes);
    return probe;
  }
  std::size_t at = 0;
  while (at < bytes.size() && probe.records < most_records) {
    const Bytes rest = bytes.subspan(at);
    const HeaderScan scan = scan_header(framing, rest);
    if (!scan.damage.empty()) {
      probe.damage = "byte " + std::to_string(at) + ": " + scan.damage;
      return probe;
    }
    if (!scan.header.has_value() ||
        rest.size() < scan.header->bytes + scan.header->payload_size + scan.header->footer_bytes) {
      probe.is_cut = true;
      if (is_whole) probe.damage = "byte " + std::to_string(at) + ": the stream ends inside a record";
      return probe;
    }
    const FrameHeader& header = *scan.header;
    const auto size = static_cast<std::size_t>(header.payload_size);
    const std::size_t end = header.bytes + size + header.footer_bytes;
    const Bytes payload = rest.subspan(header.bytes, size);
    if (framing.kind == Framing::Kind::kTfRecord) {
      RecordScanner scanner(rest.first(end), at, "");
      Bytes record;
      try {
        (void)scanner.next(record);
      } catch (const std::exception&) {
        probe.damage = "byte " + std::to_string(at) + ": the checksum of the record does not match";
        return probe;
      }
    }
    note_words(header, probe);
    ++probe.records;
    if (size == 0) {
      ++probe.empty;
    } else {
      const RecordFit fit = fit_messages(payload);
      for (std::size_t i = 0; i < kMessages; ++i) probe.fit[i].add(fit[i]);
    }
    at += end;
    probe.bytes = at;
  }
  return probe;
}

}  // namespace engine::data
