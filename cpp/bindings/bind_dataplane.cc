// bind_dataplane.cc: the shard, its listener and its clients for Python; converts, releases the GIL and forwards.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "arrays.h"
#include "dataplane/fan_out.h"
#include "dataplane/listener.h"
#include "engine/data/records.h"
#include "module.h"
#include "path.h"

namespace bindings {

using namespace nb::literals;

namespace {

using dataplane::Clock;
using dataplane::Code;
using dataplane::Deadline;
using dataplane::Failure;
using Millis = std::chrono::milliseconds;

Deadline deadline_in(std::optional<std::int64_t> timeout_ms) {
  return timeout_ms ? Clock::now() + Millis(*timeout_ms) : Deadline::max();
}

std::string as_text(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// --- errors ---

const char* error_class(const Failure& failure) {
  switch (failure.kind) {
    case Failure::Kind::kTimeout:
      return "RpcTimeout";
    case Failure::Kind::kClosed:
      return "ShardUnavailable";
    case Failure::Kind::kRefused:
      if (failure.code == Code::kConfig) return "ConfigError";
      return failure.may_retry ? "ShardUnavailable" : "ClusterError";
    case Failure::Kind::kRemote:
      break;
  }
  switch (failure.code) {
    case Code::kConfig:
      return "ConfigError";
    case Code::kDimension:
      return "DimensionMismatch";
    case Code::kCapacity:
      return "CapacityExceeded";
    case Code::kEngine:
      return "EngineError";
    case Code::kLate:
      return "RpcTimeout";
    default:
      return "ClusterError";
  }
}

nb::object new_error(const char* name, const char* text) {
  return nb::module_::import_("monolith.core.errors").attr(name)(message(text));
}

void raise(const nb::object& error) { PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr()); }

void raise_failed(const dataplane::CallFailed& failed) {
  const Failure& worst = failed.worst();
  const nb::object error = new_error(error_class(worst), failed.what());
  error.attr("retryable") = worst.may_retry;
  error.attr("failures") = nb::tuple(nb::cast(failed.failures));
  raise(error);
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const dataplane::CallFailed& failed) {
    raise_failed(failed);
  } catch (const dataplane::Late& error) {
    raise(new_error("RpcTimeout", error.what()));
  } catch (const dataplane::SequenceForgotten& error) {
    raise(new_error("ClusterError", error.what()));
  } catch (const dataplane::PartlyApplied& error) {
    raise(new_error("ClusterError", error.what()));
  }
}

// --- the shard ---

// The payload where the parser wants it: at a multiple of 8. Bytes objects are there already.
class AlignedPayload {
 public:
  explicit AlignedPayload(dataplane::Bytes payload) : payload_(payload) {
    if (reinterpret_cast<std::uintptr_t>(payload.data()) % 8 == 0) return;
    copy_ = engine::data::Buffer::take(payload.size());
    std::memcpy(copy_->data(), payload.data(), payload.size());
    payload_ = {copy_->data(), payload.size()};
  }
  [[nodiscard]] dataplane::Bytes bytes() const noexcept { return payload_; }

 private:
  dataplane::Bytes payload_;
  std::shared_ptr<engine::data::Buffer> copy_;
};

// Rows go straight into the memory of a bytes object that Python has not seen yet.
class MemorySink final : public dataplane::RowSink {
 public:
  explicit MemorySink(std::byte* at) : at_(at) {}
  std::byte* room(std::size_t) override { return at_; }
  void filled(std::size_t bytes) override { at_ += bytes; }

 private:
  std::byte* at_;
};

nb::bytes pull(dataplane::Shard& shard, nb::handle request, bool half, std::optional<std::int64_t> timeout_ms,
               std::optional<std::size_t> max_reply_bytes) {
  const Deadline deadline = deadline_in(timeout_ms);
  const Buffer buffer(request);
  std::optional<AlignedPayload> payload;
  dataplane::PullRequest parsed;
  {
    ReleasedGil unlocked;
    payload.emplace(buffer.bytes());
    parsed = shard.read_pull(payload->bytes());
    if (max_reply_bytes) shard.check_reply(parsed, half, *max_reply_bytes, "max_message_bytes");
  }
  const auto size = static_cast<Py_ssize_t>(shard.reply_bytes(parsed, half));
  const auto reply = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, size));
  if (!reply.is_valid()) throw nb::python_error();
  MemorySink sink(reinterpret_cast<std::byte*>(PyBytes_AsString(reply.ptr())));
  {
    ReleasedGil unlocked;
    shard.pull(parsed, half, deadline, sink);
  }
  return reply;
}

