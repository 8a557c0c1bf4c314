#include "engine/entry_dump.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "engine/error.h"
#include "engine/optimizer.h"
#include "wire.h"

namespace engine {
namespace {

using wire::Malformed;
using wire::Reader;
using wire::Tag;
using wire::Writer;

// Field numbers of the messages.
constexpr std::uint32_t kEntryId = 1;
constexpr std::uint32_t kEntryNum = 2;
constexpr std::uint32_t kEntryOpt = 3;
constexpr std::uint32_t kEntryTime = 4;
constexpr std::uint32_t kOptDump = 1;
constexpr std::uint32_t kMetaName = 1;
constexpr std::uint32_t kMetaEntries = 2;

// A member of `SingleOptimizerDump` and its fields; a field's number is its place here, counted from 1.
struct DumpMessage {
  std::string_view optimizer;
  std::uint32_t number;
  std::array<std::string_view, 5> fields;
};

constexpr std::array<DumpMessage, 13> kMessages{{
    {"adagrad", 1, {"norm"}},
    {"sgd", 2, {}},
    {"ftrl", 3, {"zero", "norm"}},
    {"dynamic_wd_adagrad", 4, {"norm", "last_update_step"}},
    {"adadelta", 6, {"accum", "accum_update"}},
    {"adam", 7, {"m", "v", "beta1_power", "beta2_power"}},
    {"amsgrad", 8, {"m", "v", "vhat", "beta1_power", "beta2_power"}},
    {"momentum", 9, {"n"}},
    {"rmsprop", 11, {"n"}},
    {"rmspropv2", 12, {"n"}},
    {"group_ftrl", 13, {"zero", "norm"}},
    {"batch_softmax", 14, {"global_step"}},
    {"group_adagrad", 15, {"grad_square_sum"}},
}};

std::string message_name(std::uint32_t number) {
  for (const auto& message : kMessages) {
    if (message.number == number) return std::string(message.optimizer);
  }
  return "an unknown optimizer (number " + std::to_string(number) + ")";
}

std::string slice_name(const DumpSchema& schema, const DumpSlice& slice) {
  return "slice " + std::to_string(&slice - schema.slices.data()) + " (" + slice.optimizer + ")";
}

DumpField make_field(const DumpMessage& message, const StateField& state) {
  for (std::size_t i = 0; i < message.fields.size(); ++i) {
    if (!message.fields[i].empty() && message.fields[i] == state.name) {
      return {state.name, static_cast<std::uint32_t>(i + 1), state.offset, state.words, state.is_int64};
    }
  }
  throw ConfigError("optimizer '" + std::string(message.optimizer) + "' keeps '" + state.name +
                    "', for which EntryDump has no field; such a table cannot be converted");
}

DumpSlice make_slice(const SliceConfig& config, const Optimizer& optimizer) {
  DumpSlice slice;
  slice.dim = config.dim;
  slice.optimizer = config.optimizer.kind;
  const auto states = optimizer.state_fields();
  for (const auto& message : kMessages) {
    if (message.optimizer != config.optimizer.kind) continue;
    slice.dump_number = message.number;
    for (const auto& state : states) slice.fields.push_back(make_field(message, state));
    // The original writes fields by number, whatever their order in memory.
    for (std::size_t i = 1; i < slice.fields.size(); ++i) {
      for (std::size_t k = i; k > 0 && slice.fields[k].number < slice.fields[k - 1].number; --k) {
        std::swap(slice.fields[k], slice.fields[k - 1]);
      }
    }
    return slice;
  }
  if (!states.empty()) {
    throw ConfigError("optimizer '" + slice.optimizer +
                      "' has state, but EntryDump has no message for it; such a table cannot be converted");
  }
  return slice;
}

// Decodes one record into one row.
class RowDecoder {
 public:
  RowDecoder(const DumpSchema& schema, bool allow_missing_state, float* row)
      : schema_(schema), allow_missing_state_(allow_missing_state), row_(row) {}

