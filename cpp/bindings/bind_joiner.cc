// bind_joiner.cc: the core of the joiner, with batches of events in and rows out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "arrays.h"
#include "engine/data/records.h"
#include "engine/error.h"
#include "joiner/core.h"
#include "joiner/examples.h"
#include "module.h"
#include "path.h"

namespace bindings {

using namespace nb::literals;
using engine::data::Records;
using joiner::Core;

namespace {

std::string_view view_of(nb::handle bytes) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.ptr(), &data, &size) != 0) throw nb::python_error();
  return {data, static_cast<std::size_t>(size)};
}

nb::bytes bytes_of(std::string_view text) { return nb::bytes(text.data(), text.size()); }

nb::tuple codes_of(const std::vector<std::int32_t>& codes, std::size_t begin, std::size_t count) {
  nb::list list;
  for (std::size_t index = begin; index < begin + count; ++index) list.append(codes[index]);
  return nb::tuple(list);
}

// A core and the reader of its records.
class Joiner {
 public:
  Joiner(joiner::Settings settings, const std::string& spill_folder) : core(std::move(settings), spill_folder) {}

  // Joins Examples from `first` on and returns the place of the first record that needs another parser.
  std::size_t join(const Records& records, std::size_t first, const std::optional<nb::list>& keys,
                   const std::optional<Vector<const std::int64_t>>& times, const Vector<const std::int64_t>& ingest,
                   std::int64_t future, std::size_t max_bytes) {
    const std::size_t count = records.size();
    if (records.table != nullptr) return first;
    std::vector<std::string_view> key_of;
    if (keys) {
      key_of.reserve(keys->size());
      for (nb::handle key : *keys) key_of.push_back(view_of(key));
    }
    if ((keys && key_of.size() != count) || (times && times->size() != count) || ingest.size() != count) {
      throw engine::ConfigError("keys, times and ingest times differ in number from " + std::to_string(count) +
                                " records");
    }
    const std::int64_t* time_of = times ? times->data() : nullptr;
    const std::int64_t* ingest_of = ingest.data();
    const ReleasedGil release;
    for (std::size_t index = first; index < count; ++index) {
      const auto bytes = records[index];
      const std::string_view record{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
      std::optional<std::int64_t> time;
      if (time_of != nullptr) time = time_of[index];
      if (record.size() > max_bytes ||
          !reader.read(record, keys ? key_of[index] : std::string_view(), time, core.packer(), event) ||
          event.time > ingest_of[index] + future) {
        return index;
      }
      add(ingest_of[index]);
    }
    return count;
  }

  void note(std::int64_t time, std::int64_t ingest_time) {
    const std::int64_t bounded = std::min(time, ingest_time);
    largest = largest ? std::max(*largest, bounded) : bounded;
  }

  Core core;
  joiner::ExampleReader reader;
  joiner::ExampleWriter writer;
  joiner::ExampleEvent event;
  std::size_t taken = 0;                // rows at the front that were taken
  std::optional<std::int64_t> largest;  // of min(time, ingest time) since the last question

 private:
  void add(std::int64_t ingest_time) {
    note(event.time, ingest_time);
    if (!event.is_action) {
      core.add_impression({event.time, event.key, event.item, event.payload, event.event_id, ingest_time,
                           /*is_packed=*/true});
      return;
    }
    for (const std::int32_t code : event.codes) core.add_action({event.time, event.key, event.item, code});
  }
};

void make_joiner(Joiner* self, std::vector<std::vector<std::int32_t>> tasks, std::int64_t window, std::int64_t horizon,
                 std::int64_t orphan_hold, std::int64_t skew, const std::string& late, bool is_fast, double sample_rate,
                 bool samples_by_weight, std::uint64_t salt, std::size_t max_codes, std::size_t max_orphans,
                 const Path& spill_folder) {
  joiner::Settings settings;
  settings.tasks = std::move(tasks);
  settings.window = window;
  settings.horizon = horizon;
  settings.orphan_hold = orphan_hold;
  settings.skew = skew;
  settings.late = late == "drop"     ? joiner::Late::kDrop
                  : late == "reemit" ? joiner::Late::kReemit
                                     : joiner::Late::kCorrect;
  settings.is_fast = is_fast;
  settings.sample_rate = sample_rate;
  settings.samples_by_weight = samples_by_weight;
  settings.salt = salt;
  settings.max_codes = max_codes;
  settings.max_orphans = max_orphans;
  new (self) Joiner(std::move(settings), spill_folder);
}

// Rows as tuples (time, key, item, payload, event id, ingest time, labels, actions, pre_actions, emission, weight,
// sample rate, cause time).
nb::list take_rows(Joiner& self) {
  joiner::Rows& rows = self.core.rows();
  const std::size_t tasks = self.core.settings().tasks.size();
  nb::list list;
  std::string payload;
  for (std::size_t index = 0; index < rows.rows.size(); ++index) {
    const auto& row = rows.rows[index];
    payload.clear();
    self.core.packer().unpack(rows.packed_payload(row), payload);
    nb::list labels;
    for (std::size_t task = 0; task < tasks; ++task) {
      labels.append(static_cast<double>(rows.labels[index * tasks + task]));
    }
    list.append(nb::make_tuple(
        row.time, bytes_of(rows.key(row)), row.item, bytes_of(payload), row.event_id, row.ingest_time,
        nb::tuple(labels), codes_of(rows.codes, row.codes_begin, row.actions),
        codes_of(rows.codes, row.codes_begin + row.actions, row.pre_actions), row.emission, row.weight,
        self.core.settings().samples_by_weight ? 1.0 : self.core.settings().sample_rate, row.cause_time));
  }
  rows.clear();
  return list;
}

// The next rows, at most about `most_bytes` of Examples, as three lists: keys, Examples, times.
nb::tuple take_examples(Joiner& self, std::int64_t join_time, std::size_t most_bytes) {
  joiner::Rows& rows = self.core.rows();
  const std::size_t tasks = self.core.settings().tasks.size();
  const std::size_t first = self.taken;
  std::string values;
  std::vector<std::size_t> ends;
  {
    const ReleasedGil release;
    for (std::size_t index = first; index < rows.rows.size() && values.size() < most_bytes; ++index) {
      self.writer.write(rows, index, tasks, self.core.packer(), join_time, values);
      ends.push_back(values.size());
    }
  }
  nb::list keys;
  nb::list examples;
  nb::list times;
  std::size_t begin = 0;
  for (std::size_t index = 0; index < ends.size(); ++index) {
    const auto& row = rows.rows[first + index];
    keys.append(bytes_of(rows.key(row)));
    examples.append(nb::bytes(values.data() + begin, ends[index] - begin));
    times.append(row.time);
    begin = ends[index];
  }
  self.taken += ends.size();
  if (self.taken == rows.rows.size()) {
    rows.clear();
    self.taken = 0;
  }
  return nb::make_tuple(keys, examples, times);
}

std::map<std::string, std::uint64_t> counters_of(const Joiner& self) {
  const joiner::Counters& counters = self.core.counters();
  std::map<std::string, std::uint64_t> counts;
  counts["dup_impression"] = counters.dup_impression;
  counts["dup_action"] = counters.dup_action;
  counts["late_impression"] = counters.late_impression;
  counts["late_impression_dropped"] = counters.late_impression_dropped;
  counts["late_dropped"] = counters.late_dropped;
  counts["late_emitted"] = counters.late_emitted;
  counts["late_no_change"] = counters.late_no_change;
  counts["orphan"] = counters.orphan;
  counts["action_overflow"] = counters.action_overflow;
  counts["orphan_overflow"] = counters.orphan_overflow;
  counts["sampled_out"] = counters.sampled_out;
  counts["early_close"] = counters.early_close;
  return counts;
}

}  // namespace