nb::bytes push(dataplane::Shard& shard, nb::handle request, bool half, std::optional<std::int64_t> timeout_ms) {
  const Deadline deadline = deadline_in(timeout_ms);
  const Buffer buffer(request);
  {
    ReleasedGil unlocked;
    const AlignedPayload payload(buffer.bytes());
    shard.push(payload.bytes(), half, deadline);
  }
  return nb::bytes("", 0);
}

nb::dict call_figures(const dataplane::CallStats& stats) {
  nb::dict figures;
  figures["count"] = stats.count.load();
  figures["errors"] = stats.errors.load();
  figures["sum_us"] = stats.sum_us.load();
  nb::list bounds;
  for (const std::uint64_t bound : dataplane::kBucketBoundsUs) bounds.append(bound);
  nb::list buckets;
  for (const auto& bucket : stats.buckets) buckets.append(bucket.load());
  figures["bounds_us"] = bounds;
  figures["buckets"] = buckets;
  return figures;
}

nb::typed<nb::dict, nb::str, nb::any> stats(dataplane::Shard& shard) {
  std::vector<dataplane::Shard::TableFigures> tables;
  {
    ReleasedGil unlocked;
    tables = shard.table_figures();
  }
  nb::dict by_name;
  for (const auto& table : tables) {
    nb::dict figures;
    figures["rows"] = table.rows;
    figures["bytes"] = table.bytes;
    figures["ids_pulled"] = table.ids_pulled;
    figures["ids_pushed"] = table.ids_pushed;
    by_name[table.name.c_str()] = figures;
  }
  nb::dict all;
  all["pull"] = call_figures(shard.pull_stats());
  all["push"] = call_figures(shard.push_stats());
  all["repeated_pushes"] = shard.repeats();
  all["late_calls"] = shard.lates();
  all["clients"] = shard.marks().clients();
  all["tables"] = by_name;
  return nb::borrow<nb::typed<nb::dict, nb::str, nb::any>>(all);
}

// Key, client, revision and value of a job record.
using RecordTuple = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, nb::bytes>;

// Holds pushes back while a `with` block runs.
class Pause {
 public:
  explicit Pause(std::shared_ptr<dataplane::Shard> shard) : shard_(std::move(shard)) {}
  ~Pause() { leave(); }

  void enter() {
    ReleasedGil unlocked;
    shard_->push_lock().lock();
    is_held_ = true;
  }
  void leave() noexcept {
    if (std::exchange(is_held_, false)) shard_->push_lock().unlock();
  }

 private:
  std::shared_ptr<dataplane::Shard> shard_;
  bool is_held_ = false;
};

