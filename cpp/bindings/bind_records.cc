// bind_records.cc: raw records, as sources hand them on.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <deque>
#include <optional>

#include "arrays.h"
#include "engine/data/column_encoder.h"
#include "engine/data/records.h"
#include "engine/error.h"
#include "module.h"
#include "path.h"

namespace bindings {

using namespace nb::literals;
using engine::data::Records;

namespace {

// One value for each record, or nothing.
template <typename Value>
Value at(const std::optional<std::vector<Value>>& values, std::size_t index, Value otherwise, std::size_t count,
         const char* name) {
  if (!values) return otherwise;
  if (values->size() != count) {
    throw engine::ConfigError("there are " + std::to_string(count) + " payloads and " + std::to_string(values->size()) +
                              " " + name);
  }
  return (*values)[index];
}

void make_records(Records* self, nb::sequence payloads, StreamName source,
                  const std::optional<std::vector<std::uint64_t>>& offsets,
                  const std::optional<std::vector<std::uint32_t>>& source_keys) {
  Records records;
  records.source = std::move(source);
  const std::size_t count = nb::len(payloads);
  records.entries.reserve(count);
  std::deque<Buffer> views;
  std::size_t total = 0;
  for (nb::handle payload : payloads) {
    const std::size_t index = records.entries.size();
    const std::size_t size = views.emplace_back(payload).bytes().size();
    if (size >> 30 != 0) {
      throw engine::ConfigError("record " + std::to_string(index) + " has " + std::to_string(size) +
                                " bytes; a record has less than 1 GiB");
    }
    records.entries.push_back({total, static_cast<std::uint32_t>(size),
                               at<std::uint32_t>(source_keys, index, 0, count, "source keys"),
                               at<std::uint64_t>(offsets, index, total, count, "offsets")});
    total += size;
  }
  auto buffer = engine::data::Buffer::take(total);
  for (std::size_t index = 0; index < count; ++index) {
    const auto& entry = records.entries[index];
    if (entry.size > 0) std::memcpy(buffer->data() + entry.begin, views[index].bytes().data(), entry.size);
  }
  records.buffer = std::move(buffer);
  new (self) Records(std::move(records));
}

nb::bytes get(const Records& records, std::ptrdiff_t index) {
  const auto size = static_cast<std::ptrdiff_t>(records.size());
  if (index < -size || index >= size) throw nb::index_error();
  const Records messages = engine::data::to_messages(records);
  const auto bytes = messages[static_cast<std::size_t>(index < 0 ? index + size : index)];
  return nb::bytes(bytes.data(), bytes.size());
}

template <typename Value, typename Get>
NewVector<Value> column_of(const Records& records, Get&& get) {
  std::vector<Value> values;
  values.reserve(records.size());
  for (const auto& entry : records.entries) values.push_back(get(entry));
  return as_vector(std::move(values));
}

}  // namespace

void bind_records(nb::module_& m) {
  nb::class_<Records>(m, "Records", "Some serialized messages of one stream, in order.")
      .def("__init__", &make_records, "payloads"_a, "source"_a = "records", "offsets"_a = nb::none(),
           "source_keys"_a = nb::none(),
           nb::sig("def __init__(self, payloads: collections.abc.Sequence[bytes | bytearray | memoryview], "
                   "source: str = 'records', offsets: collections.abc.Sequence[int] | None = None, "
                   "source_keys: collections.abc.Sequence[int] | None = None) -> None"))
      .def("__len__", &Records::size)
      .def("__getitem__", &get, "index"_a)
      .def_prop_ro("source", [](const Records& records) { return StreamName(records.source); })
      .def_prop_ro(
          "nbytes",
          [](const Records& records) {
            std::uint64_t total = 0;
            for (const auto& entry : records.entries) total += entry.size;
            return total;
          },
          "Bytes of all payloads.")
      .def_prop_ro(
          "offsets",
          [](const Records& records) {
            return column_of<std::uint64_t>(records, [](const auto& entry) { return entry.stream_offset; });
          },
          nb::rv_policy::move, "Where each payload begins in the stream.")
      .def_prop_ro(
          "source_keys",
          [](const Records& records) {
            return column_of<std::uint32_t>(records, [](const auto& entry) { return entry.source_key; });
          },
          nb::rv_policy::move, "The data source of each record's header, 0 without one.");
  m.def("pooled_bytes", &engine::data::Buffer::pooled_bytes, "Bytes that wait in the buffer pool to be used again.");
}

}  // namespace bindings
