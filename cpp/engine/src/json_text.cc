// json_text.cc: strings are found by their quotes, and floats are written by the standard library.
#include "engine/json_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace engine {
namespace {

constexpr std::string_view kKey = "b64";
constexpr std::string_view kSpaces = " \t\n\r";
constexpr auto kNowhere = std::string_view::npos;

// A string of a JSON text that has no escapes: where its quotes are.
struct Quoted {
  std::size_t begin;
  std::size_t end;
};

std::optional<Quoted> quoted_from(std::string_view json, std::size_t begin) {
  const std::size_t end = json.find('"', begin + 1);
  if (end == kNowhere || json.substr(begin, end - begin).find('\\') != kNowhere) return std::nullopt;
  return Quoted{begin, end};
}

// Where the object ends whose only value is the string after this key; the string in `value`.
std::optional<std::size_t> end_of_record(std::string_view json, Quoted key, std::string_view& value) {
  const std::size_t colon = json.find_first_not_of(kSpaces, key.end + 1);
  if (colon == kNowhere || json[colon] != ':') return std::nullopt;
  const std::size_t begin = json.find_first_not_of(kSpaces, colon + 1);
  if (begin == kNowhere || json[begin] != '"') return std::nullopt;
  const auto text = quoted_from(json, begin);
  if (!text) return std::nullopt;
  const std::size_t end = json.find_first_not_of(kSpaces, text->end + 1);
  if (end == kNowhere || json[end] != '}') return std::nullopt;
  value = json.substr(begin + 1, text->end - begin - 1);
  return end;
}

void append_number(float value, std::string& out) {
  if (!std::isfinite(value)) {
    out += std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    return;
  }
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  const std::string_view digits(text.data(), static_cast<std::size_t>(end - text.data()));
  out += digits;
  if (digits.find_first_of(".e") == kNowhere) out += ".0";  // readers tell numbers from whole numbers by it
}

}  // namespace

std::optional<LiftedRecords> lift_records(std::string_view json) {
  LiftedRecords found;
  std::size_t copied = 0;
  for (std::size_t at = json.find('"'); at != kNowhere;) {
    const auto text = quoted_from(json, at);
    if (!text) return std::nullopt;
    at = text->end + 1;
    if (json.substr(text->begin + 1, text->end - text->begin - 1) == kKey) {
      const std::size_t before = text->begin == 0 ? kNowhere : json.find_last_not_of(kSpaces, text->begin - 1);
      std::string_view value;
      const auto end = end_of_record(json, *text, value);
      if (before == kNowhere || json[before] != '{' || !end) return std::nullopt;
      found.rest += json.substr(copied, before - copied);
      found.rest += "{\"b64\":" + std::to_string(found.records.size()) + "}";
      found.records.push_back(value);
      at = copied = *end + 1;
    }
    at = json.find('"', at);
  }
  if (found.records.empty()) return std::nullopt;
  found.rest += json.substr(copied);
  return found;
}

void append_json(std::span<const float> values, std::span<const std::size_t> sizes, std::string& out) {
  if (sizes.empty()) return append_number(values.front(), out);
  const std::size_t part = sizes.front() == 0 ? 0 : values.size() / sizes.front();
  out += '[';
  for (std::size_t i = 0; i < sizes.front(); ++i) {
    if (i > 0) out += ',';
    append_json(values.subspan(i * part, part), sizes.subspan(1), out);
  }
  out += ']';
}

}  // namespace engine