void bind_shard(nb::module_& m) {
  using dataplane::Shard;
  nb::class_<Pause>(m, "PsPause")
      .def("__enter__", &Pause::enter)
      .def(
          "__exit__", [](Pause& pause, nb::handle, nb::handle, nb::handle) { pause.leave(); }, "kind"_a.none(),
          "error"_a.none(), "trace"_a.none());
  nb::class_<Shard>(m, "PsShard")
      .def(nb::init<std::uint32_t, std::uint32_t, std::vector<std::shared_ptr<engine::Table>>,
                    std::vector<std::string>>(),
           "index"_a, "count"_a, "tables"_a, "names"_a)
      .def_prop_ro("index", &Shard::index)
      .def_prop_ro("count", &Shard::count)
      .def_prop_ro("instance", &Shard::instance)
      .def_prop_ro("tables_hash", &Shard::tables_hash)
      .def("pull", &pull, "request"_a, nb::kw_only(), "half"_a = false, "timeout_ms"_a.none() = nb::none(),
           "max_reply_bytes"_a.none() = nb::none(),
           nb::sig("def pull(self, request: typing_extensions.Buffer, *, half: bool = False, "
                   "timeout_ms: int | None = None, max_reply_bytes: int | None = None) -> bytes"))
      .def("push", &push, "request"_a, nb::kw_only(), "half"_a = false, "timeout_ms"_a.none() = nb::none(),
           nb::sig("def push(self, request: typing_extensions.Buffer, *, half: bool = False, "
                   "timeout_ms: int | None = None) -> bytes"))
      .def("stats", &stats)
      .def(
          "pause_pushes", [](std::shared_ptr<Shard> shard) { return new Pause(std::move(shard)); },
          nb::rv_policy::take_ownership)
      .def(
          "hold_pushes",
          [](Shard& shard, std::uint64_t hold, std::int64_t lease_ms) {
            ReleasedGil unlocked;
            shard.hold_pushes(hold, Millis(lease_ms));
          },
          "hold"_a, "lease_ms"_a)
      .def(
          "settle_pushes",
          [](Shard& shard, std::uint64_t hold, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& pushes,
             std::int64_t timeout_ms) {
            std::vector<dataplane::PushName> names;
            for (const auto& [client, sequence] : pushes) names.push_back({client, sequence});
            ReleasedGil unlocked;
            return shard.settle_pushes(hold, names, Clock::now() + Millis(timeout_ms));
          },
          "hold"_a, "pushes"_a, "timeout_ms"_a)
      .def("release_pushes", &Shard::release_pushes, "hold"_a, nb::call_guard<ReleasedGil>())
      .def("client_marks",
           [](Shard& shard) {
             std::vector<std::byte> marks;
             {
               ReleasedGil unlocked;
               marks = shard.marks().save();
             }
             return as_bytes(marks);
           })
      .def(
          "restore_client_marks",
          [](Shard& shard, const nb::bytes& marks) {
            const std::string copy = as_text(marks);
            ReleasedGil unlocked;
            shard.marks().load(std::as_bytes(std::span(copy)));
          },
          "marks"_a)
      .def(
          "put_job_record",
          [](Shard& shard, std::uint64_t key, std::uint64_t client, std::uint64_t revision, const nb::bytes& value) {
            dataplane::JobRecord record{.key = key, .client = client, .revision = revision, .value = as_text(value)};
            ReleasedGil unlocked;
            shard.put_record(std::move(record));
          },
          "key"_a, "client"_a, "revision"_a, "value"_a)
      .def("job_records",
           [](Shard& shard) {
             std::vector<dataplane::JobRecord> records;
             {
               ReleasedGil unlocked;
               records = shard.records().all();
             }
             std::vector<RecordTuple> tuples;
             for (const auto& record : records) {
               tuples.emplace_back(record.key, record.client, record.revision,
                                   nb::bytes(record.value.data(), record.value.size()));
             }
             return tuples;
           })
      .def(
          "replace_job_records",
          [](Shard& shard, const std::vector<RecordTuple>& tuples) {
            std::vector<dataplane::JobRecord> records;
            for (const auto& [key, client, revision, value] : tuples) {
              records.push_back({.key = key, .client = client, .revision = revision, .value = as_text(value)});
            }
            ReleasedGil unlocked;
            shard.records().replace(std::move(records));
          },
          "records"_a);
}

void bind_listener(nb::module_& m) {
  using dataplane::Listener;
  nb::class_<Listener>(m, "PsListener")
      .def(
          "__init__",
          [](Listener* self, std::shared_ptr<dataplane::Shard> shard, const Path& unix_path, const std::string& host,
             std::uint16_t port, const nb::bytes& token, std::size_t max_frame_bytes, std::size_t max_connections,
             std::size_t max_inflight_bytes) {
            if (unix_path.empty() == host.empty()) {
              throw engine::ConfigError("unix_path is '" + unix_path + "' and host is '" + host +
                                        "'; give one of them");
            }
            const bool is_unix = !unix_path.empty();
            new (self) Listener(std::move(shard), {.address = {is_unix, is_unix ? unix_path : host, port},
                                                   .token = as_text(token),
                                                   .max_frame_bytes = max_frame_bytes,
                                                   .max_connections = max_connections,
                                                   .max_inflight_bytes = max_inflight_bytes});
          },
          "shard"_a, nb::kw_only(), "unix_path"_a = "", "host"_a = "", "port"_a = 0, "token"_a,
          "max_frame_bytes"_a = std::size_t{256} << 20, "max_connections"_a = 1024,
          "max_inflight_bytes"_a = std::size_t{1} << 30)
      .def_prop_ro("address", [](const Listener& listener) { return StreamName(listener.address()); })
      .def_prop_ro("connections", &Listener::connections)
      .def_prop_ro("inflight_bytes", &Listener::inflight_bytes)
      .def("close", &Listener::close, nb::call_guard<ReleasedGil>());
}

