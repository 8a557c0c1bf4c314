// examples.cc: see examples.h.
#include "joiner/examples.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/error.h"
#include "wire.h"

namespace joiner {

namespace {

// Fields of Example and LineId.
enum ExampleField : std::uint32_t { kLineId = 100, kLabel = 101, kWeight = 102 };
enum LineField : std::uint32_t {
  kReqTime = 3,
  kItem = 4,
  kActions = 6,
  kPreActions = 23,
  kSampleRate = 27,
  kKey = 1000,
  kEventTime = 1001,
  kEmission = 1002,
  kIngestTime = 1003,
  kJoinTime = 1004,
  kEventKind = 1007,
  kEventId = 1008,
  kCauseTime = 1009,
};

constexpr std::int64_t kMaxTime = std::int64_t{1} << 62;

// --- checks of features ----------------------------------------------------------------------------------------------

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<std::uint8_t>(byte) < 0x80; });
}

bool is_list(std::string_view list, std::uint32_t arm) {
  FieldReader reader(list);
  Field field{};
  while (reader.next(field)) {
    if (field.number != 1 || field.type != kBytes) return false;
    switch (arm) {
      case 1:  // fid_v1_list, fid_v2_list, double_list
      case 2:
      case 4:
        if (field.body.size() % 8 != 0) return false;
        break;
      case 3:  // float_list
        if (field.body.size() % 4 != 0) return false;
        break;
      case 5: {  // int64_list
        FieldReader numbers(field.body);
        std::uint64_t number = 0;
        while (!numbers.is_at_end()) {
          if (!numbers.varint(number)) return false;
        }
        break;
      }
      default:  // bytes_list
        break;
    }
  }
  return !reader.is_broken();
}

// Whether a named_feature has a name and one list or number. Sets `is_fixed` if all values of its size are valid.
bool is_feature(std::string_view named, bool& is_fixed) {
  is_fixed = true;
  FieldReader reader(named);
  Field field{};
  while (reader.next(field)) {
    if (field.number == 1 && field.type == kBytes && is_ascii(field.body)) continue;
    if (field.number == 3 && field.type == kVarint) continue;
    if (field.number != 2 || field.type != kBytes) return false;
    FieldReader arms(field.body);
    Field arm{};
    if (!arms.next(arm)) {
      if (arms.is_broken()) return false;
      continue;
    }
    is_fixed = is_fixed && arm.number <= 4;
    if (arm.number <= 6) {
      if (arm.type != kBytes || !is_list(arm.body, arm.number)) return false;
    } else {
      constexpr std::array<std::uint32_t, 4> kTypes{kVarint, kFixed32, kFixed64, kBytes};
      if (arm.number < 12 || arm.number > 15 || arm.type != kTypes[arm.number - 12]) return false;
    }
    if (!arms.is_at_end()) return false;
  }
  return !reader.is_broken();
}

// --- LineId ----------------------------------------------------------------------------------------------------------

struct Line {
  std::optional<std::uint64_t> item;
  std::optional<std::int64_t> event_time;
  std::optional<std::int64_t> req_time;
  std::string_view key;
  std::uint64_t kind = 0;
  std::uint64_t event_id = 0;
};

bool add_code(std::uint64_t value, std::vector<std::int32_t>& codes) {
  if (value > INT32_MAX) return false;
  codes.push_back(static_cast<std::int32_t>(value));
  return true;
}

bool read_line(std::string_view body, Line& line, std::vector<std::int32_t>& codes, std::string& kept) {
  FieldReader reader(body);
  Field field{};
  while (reader.next(field)) {
    bool is_kept = true;
    bool is_sound = true;
    switch (field.number) {
      case kReqTime:
        is_sound = field.type == kVarint;
        line.req_time = static_cast<std::int64_t>(field.value);
        break;
      case kItem:
        is_sound = field.type == kFixed64;
        line.item = field.value;
        is_kept = false;
        break;
      case kActions:
        if (field.type == kVarint) {
          is_sound = add_code(field.value, codes);
        } else if (field.type == kBytes) {
          FieldReader values(field.body);
          std::uint64_t value = 0;
          while (is_sound && !values.is_at_end()) is_sound = values.varint(value) && add_code(value, codes);
        } else {
          is_sound = false;
        }
        break;
      case kKey:
        is_sound = field.type == kBytes;
        line.key = field.body;
        is_kept = false;
        break;
      case kEventTime:
        is_sound = field.type == kVarint;
        line.event_time = static_cast<std::int64_t>(field.value);
        is_kept = false;
        break;
      case kEventKind:
        is_sound = field.type == kVarint && field.value <= 1;
        line.kind = field.value;
        break;
      case kEventId:
        is_sound = field.type == kFixed64;
        line.event_id = field.value;
        break;
      default:
        break;
    }
    if (!is_sound) return false;
    if (is_kept) kept.append(field.whole);
  }
  return !reader.is_broken();
}

}  // namespace

