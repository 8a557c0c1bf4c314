// bind_codec.cc: exposes checksums, base64, JSON, TFRecord framing and the EntryDump codec to Python; converts and
// forwards.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "engine/base64.h"
#include "engine/city_hash.h"
#include "engine/crc32c.h"
#include "engine/entry_dump.h"
#include "engine/json_text.h"
#include "engine/tfrecord.h"
#include "module.h"
#include "path.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using bindings::as_bytes;
using bindings::as_matrix;
using bindings::as_span;
using bindings::as_vector;
using bindings::Buffer;
using bindings::ReleasedGil;
using bindings::StreamName;
using Ids = bindings::Vector<const std::int64_t>;
using Times = bindings::Vector<const std::uint32_t>;
using Rows = bindings::Matrix<const float>;
using Values = bindings::Vector<const float>;
using Bytes = std::vector<std::byte>;

std::uint32_t crc32c(nb::handle data, std::uint32_t seed_crc) {
  const Buffer buffer(data);
  const auto bytes = buffer.bytes();
  ReleasedGil unlocked;
  return engine::crc32c(seed_crc, bytes.data(), bytes.size());
}

std::uint64_t city_hash64(nb::handle data) {
  const Buffer buffer(data);
  return engine::city_hash64(buffer.bytes().data(), buffer.bytes().size());
}

// The bytes of a base64 text; an empty reference where the text is invalid.
nb::object bytes_of_base64(std::string_view text) {
  const auto size = engine::base64_size(text);
  if (!size) return {};
  auto bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(*size)));
  if (!bytes.is_valid()) throw nb::python_error();
  bool is_good = false;
  {
    ReleasedGil unlocked;
    is_good = engine::decode_base64(text, reinterpret_cast<std::byte*>(PyBytes_AsString(bytes.ptr())));
  }
  return is_good ? bytes : nb::object();
}

// None where the text is not plain base64; the caller reports the fault.
nb::object decode_base64(nb::str text) {
  Py_ssize_t length = 0;
  const char* signs = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
  if (signs == nullptr) {
    PyErr_Clear();
    return nb::none();
  }
  nb::object bytes = bytes_of_base64({signs, static_cast<std::size_t>(length)});
  return bytes.is_valid() ? bytes : nb::none();
}

// None where the text has no records, or not in their plain form.
nb::object lift_records(nb::bytes json) {
  const auto found = engine::lift_records({json.c_str(), json.size()});
  if (!found) return nb::none();
  nb::list records;
  for (const std::string_view text : found->records) {
    nb::object bytes = bytes_of_base64(text);
    if (!bytes.is_valid()) return nb::none();
    records.append(std::move(bytes));
  }
  return nb::make_tuple(nb::bytes(found->rest.data(), found->rest.size()), std::move(records));
}

nb::bytes encode_floats(const nb::ndarray<const float, nb::c_contig, nb::device::cpu>& values) {
  std::vector<std::size_t> sizes(values.ndim());
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = values.shape(i);
  std::string text;
  {
    ReleasedGil unlocked;
    text.reserve(2 + 16 * values.size());
    engine::append_json({values.data(), values.size()}, sizes, text);
  }
  return nb::bytes(text.data(), text.size());
}

nb::bytes frame_record(nb::handle payload) {
  const Buffer buffer(payload);
  Bytes out;
  engine::append_record(out, buffer.bytes());
  return as_bytes(out);
}

// At most `limit` complete records and the bytes they take.
std::pair<nb::list, std::size_t> scan_records(nb::handle data, std::uint64_t offset, const StreamName& source,
                                              std::size_t limit, bool is_last) {
  const Buffer buffer(data);
  engine::RecordScanner scanner(buffer.bytes(), offset, source);
  nb::list records;
  std::span<const std::byte> record;
  while (records.size() < limit && scanner.next(record)) {
    records.append(nb::bytes(record.data(), record.size()));
  }
  if (is_last && records.size() < limit) scanner.finish();
  return {std::move(records), scanner.consumed()};
}

std::pair<std::size_t, std::size_t> skip_records(nb::handle data, std::uint64_t offset, const StreamName& source,
                                                 std::size_t limit) {
  const Buffer buffer(data);
  engine::RecordScanner scanner(buffer.bytes(), offset, source);
  ReleasedGil unlocked;
  std::span<const std::byte> record;
  std::size_t count = 0;
  while (count < limit && scanner.next(record)) ++count;
  return {count, scanner.consumed()};
}

std::vector<std::pair<std::string, std::uint64_t>> read_metadata(nb::handle data, const StreamName& source) {
  const Buffer buffer(data);
  engine::RecordScanner scanner(buffer.bytes(), 0, source);
  std::vector<std::pair<std::string, std::uint64_t>> tables;
  std::span<const std::byte> record;
  while (scanner.next(record)) {
    auto metadata = engine::decode_metadata(record, scanner);
    tables.emplace_back(std::move(metadata.table_name), metadata.entries);
  }
  scanner.finish();
  return tables;
}

nb::bytes frame_metadata(const std::string& table_name, std::uint64_t entries) {
  Bytes out;
  engine::encode_metadata({table_name, entries}, out);
  return as_bytes(out);
}

nb::bytes frame_item(std::int64_t id, const Values& values) {
  Bytes out;
  engine::encode_item(id, as_span(values), out);
  return as_bytes(out);
}

// Python gives each slice as (dim, optimizer kind, optimizer settings).
using Slice = std::tuple<std::uint32_t, std::string, std::map<std::string, double>>;