// --- clients ---

void check_count(const char* what, std::size_t given, std::size_t tables) {
  if (given == tables) return;
  throw engine::DimensionMismatch(std::string(what) + " has " + std::to_string(given) + " entries, there are " +
                                  std::to_string(tables) + " tables; give one per table, or None");
}

void check_rows(const char* what, std::size_t table, const nb::ndarray<>& rows, std::size_t ids, std::size_t dim) {
  if (rows.shape(0) == ids && rows.shape(1) == dim) return;
  throw engine::DimensionMismatch(std::string(what) + " of table number " + std::to_string(table) + " have shape (" +
                                  std::to_string(rows.shape(0)) + ", " + std::to_string(rows.shape(1)) + "), need (" +
                                  std::to_string(ids) + ", " + std::to_string(dim) + ")");
}

Millis as_timeout(std::int64_t timeout_ms) {
  if (timeout_ms < 1) {
    throw engine::ConfigError("timeout_ms is " + std::to_string(timeout_ms) + "; give at least 1");
  }
  return Millis(timeout_ms);
}

template <class Array>
using PerTable = std::vector<std::optional<Array>>;
using Ids = Vector<const std::int64_t>;

const auto& entry(const auto& arrays, const char* what, std::size_t table) {
  if (arrays[table]) return *arrays[table];
  throw engine::ConfigError(std::string(what) + " of table number " + std::to_string(table) +
                            " is None, its ids are not; give both or neither");
}

void fan_pull(dataplane::FanOut& fan_out, const PerTable<Ids>& ids, const PerTable<Matrix<float>>& rows, bool half,
              std::int64_t timeout_ms) {
  const auto dims = fan_out.dims();
  check_count("ids", ids.size(), dims.size());
  check_count("rows", rows.size(), dims.size());
  std::vector<dataplane::PullPart> parts;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!ids[i]) continue;
    const Matrix<float>& out = entry(rows, "rows", i);
    check_rows("rows", i, nb::ndarray<>(out), ids[i]->size(), dims[i]);
    parts.push_back({static_cast<std::uint32_t>(i), as_span(*ids[i]), out.data()});
  }
  const Millis timeout = as_timeout(timeout_ms);
  ReleasedGil unlocked;
  fan_out.pull(parts, half, timeout);
}

void fan_push(dataplane::FanOut& fan_out, const PerTable<Ids>& ids, const PerTable<Matrix<const float>>& grads,
              const PerTable<Vector<const std::uint32_t>>& counts, const PerTable<Vector<const float>>& learning_rates,
              std::uint64_t client, std::uint64_t sequence, std::int64_t time_s, std::int64_t step, bool half,
              std::int64_t timeout_ms,
              const std::optional<std::tuple<std::uint64_t, std::uint64_t, nb::bytes>>& job_record) {
  const auto dims = fan_out.dims();
  check_count("ids", ids.size(), dims.size());
  check_count("grads", grads.size(), dims.size());
  check_count("counts", counts.size(), dims.size());
  check_count("learning_rates", learning_rates.size(), dims.size());
  dataplane::PushCall call{.client = client, .sequence = sequence, .time_s = time_s, .step = step, .parts = {}};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!ids[i]) continue;
    const Matrix<const float>& gradients = entry(grads, "grads", i);
    const auto& seen = entry(counts, "counts", i);
    check_rows("grads", i, nb::ndarray<>(gradients), ids[i]->size(), dims[i]);
    if (seen.size() != ids[i]->size()) {
      throw engine::DimensionMismatch("counts of table number " + std::to_string(i) + " has " +
                                      std::to_string(seen.size()) + " entries, need " + std::to_string(ids[i]->size()));
    }
    call.parts.push_back({static_cast<std::uint32_t>(i), as_span(*ids[i]), as_span(seen),
                          as_span(entry(learning_rates, "learning_rates", i)), gradients.data()});
  }
  if (job_record) {
    const auto& [key, revision, value] = *job_record;
    dataplane::JobRecords::check(key, value.size());
    call.record = {.key = key, .client = client, .revision = revision, .value = as_text(value)};
  }
  const Millis timeout = as_timeout(timeout_ms);
  ReleasedGil unlocked;
  fan_out.push(call, half, timeout);
}

