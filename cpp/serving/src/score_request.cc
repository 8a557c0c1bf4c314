// score_request.cc: strict readers: a text or message that two readers could take differently is not accepted.
#include "serving/score_request.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <span>
#include <utility>

#include "engine/base64.h"
#include "wire_reader.h"

namespace serving {

using engine::data::RecordKind;

namespace {

constexpr int kStringType = 7;
constexpr std::size_t kLargestRecord = (std::size_t{1} << 30) - 1;

// Lays records out in one buffer.
class RecordList {
 public:
  explicit RecordList(std::size_t bytes) : buffer_(engine::data::Buffer::take(std::max<std::size_t>(bytes, 1))) {}

  // Memory for the next record.
  std::byte* add(std::size_t size) {
    entries_.push_back({used_, static_cast<std::uint32_t>(size), 0, used_});
    used_ += size;
    return buffer_->data() + entries_.back().begin;
  }
  std::shared_ptr<engine::data::Records> take() {
    auto records = std::make_shared<engine::data::Records>();
    records->source = "records";
    records->buffer = std::move(buffer_);
    records->entries = std::move(entries_);
    return records;
  }

 private:
  std::shared_ptr<engine::data::Buffer> buffer_;
  std::vector<engine::data::Records::Entry> entries_;
  std::uint64_t used_ = 0;
};

// --- protobuf ---

// A field that occurs twice is merged or replaced by other readers, so it is refused here.
bool first(bool& seen) { return !std::exchange(seen, true); }

bool read_shape(std::string_view bytes, std::uint64_t& elements) {
  WireReader reader(bytes);
  WireField field;
  elements = 1;
  while (reader.next(field)) {
    if (field.number == 3 && field.value != 0) return false;  // unknown_rank
    if (field.number != 2) continue;
    if (!field.is_block) return false;
    WireReader dims(field.block);
    WireField dim;
    std::uint64_t size = 0;
    bool has_size = false;
    while (dims.next(dim)) {
      if (dim.number != 1) continue;
      if (dim.is_block || !first(has_size)) return false;
      size = dim.value;
    }
    if (!dims.is_whole() || size > kLargestRecord) return false;
    elements *= size;
    if (elements > kLargestRecord) return false;
  }
  return reader.is_whole();
}

bool read_tensor(std::string_view bytes, std::vector<std::string_view>& records) {
  WireReader reader(bytes);
  WireField field;
  bool has_type = false;
  bool has_shape = false;
  std::uint64_t elements = 1;
  while (reader.next(field)) {
    switch (field.number) {
      case 1:
        if (field.is_block || field.value != kStringType || !first(has_type)) return false;
        break;
      case 2:
        if (!field.is_block || !first(has_shape) || !read_shape(field.block, elements)) return false;
        break;
      case 4:  // tensor_content
        return false;
      case 8:
        if (!field.is_block || field.block.size() > kLargestRecord) return false;
        records.push_back(field.block);
        break;
      default:
        break;
    }
  }
  return reader.is_whole() && has_type && !records.empty() && elements == records.size();
}

bool read_spec(std::string_view bytes, ScoreRequest& request) {
  WireReader reader(bytes);
  WireField field;
  bool seen[5] = {};
  while (reader.next(field)) {
    if (field.number < 1 || field.number > 4) continue;
    if (!field.is_block || !first(seen[field.number])) return false;
    if (field.number == 1) request.model = field.block;
    if (field.number == 3) request.signature = field.block;
    if (field.number == 4) request.label = field.block;
    if (field.number != 2) continue;
    WireReader wrapped(field.block);
    WireField value;
    request.version = 0;
    while (wrapped.next(value)) {
      if (value.number != 1) continue;
      if (value.is_block) return false;
      request.version = static_cast<std::int64_t>(value.value);
    }
    if (!wrapped.is_whole()) return false;
  }
  // A version and a label exclude each other; the Python path decides.
  return reader.is_whole() && !request.model.empty() && !(seen[2] && seen[4]);
}

// --- JSON ---

// Reads bodies whose strings have no escapes. A false result is final: the text is left to another reader.
class BodyReader {
 public:
  BodyReader(std::string_view text, ScoreRequest& request) : text_(text), request_(request) {}

  bool read() {
    bool has_signature = false;
    bool has_rows = false;
    if (!take('{')) return false;
    do {
      std::string_view key;
      if (!string(key) || !take(':')) return false;
      if (key == "signature_name") {
        std::string_view name;
        if (!first(has_signature) || !string(name)) return false;
        request_.signature = name;
      } else if (key == "instances" || key == "inputs") {
        if (!first(has_rows)) return false;
        request_.is_by_row = key == "instances";
        if (!(request_.is_by_row ? rows() : columns())) return false;
      } else {
        return false;
      }
    } while (take(','));
    if (!take('}')) return false;
    skip_spaces();
    return at_ == text_.size() && has_rows && !records.empty();
  }

  std::vector<std::string_view> records;  // base64

 private:
  static constexpr int kDeepest = 8;