bool ExampleReader::read(std::string_view record, std::string_view record_key, std::optional<std::int64_t> record_time,
                         Packer& packer, ExampleEvent& event) {
  rest_.clear();
  event.codes.clear();
  event.payload.clear();
  line_id_.clear();
  Line line;
  bool has_line = false;
  std::size_t place = 0;
  FieldReader reader(record);
  Field field{};
  while (reader.next(field)) {
    if (field.number == 1) {
      if (packer.pack_known(field.whole, place, event.payload)) {
        ++place;
        continue;
      }
      bool is_fixed = false;
      if (field.type != kBytes || !is_feature(field.body, is_fixed)) return false;
      packer.pack_feature(field.whole, place++, is_fixed, event.payload);
    } else if (field.number == kLineId) {
      if (has_line || field.type != kBytes || !read_line(field.body, line, event.codes, line_id_)) return false;
      has_line = true;
      put_varint(rest_, make_tag(kLineId, kBytes));
      put_varint(rest_, line_id_.size());
      rest_.append(line_id_);
    } else if ((field.number == kWeight && field.type == kFixed32) || (field.number == 103 && field.type == kVarint)) {
      rest_.append(field.whole);
    } else {
      return false;
    }
  }
  if (reader.is_broken() || !has_line || !line.item) return false;
  Packer::pack_raw(rest_, event.payload);
  event.is_action = line.kind == 1;
  event.key = line.key.empty() ? record_key : line.key;
  event.item = *line.item;
  event.event_id = line.event_id;
  if (event.key.empty() || event.key.size() > kMaxKeyBytes || event.is_action == event.codes.empty()) return false;
  if (line.event_time) {
    event.time = *line.event_time;
  } else if (line.req_time) {
    if (*line.req_time > kMaxTime / 1000 || *line.req_time < -kMaxTime / 1000) return false;
    event.time = *line.req_time * 1000;
  } else if (record_time) {
    event.time = *record_time;
  } else {
    return false;
  }
  if (event.time > kMaxTime || event.time < -kMaxTime) return false;
  std::sort(event.codes.begin(), event.codes.end());
  event.codes.erase(std::unique(event.codes.begin(), event.codes.end()), event.codes.end());
  return true;
}

// --- rows ------------------------------------------------------------------------------------------------------------

void SortedFields::clear() {
  buffer_.clear();
  parts_.clear();
}

void SortedFields::start(std::uint32_t number) {
  parts_.push_back({number, static_cast<std::uint32_t>(buffer_.size()), 0});
}

void SortedFields::finish() { parts_.back().size = static_cast<std::uint32_t>(buffer_.size()) - parts_.back().begin; }

void SortedFields::put(std::uint32_t number, std::string_view whole) {
  start(number);
  buffer_.append(whole);
  finish();
}

void SortedFields::put_int(std::uint32_t number, std::uint64_t value) {
  start(number);
  put_varint(buffer_, make_tag(number, kVarint));
  put_varint(buffer_, value);
  finish();
}

void SortedFields::put_fixed64(std::uint32_t number, std::uint64_t value) {
  start(number);
  put_varint(buffer_, make_tag(number, kFixed64));
  put_fixed(buffer_, value);
  finish();
}

void SortedFields::put_float(std::uint32_t number, float value) {
  start(number);
  put_varint(buffer_, make_tag(number, kFixed32));
  put_fixed(buffer_, value);
  finish();
}

void SortedFields::put_body(std::uint32_t number, std::string_view body) {
  start(number);
  put_varint(buffer_, make_tag(number, kBytes));
  put_varint(buffer_, body.size());
  buffer_.append(body);
  finish();
}

void SortedFields::write(std::string& out) {
  for (std::size_t next = 1; next < parts_.size(); ++next) {  // insertion sort: a few parts, nearly in order
    for (std::size_t at = next; at > 0 && parts_[at].number < parts_[at - 1].number; --at) {
      std::swap(parts_[at], parts_[at - 1]);
    }
  }
  for (const Part& part : parts_) out.append(buffer_, part.begin, part.size);
}