const char* kind_name(const Failure& failure) {
  switch (failure.kind) {
    case Failure::Kind::kRefused:
      return "refused";
    case Failure::Kind::kClosed:
      return "closed";
    case Failure::Kind::kTimeout:
      return "timeout";
    case Failure::Kind::kRemote:
      return "remote";
  }
  return "";
}

void bind_clients(nb::module_& m) {
  using dataplane::Connection;
  using dataplane::FanOut;
  nb::class_<Failure>(m, "PsFailure")
      .def_ro("server", &Failure::server)
      .def_prop_ro("address", [](const Failure& failure) { return StreamName(failure.address); })
      .def_prop_ro("kind", &kind_name)
      .def_prop_ro("error", &error_class)
      .def_prop_ro(
          "text", [](const Failure& failure) { return message(failure.text.c_str()); },
          nb::sig("def text(self) -> str"))
      .def_ro("may_retry", &Failure::may_retry)
      .def_ro("is_surely_not_applied", &Failure::is_surely_not_applied);
  nb::class_<Connection>(m, "PsConnection")
      .def(
          "__init__",
          [](Connection* self, const StreamName& address, const nb::bytes& token, std::int64_t timeout_ms,
             std::uint32_t shard, std::uint32_t shards, std::uint64_t tables_hash) {
            new (self) Connection(
                address, {.shard = shard, .shards = shards, .tables_hash = tables_hash, .token = as_text(token)},
                Millis(timeout_ms));
          },
          "address"_a, "token"_a, "timeout_ms"_a, nb::kw_only(), "shard"_a, "shards"_a, "tables_hash"_a)
      .def_prop_ro("address", [](const Connection& connection) { return StreamName(connection.address().text()); })
      .def_prop_ro("instance", &Connection::instance)
      .def_prop_ro("idle_sockets", &Connection::idle_sockets)
      .def("connect", &Connection::connect, nb::call_guard<ReleasedGil>())
      .def("close", &Connection::close);
  nb::class_<FanOut>(m, "PsFanOut")
      .def(nb::init<std::vector<std::shared_ptr<Connection>>, std::vector<std::uint32_t>>(), "connections"_a, "dims"_a)
      .def("pull", &fan_pull, "ids"_a.noconvert(), "rows"_a.noconvert(), nb::kw_only(), "half"_a = false,
           "timeout_ms"_a)
      .def("push", &fan_push, "ids"_a.noconvert(), "grads"_a.noconvert(), "counts"_a.noconvert(),
           "learning_rates"_a.noconvert(), nb::kw_only(), "client"_a, "sequence"_a, "time_s"_a, "step"_a,
           "half"_a = false, "timeout_ms"_a, "job_record"_a.none() = nb::none());
}

}  // namespace

void bind_dataplane(nb::module_& m) {
  nb::register_exception_translator(&translate);
  m.def(
      "ps_tables_hash",
      [](const std::vector<std::string>& names, const std::vector<std::uint32_t>& dims) {
        check_count("dims", dims.size(), names.size());
        return dataplane::hash_tables(names, dims);
      },
      "names"_a, "dims"_a);
  m.def(
      "ps_shard_of",
      [](const Ids& ids, std::uint64_t shards) {
        if (shards == 0) throw engine::ConfigError("shards is 0; give at least 1");
        const dataplane::ShardMap map(shards);
        std::vector<std::int64_t> found(ids.size());
        for (std::size_t i = 0; i < ids.size(); ++i) found[i] = static_cast<std::int64_t>(map.shard_of(ids.data()[i]));
        return as_vector(std::move(found));
      },
      "ids"_a.noconvert(), "shards"_a);
  bind_shard(m);
  bind_listener(m);
  bind_clients(m);
}

}  // namespace bindings