  void skip_spaces() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  bool take(char sign) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != sign) return false;
    ++at_;
    return true;
  }
  bool string(std::string_view& value) {
    if (!take('"')) return false;
    const std::size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) return false;
    value = text_.substr(at_, end - at_);
    at_ = end + 1;
    // Escapes, control characters and text beyond ASCII are left to the other reader. Records need no check here:
    // their signs are checked when they are decoded.
    return value.size() > 64 || std::all_of(value.begin(), value.end(),
                                            [](char sign) { return sign >= ' ' && sign <= '~' && sign != '\\'; });
  }
  bool record_after_key() {
    std::string_view value;
    if (!take(':') || !string(value) || !take('}')) return false;
    records.push_back(value);
    return true;
  }
  // A record, or nested lists of records.
  bool value(int depth) {
    if (take('[')) {
      if (depth == kDeepest || take(']')) return false;
      do {
        if (!value(depth + 1)) return false;
      } while (take(','));
      return take(']');
    }
    std::string_view key;
    return take('{') && string(key) && key == "b64" && record_after_key();
  }
  bool rows() {
    if (!take('[')) return false;
    bool is_first = true;
    bool has_name = false;
    do {
      skip_spaces();
      if (at_ < text_.size() && text_[at_] == '[') {  // a plain value that is a list
        if (has_name || !value(1)) return false;
        is_first = false;
        continue;
      }
      std::string_view key;
      if (!take('{') || !string(key)) return false;
      if (key == "b64") {
        if (has_name || !record_after_key()) return false;
      } else {
        if (is_first) {
          request_.input = key;
          has_name = true;
        }
        if (!has_name || key != request_.input || !take(':') || !value(1) || !take('}')) return false;
      }
      is_first = false;
    } while (take(','));
    return take(']');
  }
  bool columns() {
    skip_spaces();
    if (at_ < text_.size() && text_[at_] == '[') return value(0);
    std::string_view key;
    if (!take('{') || !string(key)) return false;
    if (key == "b64") return record_after_key();
    request_.input = key;
    return take(':') && value(0) && take('}');
  }

  std::string_view text_;
  ScoreRequest& request_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<RecordKind> record_kind(std::string_view input) {
  if (input == "instances") return RecordKind::kInstance;
  if (input == "examples") return RecordKind::kExample;
  if (input == "example_batch") return RecordKind::kExampleBatch;
  if (input == "tf_examples") return RecordKind::kTfExample;
  return std::nullopt;
}

std::optional<ScoreRequest> read_predict_message(std::string_view message) {
  ScoreRequest request;
  WireReader reader(message);
  WireField field;
  bool has_spec = false;
  bool has_input = false;
  std::vector<std::string_view> records;
  while (reader.next(field)) {
    if (field.number == 1) {
      if (!field.is_block || !first(has_spec) || !read_spec(field.block, request)) return std::nullopt;
    } else if (field.number == 2) {
      if (!field.is_block || !first(has_input)) return std::nullopt;
      WireReader entry(field.block);
      WireField part;
      bool seen[3] = {};
      while (entry.next(part)) {
        if (part.number > 2) continue;
        if (!part.is_block || !first(seen[part.number])) return std::nullopt;
        if (part.number == 1) request.input = part.block;
        if (part.number == 2 && !read_tensor(part.block, records)) return std::nullopt;
      }
      if (!entry.is_whole()) return std::nullopt;
    } else if (field.number == 3) {
      if (!field.is_block) return std::nullopt;
      request.wanted.emplace_back(field.block);
    }
  }
  // A message names its input; an empty name is that of the only one in JSON.
  if (!reader.is_whole() || !has_spec || request.input.empty() || records.empty()) return std::nullopt;
  std::size_t bytes = 0;
  for (const auto& record : records) bytes += record.size();
  RecordList list(bytes);
  for (const auto& record : records) {
    std::byte* memory = list.add(record.size());
    if (!record.empty()) std::memcpy(memory, record.data(), record.size());
  }
  request.records = list.take();
  return request;
}

std::optional<ScoreRequest> read_predict_json(std::string_view body, std::size_t max_values) {
  ScoreRequest request;
  BodyReader reader(body, request);
  if (!reader.read()) return std::nullopt;
  // A record is an object in a list or in an object; signs of values within base64 do not occur.
  if (reader.records.size() > max_values / 4) return std::nullopt;
  std::size_t bytes = 0;
  std::vector<std::size_t> sizes;
  for (const auto& text : reader.records) {
    const auto size = engine::base64_size(text);
    if (!size || *size > kLargestRecord) return std::nullopt;
    sizes.push_back(*size);
    bytes += *size;
  }
  RecordList list(bytes);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (!engine::decode_base64(reader.records[i], list.add(sizes[i]))) return std::nullopt;
  }
  request.records = list.take();
  return request;
}

bool read_predict_path(std::string_view path, ScoreRequest& request) {
  constexpr std::string_view kBegin = "/v1/models/";
  constexpr std::string_view kEnd = ":predict";
  if (!path.starts_with(kBegin) || !path.ends_with(kEnd) || path.size() <= kBegin.size() + kEnd.size()) return false;
  path.remove_prefix(kBegin.size());
  path.remove_suffix(kEnd.size());
  if (path.find('%') != std::string_view::npos) return false;
  const std::size_t slash = path.find('/');
  request.model = path.substr(0, slash);
  if (request.model.empty()) return false;
  if (slash == std::string_view::npos) return true;
  path.remove_prefix(slash + 1);
  constexpr std::string_view kVersions = "versions/";
  constexpr std::string_view kLabels = "labels/";
  if (path.starts_with(kVersions)) {
    path.remove_prefix(kVersions.size());
    std::int64_t version = 0;
    const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), version);
    if (error != std::errc{} || end != path.data() + path.size() || path.size() > 18 || path.front() == '-')
      return false;
    request.version = version;
    return true;
  }
  if (!path.starts_with(kLabels)) return false;
  path.remove_prefix(kLabels.size());
  request.label = path;
  return !path.empty() && path.find_first_of("/:") == std::string_view::npos;
}

}  // namespace serving