void make_schema(engine::DumpSchema* self, const std::vector<Slice>& slices) {
  std::vector<engine::SliceConfig> configs;
  for (const auto& [dim, kind, settings] : slices) {
    engine::SliceConfig config;
    config.dim = dim;
    config.optimizer = {kind, settings};
    configs.push_back(std::move(config));
  }
  new (self) engine::DumpSchema(engine::make_dump_schema(configs));
}

nb::tuple decode(const engine::DumpSchema& schema, nb::handle data, std::uint64_t offset, const StreamName& source,
                 std::size_t limit, bool allow_missing_state) {
  const Buffer buffer(data);
  engine::EntryBatch batch;
  engine::RecordScanner scanner(buffer.bytes(), offset, source);
  {
    ReleasedGil unlocked;
    engine::decode_entries(schema, scanner, limit, allow_missing_state, batch);
  }
  return nb::make_tuple(as_vector(std::move(batch.ids)), as_vector(std::move(batch.times_s)),
                        as_matrix(std::move(batch.rows), schema.row_words), as_vector(std::move(batch.value_counts)),
                        scanner.consumed());
}

nb::bytes encode(const engine::DumpSchema& schema, const Ids& ids, const Times& times_s, const Rows& rows) {
  Bytes out;
  {
    ReleasedGil unlocked;
    engine::encode_entries(schema, as_span(ids), as_span(times_s), {rows.data(), rows.size()}, out);
  }
  return as_bytes(out);
}

}  // namespace

// Signatures are spelled where a buffer or a tuple would otherwise be an untyped object in the stubs.
void bind_codec(nb::module_& m) {
  m.def("decode_base64", &decode_base64, "text"_a, nb::sig("def decode_base64(text: str) -> bytes | None"),
        "Return the bytes of a base64 text; None where it is invalid.");
  m.def("lift_records", &lift_records, "json"_a,
        nb::sig("def lift_records(json: bytes) -> tuple[bytes, list[bytes]] | None"),
        "Return the JSON with ``{\"b64\":n}`` in the place of its n-th base64 object, and the bytes of those; None "
        "for a text without such objects, and where they cannot be taken out like this.");
  m.def("encode_floats", &encode_floats, "values"_a,
        nb::sig("def encode_floats(values: numpy.typing.NDArray[numpy.float32]) -> bytes"),
        "An array as JSON: the shortest numbers that are read as the same floats.");
  m.def("crc32c", &crc32c, "data"_a, "seed_crc"_a = 0, "Extend a CRC-32C by the bytes of ``data``.",
        nb::sig("def crc32c(data: bytes | bytearray | memoryview, seed_crc: int = 0) -> int"));
  m.def(
      "masked_crc32c", [](nb::handle data) { return engine::mask_crc32c(crc32c(data, 0)); }, "data"_a,
      "The checksum as TFRecord stores it.", nb::sig("def masked_crc32c(data: bytes | bytearray | memoryview) -> int"));
  m.def("city_hash64", &city_hash64, "data"_a, "CityHash64 (version 1.1) of the bytes.",
        nb::sig("def city_hash64(data: bytes | bytearray | memoryview) -> int"));
  m.def("frame_record", &frame_record, "payload"_a, "One TFRecord.",
        nb::sig("def frame_record(payload: bytes | bytearray | memoryview) -> bytes"));
  m.def("scan_records", &scan_records, "data"_a, "offset"_a, "source"_a, "limit"_a, "is_last"_a,
        "At most ``limit`` complete records, and the bytes they take; at the last piece nothing may be left over.",
        nb::sig("def scan_records(data: bytes | bytearray | memoryview, offset: int, source: str, limit: int, "
                "is_last: bool) -> tuple[list[bytes], int]"));
  m.def("skip_records", &skip_records, "data"_a, "offset"_a, "source"_a, "limit"_a,
        "Check at most ``limit`` complete records; their number, and the bytes they take.",
        nb::sig("def skip_records(data: bytes | bytearray | memoryview, offset: int, source: str, limit: int) -> "
                "tuple[int, int]"));
  m.def("read_metadata", &read_metadata, "data"_a, "source"_a, "(table name, entries) of a whole metadata file.",
        nb::sig("def read_metadata(data: bytes | bytearray | memoryview, source: str) -> list[tuple[str, int]]"));
  m.def("frame_metadata", &frame_metadata, "table_name"_a, "entries"_a, "One metadata record, framed.");
  m.def("frame_item", &frame_item, "id"_a, "values"_a, "One EntryDump of id and values only, framed.");

  nb::class_<engine::DumpSchema>(m, "DumpSchema", "How the rows of one table are spelled in EntryDump records.")
      .def("__init__", &make_schema, "slices"_a)
      .def_ro("dim", &engine::DumpSchema::dim)
      .def_ro("row_words", &engine::DumpSchema::row_words)
      .def("decode", &decode, "data"_a, "offset"_a, "source"_a, "limit"_a, "allow_missing_state"_a,
           "(ids, times_s, rows, value_counts, consumed) of at most ``limit`` records.",
           nb::sig("def decode(self, data: bytes | bytearray | memoryview, offset: int, source: str, limit: int, "
                   "allow_missing_state: bool) -> "
                   "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32], "
                   "numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.uint32], int]"))
      .def("encode", &encode, "ids"_a, "times_s"_a, "rows"_a, "Framed records of the rows.");
}
