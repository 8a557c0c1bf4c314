// bind_snapshot.cc: exposes cuts, part files and failpoints to Python; converts and forwards.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "arrays.h"
#include "engine/error.h"
#include "engine/failpoint.h"
#include "engine/snapshot.h"
#include "module.h"
#include "path.h"

namespace bindings {

using namespace nb::literals;

namespace {

using engine::Table;

// A table's state at one instant. Written once; dropped unwritten, it releases the table.
class Cut {
 public:
  explicit Cut(std::shared_ptr<Table> table) : table_(std::move(table)), cut_(begin(*table_)) {}
  ~Cut() {
    if (!is_written_) table_->end_cut();
  }
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

  [[nodiscard]] const Table::Cut& content() const noexcept { return cut_; }

  std::vector<engine::SnapshotPart> write(std::uint64_t generation, const std::vector<Path>& paths, std::uint32_t first,
                                          std::optional<std::uint32_t> count) {
    if (is_written_) throw engine::ConfigError("this cut was already written; make another");
    is_written_ = true;
    return engine::write_snapshot(*table_, cut_, generation, {paths.begin(), paths.end()}, first,
                                  count.value_or(static_cast<std::uint32_t>(paths.size())));
  }

 private:
  // A snapshot leaves expired rows out, so it must not be taken by a clock that ran ahead.
  static Table::Cut begin(Table& table) {
    table.check_expiry(table.max_time_s());
    return table.begin_cut();
  }

  std::shared_ptr<Table> table_;
  Table::Cut cut_;
  bool is_written_ = false;
};

}  // namespace

void bind_snapshot(nb::module_& m) {
  m.def("set_failpoint", &engine::set_failpoint, "name"_a);
  m.def("failpoint", [](const std::string& name) { engine::failpoint(name.c_str()); }, "name"_a);

  nb::class_<engine::SnapshotPart>(m, "SnapshotPart")
      .def(
          "__init__",
          [](engine::SnapshotPart* self, Path path, std::uint64_t bytes, std::uint64_t rows) {
            new (self) engine::SnapshotPart{std::move(path), bytes, rows};
          },
          "path"_a, "bytes"_a, "rows"_a)
      .def_prop_ro("path", [](const engine::SnapshotPart& part) { return Path(part.path); })
      .def_ro("bytes", &engine::SnapshotPart::bytes)
      .def_ro("rows", &engine::SnapshotPart::rows);

  nb::class_<Cut>(m, "Cut")
      .def(nb::init<std::shared_ptr<Table>>(), "table"_a, nb::call_guard<ReleasedGil>())
      .def_prop_ro("max_time_s", [](const Cut& cut) { return cut.content().max_time_s; })
      .def_prop_ro("turn", [](const Cut& cut) { return cut.content().turn; })
      .def_prop_ro("rows", [](const Cut& cut) { return cut.content().rows; })
      .def_prop_ro("scales", [](const Cut& cut) { return cut.content().scales; })
      .def_prop_ro("filter", [](const Cut& cut) { return as_bytes(cut.content().filter); })
      .def("write", &Cut::write, "generation"_a, "paths"_a, "first"_a = 0, "count"_a = nb::none(),
           nb::call_guard<ReleasedGil>());

  m.def(
      "verify_snapshot",
      [](const Table& table, std::uint64_t generation, const std::vector<engine::SnapshotPart>& parts) {
        ReleasedGil unlocked;
        engine::verify_snapshot(table.schema(), generation, parts, table.pool());
      },
      "table"_a, "generation"_a, "parts"_a);
  m.def(
      "read_snapshot",
      [](Table& table, std::uint64_t generation, const std::vector<engine::SnapshotPart>& parts, std::uint64_t index,
         std::uint64_t count) {
        ReleasedGil unlocked;
        return engine::read_snapshot(table, generation, parts, {.index = index, .count = count});
      },
      "table"_a, "generation"_a, "parts"_a, "index"_a, "count"_a);
  m.def(
      "convert_snapshot",
      [](const Table& saved, Table& table, std::uint64_t generation, const std::vector<engine::SnapshotPart>& parts,
         std::uint64_t index, std::uint64_t count) {
        ReleasedGil unlocked;
        engine::convert_snapshot(saved.schema(), table, generation, parts, {.index = index, .count = count});
      },
      "saved"_a, "table"_a, "generation"_a, "parts"_a, "index"_a, "count"_a);
  m.def(
      "restore_extras",
      [](Table& table, std::int64_t max_time_s, const std::vector<float>& scales, std::uint64_t turn,
         nb::bytes filter) {
        const auto* state = static_cast<const std::byte*>(filter.data());
        table.restore_extras({.max_time_s = max_time_s,
                              .scales = scales,
                              .filter = {state, state + filter.size()},
                              .turn = turn,
                              .rows = 0});
      },
      "table"_a, "max_time_s"_a, "scales"_a, "turn"_a, "filter"_a);
  m.def(
      "merge_filter",
      [](Table& table, nb::bytes state) {
        table.merge_filter({static_cast<const std::byte*>(state.data()), state.size()});
      },
      "table"_a, "state"_a);
}

}  // namespace bindings