namespace {

bool is_replaced(std::uint32_t number, const Rows::Row& row, std::int64_t join_time) {
  switch (number) {
    case kItem:
    case kActions:
    case kPreActions:
    case kSampleRate:
    case kKey:
    case kEventTime:
    case kEmission:
    case kCauseTime:
      return true;
    case kIngestTime:
      return row.ingest_time != 0;
    case kJoinTime:
      return join_time != 0;
    default:
      return false;
  }
}

std::int64_t floor_seconds(std::int64_t time) { return time / 1000 - (time % 1000 < 0 ? 1 : 0); }

}  // namespace

void ExampleWriter::write_line(const Rows& rows, const Rows::Row& row, std::int64_t join_time, std::string& out) {
  const auto put_codes = [&](std::uint32_t number, const std::int32_t* codes, std::size_t count) {
    if (count == 0) return;
    codes_.clear();
    for (std::size_t index = 0; index < count; ++index) put_varint(codes_, static_cast<std::uint64_t>(codes[index]));
    fields_.put_body(number, codes_);
  };
  fields_.clear();
  bool has_req_time = false;
  FieldReader reader(line_);
  Field field{};
  while (reader.next(field)) {
    if (is_replaced(field.number, row, join_time)) continue;
    has_req_time = has_req_time || field.number == kReqTime;
    fields_.put(field.number, field.whole);
  }
  if (!has_req_time) fields_.put_int(kReqTime, static_cast<std::uint64_t>(floor_seconds(row.time)));
  fields_.put_fixed64(kItem, row.item);
  const std::int32_t* codes = rows.codes.data() + row.codes_begin;
  put_codes(kActions, codes, row.actions);
  put_codes(kPreActions, codes + row.actions, row.pre_actions);
  fields_.put_float(kSampleRate, row.sample_rate);
  fields_.put_body(kKey, rows.key(row));
  fields_.put_int(kEventTime, static_cast<std::uint64_t>(row.time));
  fields_.put_int(kEmission, row.emission);
  fields_.put_int(kCauseTime, static_cast<std::uint64_t>(row.cause_time));
  if (row.ingest_time != 0) fields_.put_int(kIngestTime, static_cast<std::uint64_t>(row.ingest_time));
  if (join_time != 0) fields_.put_int(kJoinTime, static_cast<std::uint64_t>(join_time));
  put_varint(out, make_tag(kLineId, kBytes));
  put_varint(out, fields_.size());
  fields_.write(out);
}

void ExampleWriter::write(const Rows& rows, std::size_t index, std::size_t tasks, const Packer& packer,
                          std::int64_t join_time, std::string& out) {
  const Rows::Row& row = rows.rows[index];
  line_.clear();
  tail_.clear();
  float weight = 0;
  bool is_broken = false;
  const auto read_rest = [&](std::string_view bytes) {
    FieldReader reader(bytes);
    Field field{};
    while (reader.next(field)) {
      if (field.number == kLineId && field.type == kBytes) {
        line_.append(field.body);
      } else if (field.number == kWeight && field.type == kFixed32) {
        const auto bits = static_cast<std::uint32_t>(field.value);
        std::memcpy(&weight, &bits, sizeof weight);
      } else if (field.number == kLabel) {
        continue;
      } else if (field.number > kWeight) {
        tail_.append(field.whole);
      } else {
        out.append(field.whole);
      }
    }
    is_broken = is_broken || reader.is_broken();
  };
  packer.visit(
      rows.packed_payload(row),
      [&](std::string_view head, std::string_view values) { out.append(head).append(values); }, read_rest);
  if (is_broken) throw engine::RecordCorrupt("the payload of an impression is not an Example");
  write_line(rows, row, join_time, out);
  put_varint(out, make_tag(kLabel, kBytes));
  put_varint(out, tasks * sizeof(float));
  out.append(reinterpret_cast<const char*>(rows.labels.data() + index * tasks), tasks * sizeof(float));
  if (row.weight != 1) weight = static_cast<float>((weight == 0 ? 1.0 : static_cast<double>(weight)) * row.weight);
  if (weight != 0) {
    put_varint(out, make_tag(kWeight, kFixed32));
    put_fixed(out, weight);
  }
  out.append(tail_);
}

}  // namespace joiner