  void entry(std::span<const std::byte> record) {
    Reader reader(record);
    while (!reader.done()) {
      const Tag tag = reader.tag();
      switch (tag.field) {
        case kEntryId:
          if (tag.wire != wire::kFixed64) throw Malformed{"field 'id' is not a fixed64"};
          id_ = reader.fixed<std::int64_t>();
          has_id_ = true;
          break;
        case kEntryNum:
          values(reader, tag);
          break;
        case kEntryOpt:
          if (tag.wire != wire::kBlock) throw Malformed{"field 'opt' is not a message"};
          optimizers(reader.block());
          break;
        case kEntryTime:
          if (tag.wire != wire::kVarint) throw Malformed{"field 'last_update_ts_sec' is not a number"};
          time(static_cast<std::int64_t>(reader.varint()));
          break;
        default:
          reader.skip(tag);
      }
    }
    if (!has_id_) throw Malformed{"field 'id' is missing; is this an EntryDump file?"};
    while (const DumpSlice* slice = next_slice()) missing(*slice, "has no element in the record's 'opt'");
  }

  [[nodiscard]] std::int64_t id() const noexcept { return id_; }
  [[nodiscard]] std::uint32_t time_s() const noexcept { return time_s_; }
  [[nodiscard]] std::uint32_t value_count() const noexcept { return static_cast<std::uint32_t>(value_count_); }

 private:
  void values(Reader& reader, const Tag& tag) {
    value_count_ += reader.floats(tag, row_ + value_count_, schema_.dim - value_count_);
    if (value_count_ > schema_.dim) {
      throw Malformed{"field 'num' has more than the table's " + std::to_string(schema_.dim) +
                      " values; check the slice dims"};
    }
  }

  void time(std::int64_t seconds) {
    if (seconds < 0 || seconds > std::numeric_limits<std::uint32_t>::max()) {
      throw Malformed{"field 'last_update_ts_sec' is " + std::to_string(seconds) +
                      ", which is not a time in unix seconds"};
    }
    time_s_ = static_cast<std::uint32_t>(seconds);
  }

  // The next slice whose optimizer writes an element, or null.
  const DumpSlice* next_slice() {
    while (slice_ < schema_.slices.size()) {
      const DumpSlice& slice = schema_.slices[slice_++];
      if (slice.dump_number != 0) return &slice;
    }
    return nullptr;
  }

  void missing(const DumpSlice& slice, const std::string& what) const {
    if (slice.fields.empty() || allow_missing_state_) return;
    throw Malformed{slice_name(schema_, slice) + " " + what + "; allow missing state to start it as new"};
  }

  void optimizers(std::span<const std::byte> bytes) {
    Reader reader(bytes);
    while (!reader.done()) {
      const Tag tag = reader.tag();
      if (tag.field != kOptDump || tag.wire != wire::kBlock) {
        reader.skip(tag);
        continue;
      }
      const DumpSlice* slice = next_slice();
      if (slice == nullptr) throw Malformed{"the record has optimizer state of more slices than the table"};
      element(*slice, reader.block());
    }
  }

  void element(const DumpSlice& slice, std::span<const std::byte> bytes) {
    Reader reader(bytes);
    if (reader.done()) return missing(slice, "has an empty element in the record's 'opt'");
    while (!reader.done()) {
      const Tag tag = reader.tag();
      if (tag.field != slice.dump_number || tag.wire != wire::kBlock) {
        throw Malformed{slice_name(schema_, slice) + " finds the state of " + message_name(tag.field) +
                        "; use the optimizer the file was written with"};
      }
      state(slice, reader.block());
    }
  }

