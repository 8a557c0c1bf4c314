// score_answer.cc: floats as the shortest decimal that is read as the same float, or as their bytes.
#include "serving/score_answer.h"

#include <array>
#include <bit>
#include <cstdio>
#include <vector>

#include "engine/json_text.h"
#include "wire_writer.h"

namespace serving {

static_assert(std::endian::native == std::endian::little, "floats travel as they lie in memory");

namespace {

void append_text(std::string_view text, std::string& out) {
  out += '"';
  for (const char sign : text) {
    const auto byte = static_cast<unsigned char>(sign);
    if (sign == '"' || sign == '\\') {
      out += '\\';
      out += sign;
    } else if (byte < 0x20) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", byte);
      out += escape.data();
    } else {
      out += sign;
    }
  }
  out += '"';
}

std::vector<std::size_t> sizes_of(const ScoreSlice& slice, std::size_t output, bool has_rows) {
  std::vector<std::size_t> sizes;
  if (has_rows) sizes.push_back(slice.rows);
  for (const auto size : slice.model.config().outputs[slice.outputs[output]].tail) {
    sizes.push_back(static_cast<std::size_t>(size));
  }
  return sizes;
}

void append_column(const ScoreSlice& slice, std::size_t output, std::string& out) {
  engine::append_json(slice.values(output), sizes_of(slice, output, true), out);
}

const std::string& name_of(const ScoreSlice& slice, std::size_t output) {
  return slice.model.config().outputs[slice.outputs[output]].name;
}

}  // namespace

std::span<const float> ScoreSlice::values(std::size_t output) const noexcept {
  const std::size_t width = model.config().outputs[outputs[output]].width();
  return scores.outputs[output].subspan(begin * width, rows * width);
}

std::string write_json(const ScoreSlice& slice, bool is_by_row) {
  const std::size_t count = slice.outputs.size();
  std::string out = is_by_row ? "{\"predictions\":" : "{\"outputs\":";
  if (count == 1) {
    append_column(slice, 0, out);
  } else if (!is_by_row) {
    for (std::size_t i = 0; i < count; ++i) {
      out += i == 0 ? '{' : ',';
      append_text(name_of(slice, i), out);
      out += ':';
      append_column(slice, i, out);
    }
    out += '}';
  } else {
    out += '[';
    for (std::size_t row = 0; row < slice.rows; ++row) {
      if (row > 0) out += ',';
      for (std::size_t i = 0; i < count; ++i) {
        out += i == 0 ? '{' : ',';
        append_text(name_of(slice, i), out);
        out += ':';
        const std::size_t width = slice.rows == 0 ? 0 : slice.values(i).size() / slice.rows;
        engine::append_json(slice.values(i).subspan(row * width, width), sizes_of(slice, i, false), out);
      }
      out += '}';
    }
    out += ']';
  }
  out += '}';
  return out;
}

std::string write_message(const ScoreSlice& slice, std::string_view signature) {
  WireWriter response;
  for (std::size_t i = 0; i < slice.outputs.size(); ++i) {
    WireWriter shape, tensor, entry;
    for (const std::size_t size : sizes_of(slice, i, true)) {
      WireWriter dim;
      dim.number(1, size);
      shape.block(2, dim);
    }
    const auto values = slice.values(i);
    tensor.number(1, 1);  // DT_FLOAT
    tensor.block(2, shape);
    tensor.block(5, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
    entry.block(1, name_of(slice, i));
    entry.block(2, tensor);
    response.block(1, entry);
  }
  WireWriter version, spec;
  if (slice.model.config().version != 0) version.number(1, static_cast<std::uint64_t>(slice.model.config().version));
  spec.block(1, slice.model.config().name);
  spec.block(2, version);
  if (!signature.empty()) spec.block(3, signature);
  response.block(2, spec);
  return response.take();
}

std::string write_error(std::string_view text) {
  std::string out = "{\"error\": ";
  append_text(text, out);
  out += '}';
  return out;
}

}  // namespace serving