void bind_joiner(nb::module_& m) {
  nb::class_<Joiner>(m, "Joiner", "State and rules of a join; rows wait inside until they are taken.")
      .def("__init__", &make_joiner, "tasks"_a, "window"_a, "horizon"_a, "orphan_hold"_a, "skew"_a, "late"_a,
           "is_fast"_a, "sample_rate"_a, "samples_by_weight"_a, "salt"_a, "max_codes"_a, "max_orphans"_a,
           "spill_folder"_a = "")
      .def(
          "add_impression",
          [](Joiner& self, std::int64_t time, nb::bytes key, std::uint64_t item, nb::bytes payload,
             std::uint64_t event_id, std::int64_t ingest_time) {
            self.note(time, ingest_time);
            self.core.add_impression({time, view_of(key), item, view_of(payload), event_id, ingest_time});
          },
          "time"_a, "key"_a, "item"_a, "payload"_a, "event_id"_a, "ingest_time"_a)
      .def(
          "add_action",
          [](Joiner& self, std::int64_t time, nb::bytes key, std::uint64_t item, std::int32_t code,
             std::int64_t ingest_time) {
            self.note(time, ingest_time);
            self.core.add_action({time, view_of(key), item, code});
          },
          "time"_a, "key"_a, "item"_a, "code"_a, "ingest_time"_a = 0)
      .def("join", &Joiner::join, "records"_a, "first"_a, "keys"_a.none(), "times"_a.none(), "ingest"_a, "future"_a,
           "max_bytes"_a,
           nb::sig("def join(self, records: Records, first: int, keys: list[bytes] | None, "
                   "times: numpy.typing.NDArray[numpy.int64] | None, ingest: numpy.typing.NDArray[numpy.int64], "
                   "future: int, max_bytes: int) -> int"),
           "Join Examples from `first` on and return the place of the first record that needs another parser.")
      .def(
          "take_largest_time", [](Joiner& self) { return std::exchange(self.largest, std::nullopt); },
          "Return the largest min(event time, ingest time) since the last call; None without events.")
      .def(
          "advance", [](Joiner& self, std::int64_t watermark) { self.core.advance(watermark); }, "watermark"_a,
          nb::call_guard<ReleasedGil>(), "Raise the watermark.")
      .def(
          "spill", [](Joiner& self, std::size_t memory) { self.core.spill(memory); }, "memory"_a,
          nb::call_guard<ReleasedGil>(), "Move state to disk until at most `memory` bytes are left.")
      .def(
          "close_oldest", [](Joiner& self, std::size_t count) { return self.core.close_oldest(count); }, "count"_a,
          nb::call_guard<ReleasedGil>(), "Close the oldest windows early and return their number.")
      .def(
          "drop_oldest_held", [](Joiner& self, std::size_t count) { return self.core.drop_oldest_held(count); },
          "count"_a, nb::call_guard<ReleasedGil>(), "Drop the oldest waiting actions.")
      .def(
          "save", [](const Joiner& self, const Path& path) { self.core.save(path); }, "path"_a,
          nb::call_guard<ReleasedGil>(), "Write the state to a file and sync it.")
      .def(
          "restore", [](Joiner& self, const Path& path, std::size_t memory) { self.core.restore(path, memory); },
          "path"_a, "memory"_a, nb::call_guard<ReleasedGil>(), "Fill an empty joiner from a file of `save`.")
      .def("take_rows", &take_rows, nb::sig("def take_rows(self) -> list[tuple[typing.Any, ...]]"),
           "Return the waiting rows as tuples.")
      .def("take_examples", &take_examples, "join_time"_a, "most_bytes"_a,
           nb::sig("def take_examples(self, join_time: int, most_bytes: int) -> "
                   "tuple[list[bytes], list[bytes], list[int]]"),
           "Return waiting rows, about `most_bytes` at most, as three lists: keys, Examples, times.")
      .def_prop_ro("pending_rows", [](Joiner& self) { return self.core.rows().rows.size() - self.taken; })
      .def_prop_ro("pending_bytes", [](Joiner& self) { return self.core.rows().bytes.size(); })
      .def_prop_ro("watermark", [](const Joiner& self) { return self.core.watermark(); })
      .def_prop_ro("counters", &counters_of)
      .def_prop_ro("open_impressions", [](const Joiner& self) { return self.core.open_impressions(); })
      .def_prop_ro("held_actions", [](const Joiner& self) { return self.core.held_actions(); })
      .def_prop_ro("entries", [](const Joiner& self) { return self.core.entries(); })
      .def_prop_ro("memory", [](const Joiner& self) { return self.core.memory(); })
      .def_prop_ro("held_memory", [](const Joiner& self) { return self.core.held_memory(); })
      .def_prop_ro("spilled_bytes", [](const Joiner& self) { return self.core.spilled_bytes(); });
}

}  // namespace bindings