  void state(const DumpSlice& slice, std::span<const std::byte> bytes) {
    std::array<std::size_t, 16> filled{};
    Reader reader(bytes);
    while (!reader.done()) {
      const Tag tag = reader.tag();
      const DumpField* field = find(slice, tag.field);
      if (field == nullptr) {
        reader.skip(tag);
        continue;
      }
      float* out = row_ + slice.state_offset + field->offset;
      std::size_t& have = filled[field->number];
      if (field->is_int64) {
        if (tag.wire != wire::kVarint)
          throw Malformed{slice_name(schema_, slice) + ": field '" + field->name + "' is not a number"};
        const std::uint64_t number = reader.varint();
        std::memcpy(out, &number, sizeof number);
        have = field->words;
      } else {
        have += reader.floats(tag, out + have, field->words - have);
      }
      if (have > field->words) {
        throw Malformed{slice_name(schema_, slice) + ": field '" + field->name + "' has more than " +
                        std::to_string(field->words) + " values; check the slice dims"};
      }
    }
    for (const auto& field : slice.fields) {
      if (filled[field.number] < field.words) {
        missing(slice, "has " + std::to_string(filled[field.number]) + " of " + std::to_string(field.words) +
                           " values of '" + field.name + "'");
      }
    }
  }

  static const DumpField* find(const DumpSlice& slice, std::uint32_t number) noexcept {
    for (const auto& field : slice.fields) {
      if (field.number == number) return &field;
    }
    return nullptr;
  }

