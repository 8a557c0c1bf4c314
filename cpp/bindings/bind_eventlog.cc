// bind_eventlog.cc: the event log: partitions, writers and readers; converts and forwards.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "engine/error.h"
#include "eventlog/error.h"
#include "eventlog/hash.h"
#include "eventlog/partition.h"
#include "eventlog/reader.h"
#include "eventlog/scan.h"
#include "eventlog/writer.h"
#include "module.h"
#include "path.h"

namespace bindings {

using namespace nb::literals;
using eventlog::Chunk;
using eventlog::Partition;
using eventlog::PendingBatch;
using eventlog::Settings;
using eventlog::TopicReader;
using eventlog::TopicWriter;

namespace {

using Partitions = std::vector<std::shared_ptr<Partition>>;
using Unlocked = nb::call_guard<ReleasedGil>;

void translate(const std::exception_ptr& pointer, void*) {
  const auto raise = [](const char* name, const char* text) {
    PyErr_SetObject(nb::module_::import_("monolith.core.errors").attr(name).ptr(), message(text).ptr());
  };
  try {
    std::rethrow_exception(pointer);
  } catch (const eventlog::VersionConflict& error) {
    raise("VersionConflict", error.what());
  } catch (const eventlog::Fenced& error) {
    raise("ClusterError", error.what());
  } catch (const eventlog::AppendRefused& error) {
    raise("AppendRefused", error.what());
  } catch (const eventlog::DataError& error) {
    raise("DataError", error.what());
  }
}

eventlog::Durability parse_durability(const std::string& name) {
  if (name == "commit") return eventlog::Durability::kCommit;
  if (name == "interval") return eventlog::Durability::kInterval;
  if (name == "never") return eventlog::Durability::kNever;
  throw engine::ConfigError("durability is '" + name + "', expected 'commit', 'interval' or 'never'");
}

Settings make_settings(std::string stream, std::string folder, std::uint64_t log, std::uint32_t partition,
                       std::uint32_t partitions, const std::string& durability, std::uint64_t segment_bytes,
                       std::int64_t segment_age_ms, std::uint64_t retain_bytes, std::int64_t retain_ms) {
  return {.stream = std::move(stream),
          .folder = std::move(folder),
          .log = log,
          .partition = partition,
          .partitions = partitions,
          .durability = parse_durability(durability),
          .segment_bytes = segment_bytes,
          .segment_age_ms = segment_age_ms,
          .retain_bytes = retain_bytes,
          .retain_ms = retain_ms};
}

// The buffers of a batch; they stay until the batch is filled.
void fill(PendingBatch& batch, nb::sequence values, nb::sequence keys, nb::sequence times_ms) {
  const std::size_t count = nb::len(values);
  if (nb::len(keys) != count || nb::len(times_ms) != count) {
    throw engine::ConfigError("there are " + std::to_string(count) + " values, " + std::to_string(nb::len(keys)) +
                              " keys and " + std::to_string(nb::len(times_ms)) + " times, expected equal numbers");
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Buffer value(values[i]);
    const Buffer key(keys[i]);
    batch.add({.key = key.bytes(), .value = value.bytes(), .time_ms = nb::cast<std::int64_t>(times_ms[i])});
  }
}

using VerifiedBad = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

void bind_partition(nb::module_& m) {
  nb::class_<eventlog::Verified>(m, "EventLogSegment", "The result of scanning one segment.")
      .def_ro("base", &eventlog::Verified::base)
      .def_ro("end", &eventlog::Verified::end)
      .def_ro("bytes", &eventlog::Verified::bytes)
      .def_ro("batches", &eventlog::Verified::batches)
      .def_ro("records", &eventlog::Verified::records)
      .def_ro("largest_ms", &eventlog::Verified::largest_ms)
      .def_ro("append_ms", &eventlog::Verified::append_ms)
      .def_ro("has_header", &eventlog::Verified::has_header)
      .def_ro("is_torn", &eventlog::Verified::is_torn)
      .def_prop_ro(
          "bad",
          [](const eventlog::Verified& segment) {
            std::vector<VerifiedBad> ranges;
            for (const auto& bad : segment.bad) ranges.emplace_back(bad.begin, bad.end, bad.first_byte, bad.end_byte);
            return ranges;
          },
          "Damaged ranges as (begin offset, end offset, first byte, end byte).");
  nb::class_<Partition::Counts>(m, "EventLogCounts", "Counts of one partition handle.")
      .def_ro("torn_tails", &Partition::Counts::torn_tails)
      .def_ro("torn_bytes", &Partition::Counts::torn_bytes)
      .def_ro("bad_records", &Partition::Counts::bad_records)
      .def_ro("recoveries", &Partition::Counts::recoveries)
      .def_ro("syncs", &Partition::Counts::syncs)
      .def_ro("sync_us", &Partition::Counts::sync_us);
  nb::class_<Settings>(m, "EventLogSettings", "Where a partition lies and how it is written.")
      .def(
          "__init__",
          [](Settings* self, StreamName stream, Path folder, std::uint64_t log, std::uint32_t partition,
             std::uint32_t partitions, const std::string& durability, std::uint64_t segment_bytes,
             std::int64_t segment_age_ms, std::uint64_t retain_bytes, std::int64_t retain_ms) {
            new (self) Settings(make_settings(std::move(stream), std::move(folder), log, partition, partitions,
                                              durability, segment_bytes, segment_age_ms, retain_bytes, retain_ms));
          },
          "stream"_a, "folder"_a, "log"_a, "partition"_a, "partitions"_a, "durability"_a, "segment_bytes"_a,
          "segment_age_ms"_a, "retain_bytes"_a, "retain_ms"_a);
  nb::class_<Partition>(m, "EventLogPartition", "One partition of an event log. Concurrent.")
      .def(nb::init<Settings>(), "settings"_a, Unlocked())
      .def(
          "append",
          [](Partition& self, nb::sequence values, nb::sequence keys, nb::sequence times_ms, std::uint64_t producer,
             std::uint64_t owner, std::uint64_t sequence) {
            PendingBatch batch;
            fill(batch, values, keys, times_ms);
            batch.producer = producer;
            batch.owner = owner;
            batch.sequence = sequence;
            ReleasedGil unlocked;
            return self.append(batch);
          },
          "values"_a, "keys"_a, "times_ms"_a, "producer"_a = 0, "owner"_a = 0, "sequence"_a = 0,
          nb::sig("def append(self, values: collections.abc.Sequence[bytes | bytearray | memoryview], "
                  "keys: collections.abc.Sequence[bytes | bytearray | memoryview], "
                  "times_ms: collections.abc.Sequence[int], producer: int = 0, owner: int = 0, "
                  "sequence: int = 0) -> int"),
          "Append one batch and return its base offset. Readers that wait are not notified.")
      .def("sync", &Partition::sync, "end"_a, Unlocked(), "Wait until the disk has all offsets below ``end``.")
      .def("refresh", &Partition::refresh, Unlocked())
      .def("take_producer", &Partition::take_producer, "producer"_a, Unlocked())
      .def("last_sequence", &Partition::last_sequence, "producer"_a, Unlocked())
      .def("retain", &Partition::retain, "now_ms"_a, Unlocked())
      .def("trim", &Partition::trim, "offset"_a, Unlocked())
      .def("roll", &Partition::roll, Unlocked())
      .def("verify", &Partition::verify, Unlocked())
      .def_static("repair", &Partition::repair, "settings"_a, Unlocked())
      .def("segments", &Partition::segments, Unlocked())
      .def("counts", &Partition::counts, Unlocked())
      .def_prop_ro("first", &Partition::first)
      .def_prop_ro("visible_end", &Partition::visible_end)
      .def_prop_ro("written_end", &Partition::written_end)
      .def_prop_ro("durable_end", &Partition::durable_end)
      .def_prop_ro("epoch", &Partition::epoch)
      .def_prop_ro("largest_ms", &Partition::largest_ms)
      .def_prop_ro("append_ms", &Partition::append_ms)
      .def_prop_ro("has_failed", &Partition::has_failed);
}

void bind_writer(nb::module_& m) {
  nb::class_<TopicWriter>(m, "EventLogWriter", "Collects records per partition and appends batches. Concurrent.")
      .def(
          "__init__",
          [](TopicWriter* self, Partitions partitions, const Path& wake_path, std::int64_t linger_ms,
             std::int64_t interval_ms, std::size_t batch_bytes, std::uint32_t batch_records, std::size_t buffer_bytes) {
            new (self) TopicWriter(std::move(partitions), wake_path,
                                   {.linger_ms = linger_ms,
                                    .interval_ms = interval_ms,
                                    .batch_bytes = batch_bytes,
                                    .batch_records = batch_records,
                                    .buffer_bytes = buffer_bytes});
          },
          "partitions"_a, "wake_path"_a, "linger_ms"_a, "interval_ms"_a, "batch_bytes"_a, "batch_records"_a,
          "buffer_bytes"_a)
      .def(
          "write",
          [](TopicWriter& self, nb::handle value, nb::handle key, std::int64_t time_ms,
             std::optional<std::uint32_t> partition) {
            const Buffer value_view(value);
            const Buffer key_view(key);
            ReleasedGil unlocked;
            self.write({.key = key_view.bytes(), .value = value_view.bytes(), .time_ms = time_ms}, partition);
          },
          "value"_a, "key"_a, "time_ms"_a, "partition"_a = nb::none(),
          nb::sig("def write(self, value: bytes | bytearray | memoryview, key: bytes | bytearray | memoryview, "
                  "time_ms: int, partition: int | None = None) -> None"))
      .def("flush", &TopicWriter::flush, Unlocked())
      .def(
          "append",
          [](TopicWriter& self, std::uint32_t partition, nb::sequence values, nb::sequence keys, nb::sequence times_ms,
             std::uint64_t producer, std::uint64_t owner, std::uint64_t sequence) {
            PendingBatch batch;
            fill(batch, values, keys, times_ms);
            batch.producer = producer;
            batch.owner = owner;
            batch.sequence = sequence;
            ReleasedGil unlocked;
            return self.append(partition, batch);
          },
          "partition"_a, "values"_a, "keys"_a, "times_ms"_a, "producer"_a = 0, "owner"_a = 0, "sequence"_a = 0,
          nb::sig("def append(self, partition: int, values: collections.abc.Sequence[bytes | bytearray | memoryview], "
                  "keys: collections.abc.Sequence[bytes | bytearray | memoryview], "
                  "times_ms: collections.abc.Sequence[int], producer: int = 0, owner: int = 0, "
                  "sequence: int = 0) -> int"),
          "Append one batch by itself and return its base offset.")
      .def("stop", &TopicWriter::stop, Unlocked())
      .def_prop_ro("waiting_bytes", &TopicWriter::waiting_bytes)
      .def_prop_ro("written_records", &TopicWriter::written_records)
      .def_prop_ro("written_bytes", &TopicWriter::written_bytes)
      .def_prop_ro("refused_appends", &TopicWriter::refused_appends);
}

void bind_reader(nb::module_& m) {
  nb::class_<Chunk>(m, "EventLogChunk", "Records of one partition with consecutive offsets.")
      .def_ro("partition", &Chunk::partition)
      .def_ro("begin", &Chunk::begin)
      .def_ro("end", &Chunk::end)
      .def_ro("epoch", &Chunk::epoch)
      .def_ro("records", &Chunk::records, "The values.")
      .def("__len__", [](const Chunk& chunk) { return chunk.times_ms.size(); })
      .def_prop_ro(
          "keys",
          [](const Chunk& chunk) {
            nb::list keys;
            for (std::size_t i = 0; i < chunk.keys.size(); ++i) {
              keys.append(nb::bytes(chunk.key(i).data(), chunk.key(i).size()));
            }
            return keys;
          },
          nb::sig("def keys(self) -> list[bytes]"))
      .def_prop_ro(
          "times_ms", [](const Chunk& chunk) { return as_vector(std::vector<std::int64_t>(chunk.times_ms)); },
          nb::rv_policy::move)
      .def_prop_ro(
          "append_ms", [](const Chunk& chunk) { return as_vector(std::vector<std::int64_t>(chunk.append_ms)); },
          nb::rv_policy::move);
  const auto at = [](TopicReader& self, std::size_t index) -> eventlog::PartitionReader& {
    if (index >= self.size()) throw nb::index_error();
    return self[index];
  };
  nb::class_<TopicReader>(m, "EventLogReader",
                          "Reads partitions in turn. Used by one thread; ``interrupt`` may come from another.")
      .def(
          "__init__",
          [](TopicReader* self, Partitions partitions, const Path& wake_path, bool skips_lost, bool skips_corrupt) {
            new (self) TopicReader(std::move(partitions), wake_path,
                                   {.skips_lost = skips_lost, .skips_corrupt = skips_corrupt});
          },
          "partitions"_a, "wake_path"_a, "skips_lost"_a = false, "skips_corrupt"_a = false)
      .def("read", &TopicReader::read, "most_records"_a, "wait_ms"_a, Unlocked(),
           "Return the next records of any partition; None after ``wait_ms`` without one.")
      .def(
          "read_partition",
          [at](TopicReader& self, std::size_t index, std::size_t most_records, std::uint64_t limit) {
            return at(self, index).read(most_records, limit);
          },
          "index"_a, "most_records"_a, "limit"_a, Unlocked(),
          "Return the next records of one partition below the offset ``limit``; None at its end.")
      .def("interrupt", &TopicReader::interrupt)
      .def(
          "seek",
          [at](TopicReader& self, std::size_t index, std::uint64_t offset, std::uint64_t epoch) {
            at(self, index).seek(offset, epoch);
          },
          "index"_a, "offset"_a, "epoch"_a = 0, Unlocked())
      .def(
          "find_time",
          [at](TopicReader& self, std::size_t index, std::int64_t time_ms) {
            return at(self, index).find_time(time_ms);
          },
          "index"_a, "time_ms"_a, Unlocked())
      .def(
          "next_append_ms", [at](TopicReader& self, std::size_t index) { return at(self, index).next_append_ms(); },
          "index"_a, Unlocked())
      .def(
          "next", [at](TopicReader& self, std::size_t index) { return at(self, index).next(); }, "index"_a)
      .def(
          "epoch", [at](TopicReader& self, std::size_t index) { return at(self, index).epoch(); }, "index"_a)
      .def(
          "lost", [at](TopicReader& self, std::size_t index) { return at(self, index).lost(); }, "index"_a)
      .def(
          "corrupt_batches", [at](TopicReader& self, std::size_t index) { return at(self, index).corrupt_batches(); },
          "index"_a)
      .def(
          "corrupt_records", [at](TopicReader& self, std::size_t index) { return at(self, index).corrupt_records(); },
          "index"_a);
}

}  // namespace

void bind_eventlog(nb::module_& m) {
  nb::register_exception_translator(&translate);
  bind_partition(m);
  bind_writer(m);
  bind_reader(m);
  m.def(
      "event_log_partition",
      [](nb::handle key, std::uint32_t partitions) {
        if (partitions == 0) throw engine::ConfigError("partitions is 0, expected at least 1");
        return eventlog::choose_partition(Buffer(key).bytes(), partitions);
      },
      "key"_a, "partitions"_a,
      nb::sig("def event_log_partition(key: bytes | bytearray | memoryview, partitions: int) -> int"),
      "Return the partition of a key.");
}

}  // namespace bindings
