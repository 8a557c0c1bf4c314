// bind_delta.cc: exposes delta segments to Python: collecting, writing, reading; converts and forwards.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "arrays.h"
#include "engine/delta_collector.h"
#include "engine/delta_segment.h"
#include "module.h"
#include "path.h"

namespace bindings {

using namespace nb::literals;

namespace {

using Tables = std::vector<std::shared_ptr<engine::Table>>;

std::vector<engine::Table*> pointers(const Tables& tables) {
  std::vector<engine::Table*> inner;
  for (const auto& table : tables) inner.push_back(table.get());
  return inner;
}

void bind_header(nb::module_& m) {
  nb::enum_<engine::DeltaFlavour>(m, "DeltaFlavour")
      .value("durable", engine::DeltaFlavour::kDurable)
      .value("serving", engine::DeltaFlavour::kServing);
  nb::class_<engine::DeltaSlice>(m, "DeltaSlice")
      .def_ro("dim", &engine::DeltaSlice::dim)
      .def_ro("kind", &engine::DeltaSlice::kind);
  nb::class_<engine::DeltaTable>(m, "DeltaTable")
      .def_ro("name", &engine::DeltaTable::name)
      .def_ro("is_complete", &engine::DeltaTable::is_complete)
      .def_ro("upserts", &engine::DeltaTable::upserts)
      .def_ro("tombstones", &engine::DeltaTable::tombstones)
      .def_ro("max_time_s", &engine::DeltaTable::max_time_s)
      .def_ro("slices", &engine::DeltaTable::slices);
  nb::class_<engine::DeltaHeader>(m, "DeltaHeader")
      .def_ro("flavour", &engine::DeltaHeader::flavour)
      .def_ro("shard_index", &engine::DeltaHeader::shard_index)
      .def_ro("shard_count", &engine::DeltaHeader::shard_count)
      .def_ro("log", &engine::DeltaHeader::log)
      .def_ro("sequence", &engine::DeltaHeader::sequence)
      .def_ro("previous", &engine::DeltaHeader::previous)
      .def_ro("wall_time_us", &engine::DeltaHeader::wall_time_us)
      .def_ro("newest_event_s", &engine::DeltaHeader::newest_event_s)
      .def_ro("tables_hash", &engine::DeltaHeader::tables_hash)
      .def_ro("marks_bytes", &engine::DeltaHeader::marks_bytes)
      .def_ro("tables", &engine::DeltaHeader::tables);
}

void bind_collector(nb::module_& m) {
  using engine::DeltaCollector;
  nb::class_<DeltaCollector>(m, "DeltaCollector")
      .def(
          "__init__",
          [](DeltaCollector* self, const Tables& tables, engine::DeltaFlavour flavour, std::uint64_t index,
             std::uint64_t count, bool is_known) {
            ReleasedGil unlocked;
            new (self) DeltaCollector(tables, flavour, {.index = index, .count = count}, is_known);
          },
          "tables"_a, "flavour"_a, "index"_a, "count"_a, "is_known"_a)
      .def("collect", &DeltaCollector::collect, nb::call_guard<ReleasedGil>())
      .def("abandon", &DeltaCollector::abandon, nb::call_guard<ReleasedGil>())
      .def(
          "write",
          [](DeltaCollector& self, const Path& path, std::uint64_t log, std::uint64_t sequence, std::uint64_t previous,
             std::int64_t wall_time_us, nb::bytes marks) {
            const std::span<const std::byte> bytes{static_cast<const std::byte*>(marks.data()), marks.size()};
            ReleasedGil unlocked;
            self.write(path, {.log = log, .sequence = sequence, .previous = previous, .wall_time_us = wall_time_us},
                       bytes);
          },
          "path"_a, "log"_a, "sequence"_a, "previous"_a, "wall_time_us"_a, "marks"_a);
}

}  // namespace

void bind_delta(nb::module_& m) {
  bind_header(m);
  bind_collector(m);
  m.def(
      "read_delta_header", [](const Path& path) { return engine::read_delta_header(path); }, "path"_a,
      nb::call_guard<ReleasedGil>());
  m.def(
      "verify_delta", [](const Path& path) { return engine::verify_delta(path, *shared_pool()); }, "path"_a,
      nb::call_guard<ReleasedGil>());
  m.def(
      "read_delta_marks",
      [](const Path& path) {
        std::vector<std::byte> marks;
        {
          ReleasedGil unlocked;
          marks = engine::read_delta_marks(path);
        }
        return as_bytes(marks);
      },
      "path"_a);
  m.def(
      "read_delta_ids",
      [](const Path& path, std::uint64_t index, std::uint64_t count) {
        std::vector<std::vector<std::int64_t>> ids;
        {
          ReleasedGil unlocked;
          ids = engine::read_delta_ids(path, {.index = index, .count = count});
        }
        std::vector<NewVector<std::int64_t>> found;
        for (auto& each : ids) found.push_back(as_vector(std::move(each)));
        return found;
      },
      "path"_a, "index"_a, "count"_a);
  m.def(
      "delta_tables_hash",
      [](const Tables& tables, engine::DeltaFlavour flavour) {
        return engine::delta_tables_hash(pointers(tables), flavour);
      },
      "tables"_a, "flavour"_a);
  m.def(
      "replay_delta",
      [](const Path& path, const Tables& tables, std::uint64_t index, std::uint64_t count) {
        ReleasedGil unlocked;
        return engine::replay_delta(path, pointers(tables), {.index = index, .count = count});
      },
      "path"_a, "tables"_a, "index"_a, "count"_a);
}

}  // namespace bindings
