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

// Whether a named_feature has a name and one list or number.
bool is_feature(std::string_view named) {
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

bool ExampleReader::read(std::string_view record, std::string_view record_key,
                         std::optional<std::int64_t> record_time, ExampleEvent& event) {
  event.codes.clear();
  event.payload.clear();
  line_id_.clear();
  Line line;
  bool has_line = false;
  FieldReader reader(record);
  Field field{};
  while (reader.next(field)) {
    if (field.number == 1) {
      if (field.type != kBytes || !is_feature(field.body)) return false;
      event.payload.append(field.whole);
    } else if (field.number == kLineId) {
      if (has_line || field.type != kBytes || !read_line(field.body, line, event.codes, line_id_)) return false;
      has_line = true;
      put_varint(event.payload, make_tag(kLineId, kBytes));
      put_varint(event.payload, line_id_.size());
      event.payload.append(line_id_);
    } else if ((field.number == kWeight && field.type == kFixed32) || (field.number == 103 && field.type == kVarint)) {
      event.payload.append(field.whole);
    } else {
      return false;
    }
  }
  if (reader.is_broken() || !has_line || !line.item) return false;
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

namespace {

// Fields of a message in the order of their numbers; fields of equal numbers stay in the order of `put`.
class SortedFields {
 public:
  void clear() {
    buffer_.clear();
    parts_.clear();
  }

  void put(std::uint32_t number, std::string_view whole) {
    start(number);
    buffer_.append(whole);
    finish();
  }

  void put_int(std::uint32_t number, std::uint64_t value) {
    start(number);
    put_varint(buffer_, make_tag(number, kVarint));
    put_varint(buffer_, value);
    finish();
  }

  template <class Number>
  void put_number(std::uint32_t number, WireType type, Number value) {
    start(number);
    put_varint(buffer_, make_tag(number, type));
    put_fixed(buffer_, value);
    finish();
  }

  void put_body(std::uint32_t number, std::string_view body) {
    start(number);
    put_varint(buffer_, make_tag(number, kBytes));
    put_varint(buffer_, body.size());
    buffer_.append(body);
    finish();
  }

  [[nodiscard]] std::size_t size() const noexcept { return buffer_.size(); }

  void write(std::string& out) {
    for (std::size_t next = 1; next < parts_.size(); ++next) {  // insertion sort: a few parts, nearly in order
      for (std::size_t at = next; at > 0 && parts_[at].number < parts_[at - 1].number; --at) {
        std::swap(parts_[at], parts_[at - 1]);
      }
    }
    for (const Part& part : parts_) out.append(buffer_, part.begin, part.size);
  }

 private:
  struct Part {
    std::uint32_t number;
    std::uint32_t begin;
    std::uint32_t size;
  };

  void start(std::uint32_t number) { parts_.push_back({number, static_cast<std::uint32_t>(buffer_.size()), 0}); }
  void finish() { parts_.back().size = static_cast<std::uint32_t>(buffer_.size()) - parts_.back().begin; }

  std::string buffer_;
  std::vector<Part> parts_;
};

void put_codes(SortedFields& fields, std::uint32_t number, const std::int32_t* codes, std::size_t count) {
  if (count == 0) return;
  std::string packed;
  for (std::size_t index = 0; index < count; ++index) put_varint(packed, static_cast<std::uint64_t>(codes[index]));
  fields.put_body(number, packed);
}

bool is_replaced(std::uint32_t number, const Rows::Row& row, std::int64_t join_time) {
  switch (number) {
    case kItem:
    case kActions:
    case kPreActions:
    case kSampleRate:
    case kKey:
    case kEventTime:
    case kEmission:
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

void write_line(const Rows& rows, const Rows::Row& row, std::string_view served, std::int64_t join_time,
                std::string& out) {
  static thread_local SortedFields fields;
  fields.clear();
  bool has_req_time = false;
  FieldReader reader(served);
  Field field{};
  while (reader.next(field)) {
    if (is_replaced(field.number, row, join_time)) continue;
    has_req_time = has_req_time || field.number == kReqTime;
    fields.put(field.number, field.whole);
  }
  if (!has_req_time) fields.put_int(kReqTime, static_cast<std::uint64_t>(floor_seconds(row.time)));
  fields.put_number(kItem, kFixed64, row.item);
  const std::int32_t* codes = rows.codes.data() + row.codes_begin;
  put_codes(fields, kActions, codes, row.actions);
  put_codes(fields, kPreActions, codes + row.actions, row.pre_actions);
  fields.put_number(kSampleRate, kFixed32, row.sample_rate);
  fields.put_body(kKey, rows.key(row));
  fields.put_int(kEventTime, static_cast<std::uint64_t>(row.time));
  fields.put_int(kEmission, row.emission);
  if (row.ingest_time != 0) fields.put_int(kIngestTime, static_cast<std::uint64_t>(row.ingest_time));
  if (join_time != 0) fields.put_int(kJoinTime, static_cast<std::uint64_t>(join_time));
  put_varint(out, make_tag(kLineId, kBytes));
  put_varint(out, fields.size());
  fields.write(out);
}

}  // namespace

void assemble(const Rows& rows, std::size_t index, std::size_t tasks, std::string_view payload,
              std::int64_t join_time, std::string& out) {
  const Rows::Row& row = rows.rows[index];
  FieldReader reader(payload);
  Field field{};
  std::string line;
  std::string tail;
  float weight = 0;
  while (reader.next(field)) {
    if (field.number == kLineId && field.type == kBytes) {
      line.append(field.body);
    } else if (field.number == kWeight && field.type == kFixed32) {
      const auto bits = static_cast<std::uint32_t>(field.value);
      std::memcpy(&weight, &bits, sizeof weight);
    } else if (field.number == kLabel) {
      continue;
    } else if (field.number > kWeight) {
      tail.append(field.whole);
    } else {
      out.append(field.whole);
    }
  }
  if (reader.is_broken()) throw engine::RecordCorrupt("the payload of an impression is not an Example");
  write_line(rows, row, line, join_time, out);
  put_varint(out, make_tag(kLabel, kBytes));
  put_varint(out, tasks * sizeof(float));
  out.append(reinterpret_cast<const char*>(rows.labels.data() + index * tasks), tasks * sizeof(float));
  if (row.weight != 1) weight = static_cast<float>((weight == 0 ? 1.0 : static_cast<double>(weight)) * row.weight);
  if (weight != 0) {
    put_varint(out, make_tag(kWeight, kFixed32));
    put_fixed(out, weight);
  }
  out.append(tail);
}

}  // namespace joiner