  const DumpSchema& schema_;
  bool allow_missing_state_;
  float* row_;
  std::int64_t id_ = 0;
  bool has_id_ = false;
  std::uint32_t time_s_ = 0;
  std::size_t value_count_ = 0;
  std::size_t slice_ = 0;
};

std::uint64_t load_int64(const float* words) noexcept {
  std::uint64_t number = 0;
  std::memcpy(&number, words, sizeof number);
  return number;
}

constexpr std::size_t kFloatBytes = 1 + sizeof(float);
constexpr std::size_t kIdBytes = 1 + sizeof(std::int64_t);

// Bytes of a slice's state message, without its tag and length.
std::size_t state_bytes(const DumpSlice& slice, const float* row) noexcept {
  std::size_t bytes = 0;
  for (const auto& field : slice.fields) {
    const float* words = row + slice.state_offset + field.offset;
    bytes += field.is_int64 ? 1 + wire::varint_bytes(load_int64(words)) : kFloatBytes * field.words;
  }
  return bytes;
}

// A message of `bytes` inside another: tag, length, content.
constexpr std::size_t nested_bytes(std::size_t bytes) noexcept { return 1 + wire::varint_bytes(bytes) + bytes; }

void write_state(Writer& writer, const DumpSlice& slice, const float* row) noexcept {
  const std::size_t bytes = state_bytes(slice, row);
  writer.tag(kOptDump, wire::kBlock);
  writer.varint(nested_bytes(bytes));
  writer.tag(slice.dump_number, wire::kBlock);
  writer.varint(bytes);
  for (const auto& field : slice.fields) {
    const float* words = row + slice.state_offset + field.offset;
    if (field.is_int64) {
      writer.tag(field.number, wire::kVarint);
      writer.varint(load_int64(words));
    } else {
      writer.floats(field.number, words, field.words);
    }
  }
}

void write_entry(std::vector<std::byte>& out, const DumpSchema& schema, std::int64_t id, std::uint32_t time_s,
                 const float* row) {
  std::size_t opt_bytes = 0;
  for (const auto& slice : schema.slices) {
    if (slice.dump_number != 0) opt_bytes += nested_bytes(nested_bytes(state_bytes(slice, row)));
  }
  const std::size_t begin = begin_record(out);
  const std::size_t payload = out.size();
  out.resize(payload + kIdBytes + kFloatBytes * schema.dim + nested_bytes(opt_bytes) + 1 + wire::varint_bytes(time_s));
  Writer writer(out.data() + payload);
  writer.tag(kEntryId, wire::kFixed64);
  writer.fixed(id);
  writer.floats(kEntryNum, row, schema.dim);
  writer.tag(kEntryOpt, wire::kBlock);
  writer.varint(opt_bytes);
  for (const auto& slice : schema.slices) {
    if (slice.dump_number != 0) write_state(writer, slice, row);
  }
  writer.tag(kEntryTime, wire::kVarint);
  writer.varint(time_s);
  finish_record(out, begin);
}

}  // namespace

DumpSchema make_dump_schema(std::span<const SliceConfig> slices) {
  DumpSchema schema;
  for (const auto& config : slices) schema.dim += config.dim;
  schema.row_words = schema.dim;
  schema.initial_row.resize(schema.dim, 0.0F);
  for (const auto& config : slices) {
    const auto optimizer = make_optimizer(config);
    DumpSlice slice = make_slice(config, *optimizer);
    slice.state_offset = schema.row_words;
    schema.row_words += optimizer->state_words();
    schema.initial_row.resize(schema.row_words, 0.0F);
    optimizer->init(schema.initial_row.data() + slice.state_offset);
    schema.slices.push_back(std::move(slice));
  }
  return schema;
}

std::size_t decode_entries(const DumpSchema& schema, RecordScanner& scanner, std::size_t limit,
                           bool allow_missing_state, EntryBatch& batch) {
  std::size_t count = 0;
  std::span<const std::byte> record;
  while (count < limit && scanner.next(record)) {
    const std::size_t begin = batch.rows.size();
    batch.rows.insert(batch.rows.end(), schema.initial_row.begin(), schema.initial_row.end());
    RowDecoder decoder(schema, allow_missing_state, batch.rows.data() + begin);
    try {
      decoder.entry(record);
    } catch (const Malformed& malformed) {
      batch.rows.resize(begin);
      scanner.fail(malformed.reason);
    }
    batch.ids.push_back(decoder.id());
    batch.times_s.push_back(decoder.time_s());
    batch.value_counts.push_back(decoder.value_count());
    ++count;
  }
  return count;
}

void encode_entries(const DumpSchema& schema, std::span<const std::int64_t> ids, std::span<const std::uint32_t> times_s,
                    std::span<const float> rows, std::vector<std::byte>& out) {
  if (times_s.size() != ids.size() || rows.size() != ids.size() * schema.row_words) {
    throw DimensionMismatch(std::to_string(ids.size()) + " ids come with " + std::to_string(times_s.size()) +
                            " times and " + std::to_string(rows.size()) + " row words; a row has " +
                            std::to_string(schema.row_words));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    write_entry(out, schema, ids[i], times_s[i], rows.data() + i * schema.row_words);
  }
}

void encode_item(std::int64_t id, std::span<const float> values, std::vector<std::byte>& out) {
  const std::size_t begin = begin_record(out);
  const std::size_t payload = out.size();
  out.resize(payload + kIdBytes + kFloatBytes * values.size());
  Writer writer(out.data() + payload);
  writer.tag(kEntryId, wire::kFixed64);
  writer.fixed(id);
  writer.floats(kEntryNum, values.data(), values.size());
  finish_record(out, begin);
}

void encode_metadata(const TableMetadata& metadata, std::vector<std::byte>& out) {
  const std::size_t begin = begin_record(out);
  const std::size_t payload = out.size();
  out.resize(payload + nested_bytes(metadata.table_name.size()) + 1 + wire::varint_bytes(metadata.entries));
  Writer writer(out.data() + payload);
  writer.tag(kMetaName, wire::kBlock);
  writer.varint(metadata.table_name.size());
  writer.bytes(metadata.table_name.data(), metadata.table_name.size());
  writer.tag(kMetaEntries, wire::kVarint);
  writer.varint(metadata.entries);
  finish_record(out, begin);
}

TableMetadata decode_metadata(std::span<const std::byte> record, const RecordScanner& scanner) {
  TableMetadata metadata;
  try {
    Reader reader(record);
    while (!reader.done()) {
      const Tag tag = reader.tag();
      if (tag.field == kMetaName && tag.wire == wire::kBlock) {
        const auto bytes = reader.block();
        metadata.table_name.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      } else if (tag.field == kMetaEntries && tag.wire == wire::kVarint) {
        metadata.entries = reader.varint();
      } else {
        reader.skip(tag);
      }
    }
  } catch (const Malformed& malformed) {
    scanner.fail(malformed.reason);
  }
  return metadata;
}

}  // namespace engine
