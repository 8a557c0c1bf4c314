// bind_serving.cc: the native request path of a model server. Converts, releases the GIL and forwards.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "engine/error.h"
#include "module.h"
#include "path.h"
#include "serving/memory.h"
#include "serving/model.h"
#include "serving/onnx.h"
#include "serving/score_request.h"
#include "serving/server.h"
#include "serving/service.h"

namespace bindings {

using namespace nb::literals;
using serving::Clock;
using serving::Model;

namespace {

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

using InitializerTuple = std::tuple<std::string, int, std::vector<std::int64_t>, nb::bytes>;

void make_session(serving::OnnxSession* self, const Path& library, const Path& path,
                  const std::vector<InitializerTuple>& weights) {
  std::vector<serving::Initializer> initializers;
  for (const auto& [name, type, dims, bytes] : weights) {
    const auto* data = reinterpret_cast<const std::byte*>(bytes.c_str());
    initializers.push_back({name, type, dims, {data, data + bytes.size()}});
  }
  ReleasedGil unlocked;
  new (self) serving::OnnxSession(serving::OnnxRuntime::open(library), path, std::move(initializers));
}

serving::Source source_of(const std::string& name) {
  using serving::Source;
  if (name == "layout") return Source::kLayout;
  if (name == "dense") return Source::kDense;
  if (name == "label") return Source::kLabel;
  if (name == "label_mask") return Source::kLabelMask;
  if (name == "weight") return Source::kWeight;
  if (name == "sample_rate") return Source::kSampleRate;
  if (name == "event_time_s") return Source::kEventTime;
  if (name == "uid") return Source::kUid;
  throw engine::ConfigError("source of an input is '" + name + "', expected layout, dense or a field of a batch");
}

using InputTuple = std::tuple<std::string, std::string, std::size_t, std::vector<std::int64_t>>;
using OutputTuple = std::tuple<std::string, std::vector<std::int64_t>>;
using SignatureTuple = std::tuple<std::vector<std::size_t>, std::string>;

void make_model(Model* self, std::string name, std::int64_t version, const engine::layout::Layouts& layouts,
                nb::sequence parsers, std::vector<std::size_t> id_places, std::vector<std::size_t> layout_widths,
                const std::vector<InputTuple>& inputs, const std::vector<OutputTuple>& outputs,
                const std::map<std::string, SignatureTuple>& signatures) {
  serving::ModelConfig config;
  config.name = std::move(name);
  config.version = version;
  config.id_places = std::move(id_places);
  config.layout_widths = std::move(layout_widths);
  std::vector<Model::ParserRecipe> recipes;
  std::size_t dense = 0;
  std::size_t sparse = 0;
  for (nb::handle item : parsers) {
    const auto pair = nb::cast<nb::tuple>(item);
    const auto& rows = nb::cast<const engine::data::RowParser&>(pair[0]);
    const auto& batch = nb::cast<const engine::data::Assembler&>(pair[1]);
    std::vector<std::string> columns;
    for (std::uint32_t i = 0; i < rows.columns().size(); ++i) columns.push_back(rows.columns().name(i));
    recipes.push_back({rows.config(), std::move(columns), batch.config()});
    dense = batch.config().dense.size();
    sparse = batch.config().sparse.size();
  }
  for (const std::size_t place : config.id_places) {
    if (place >= sparse) throw engine::ConfigError("a feature of the layouts has no place in the parser");
  }
  for (const auto& [input, source, place, tail] : inputs) {
    config.inputs.push_back({input, source_of(source), place, tail});
    const bool is_layout = config.inputs.back().source == serving::Source::kLayout;
    if ((is_layout && place >= config.layout_widths.size()) ||
        (config.inputs.back().source == serving::Source::kDense && place >= dense)) {
      throw engine::ConfigError("input '" + input + "' has no place in the batch");
    }
  }
  for (const auto& [output, tail] : outputs) config.outputs.push_back({output, tail});
  for (const auto& [signature, parts] : signatures) {
    for (const std::size_t place : std::get<0>(parts)) {
      if (place >= config.outputs.size()) throw engine::ConfigError("signature '" + signature + "' has no such output");
    }
    config.signatures[signature] = {std::get<0>(parts), std::get<1>(parts)};
  }
  new (self) Model(std::move(config), layouts, std::move(recipes));
}

nb::tuple score(const Model& model, std::shared_ptr<engine::data::Records> records, const std::string& input,
                const std::vector<std::size_t>& outputs) {
  const auto kind = serving::record_kind(input);
  if (!kind) throw engine::ConfigError("input is '" + input + "', expected the name of an input of records");
  for (const std::size_t place : outputs) {
    if (place >= model.config().outputs.size()) throw nb::index_error();
  }
  auto scores = std::make_unique<serving::Scores>();
  {
    ReleasedGil unlocked;
    *scores = model.score(std::move(records), *kind, outputs);
  }
  nb::list arrays;
  for (const auto& values : scores->outputs) {
    arrays.append(nb::cast(as_vector(std::vector<float>(values.begin(), values.end()))));
  }
  return nb::make_tuple(scores->rows, arrays);
}

using VersionTuple = std::tuple<std::int64_t, std::optional<std::shared_ptr<Model>>, double, bool>;
using RouteTuple = std::tuple<std::vector<VersionTuple>, std::map<std::string, std::int64_t>>;

void set_routes(serving::Service& service, const std::map<std::string, RouteTuple>& routes) {
  auto made = std::make_shared<serving::Routes>();
  for (const auto& [name, parts] : routes) {
    serving::Route& route = (*made)[name];
    for (const auto& [version, model, logged_share, has_canary] : std::get<0>(parts)) {
      route.versions[version] = {model.value_or(nullptr), logged_share, has_canary};
    }
    for (const auto& [label, version] : std::get<1>(parts)) route.labels[label] = version;
  }
  ReleasedGil unlocked;
  service.set_routes(std::move(made));
}

void make_service(serving::Service* self, std::size_t threads, std::size_t max_rows, double wait_s,
                  std::size_t max_queued_rows, std::size_t max_queued_bytes, std::vector<std::int64_t> bounds_us,
                  std::size_t max_values) {
  serving::ServiceConfig config;
  config.queue = {.max_rows = max_rows,
                  .wait = seconds(wait_s),
                  .threads = threads,
                  .max_queued_rows = max_queued_rows,
                  .max_queued_bytes = max_queued_bytes};
  config.bounds_us = std::move(bounds_us);
  config.max_values = max_values;
  new (self) serving::Service(std::move(config));
}

const char* name_of(serving::Api api) { return api == serving::Api::kRest ? "rest" : "grpc"; }

nb::dict service_stats(const serving::Service& service) {
  const auto counts = service.stats();
  nb::dict answers;
  for (const auto& [key, count] : counts.answers) {
    answers[nb::make_tuple(std::get<0>(key), name_of(std::get<1>(key)), serving::code_name(std::get<2>(key)))] = count;
  }
  nb::dict durations;
  for (const auto& [key, each] : counts.durations) {
    durations[nb::make_tuple(std::get<0>(key), name_of(std::get<1>(key)))] =
        nb::make_tuple(each.count, each.sum_us, each.buckets);
  }
  nb::dict found;
  found["answers"] = answers;
  found["durations"] = durations;
  found["batches"] = counts.batches;
  found["rows"] = counts.rows;
  found["wait_us"] = counts.wait_us;
  return found;
}

void make_server(serving::Server* self, std::shared_ptr<serving::Service> service, std::string host,
                 std::optional<int> rest_port, std::optional<int> grpc_port, std::size_t io_threads,
                 std::size_t max_body, std::size_t max_pending, std::size_t max_connections, double idle_s,
                 double read_s, double answer_s, std::string token, std::string admin_token, Path cert_file,
                 Path key_file, Path ca_file) {
  serving::ServerConfig config;
  config.host = std::move(host);
  config.rest_port = rest_port.value_or(-1);
  config.grpc_port = grpc_port.value_or(-1);
  config.io_threads = io_threads;
  config.max_body = max_body;
  config.max_pending = max_pending;
  config.max_connections = max_connections;
  config.idle = seconds(idle_s);
  config.read = seconds(read_s);
  config.answer = seconds(answer_s);
  config.token = std::move(token);
  config.admin_token = std::move(admin_token);
  config.tls = {std::move(cert_file), std::move(key_file), std::move(ca_file)};
  ReleasedGil unlocked;
  new (self) serving::Server(std::move(config), std::move(service));
}

using PythonCall = serving::Service::PythonCall;

void answer(const PythonCall& call, int status, nb::bytes body, std::string content_type,
            std::vector<std::pair<std::string, std::string>> headers, int code, std::string message) {
  serving::Answer answer;
  answer.status = status;
  answer.body.assign(body.c_str(), body.size());
  answer.content_type = std::move(content_type);
  answer.headers = std::move(headers);
  answer.code = static_cast<serving::Code>(code);
  answer.message = std::move(message);
  ReleasedGil unlocked;
  call.request.caller->answer(std::move(answer));
}

void bind_models(nb::module_& m) {
  nb::class_<serving::OnnxSession>(m, "OnnxSession", "A dense program with one set of weights, run without Python.")
      .def("__init__", &make_session, "library"_a, "path"_a, "weights"_a,
           nb::sig("def __init__(self, library: str, path: str, weights: collections.abc.Sequence[tuple[str, int, "
                   "collections.abc.Sequence[int], bytes]]) -> None"));
  m.def(
      "onnx_version",
      [](const std::string& library) {
        ReleasedGil unlocked;
        return serving::OnnxRuntime::open(library)->version();
      },
      "library"_a, "Open ONNX Runtime, check it with a tiny program, and return its version.");
  nb::class_<Model>(m, "ServedModel", "One version, as the native request path scores it.")
      .def("__init__", &make_model, "name"_a, "version"_a, "layouts"_a, "parsers"_a, "id_places"_a, "layout_widths"_a,
           "inputs"_a, "outputs"_a, "signatures"_a,
           nb::sig("def __init__(self, name: str, version: int, layouts: Layouts, "
                   "parsers: collections.abc.Sequence[tuple[RowParser, Assembler]], "
                   "id_places: collections.abc.Sequence[int], layout_widths: collections.abc.Sequence[int], "
                   "inputs: collections.abc.Sequence[tuple[str, str, int, collections.abc.Sequence[int]]], "
                   "outputs: collections.abc.Sequence[tuple[str, collections.abc.Sequence[int]]], "
                   "signatures: collections.abc.Mapping[str, tuple[collections.abc.Sequence[int], str]]) -> None"))
      .def("lock", &Model::lock, nb::call_guard<ReleasedGil>(), "Wait for current batches; keep others out.")
      .def("unlock", &Model::unlock, "Let batches in again.")
      .def(
          "show",
          [](Model& model, std::vector<std::shared_ptr<engine::Table>> tables,
             std::optional<std::shared_ptr<serving::OnnxSession>> dense,
             bool is_whole) { model.show(std::move(tables), dense.value_or(nullptr), is_whole); },
          "tables"_a, "dense"_a.none(), "is_whole"_a, "Replace rows and weights; the caller holds the lock.")
      .def("score", &score, "records"_a, "input"_a, "outputs"_a,
           nb::sig("def score(self, records: Records, input: str, outputs: collections.abc.Sequence[int]) -> "
                   "tuple[int, list[numpy.typing.NDArray[numpy.float32]]]"),
           "Return the rows and the flat values of each output.");
}

void bind_calls(nb::module_& m) {
  nb::class_<PythonCall>(m, "PythonCall", "A request that the native path leaves to Python.")
      .def_prop_ro("api", [](const PythonCall& call) { return name_of(call.request.api); })
      .def_prop_ro("method", [](const PythonCall& call) { return call.request.method; })
      .def_prop_ro("path", [](const PythonCall& call) { return call.request.path; })
      .def_prop_ro(
          "headers",
          [](const PythonCall& call) {
            nb::dict headers;  // bytes of headers are latin-1
            for (const auto& [name, value] : call.request.headers) {
              headers[nb::cast(name)] =
                  nb::steal(PyUnicode_DecodeLatin1(value.data(), static_cast<Py_ssize_t>(value.size()), nullptr));
            }
            return headers;
          },
          nb::sig("def headers(self) -> dict[str, str]"))
      .def_prop_ro("body",
                   [](const PythonCall& call) { return nb::bytes(call.request.body.data(), call.request.body.size()); })
      .def_prop_ro("is_compressed", [](const PythonCall& call) { return call.request.is_compressed; })
      .def_prop_ro("is_logged", [](const PythonCall& call) { return call.is_logged; })
      .def_prop_ro("is_wanted", [](const PythonCall& call) { return call.request.caller->is_wanted(); })
      .def_prop_ro("time_left_s",
                   [](const PythonCall& call) {
                     return std::chrono::duration<double>(call.request.deadline - Clock::now()).count();
                   })
      .def("answer", &answer, "status"_a, "body"_a, "content_type"_a = "application/json",
           "headers"_a = std::vector<std::pair<std::string, std::string>>{}, "code"_a = 0, "message"_a = "",
           "Answer the client; only the first answer counts.");
}

}  // namespace

void bind_serving(nb::module_& m) {
  bind_models(m);
  bind_calls(m);
  m.def("check_transport", &serving::check_transport, "needs_http2"_a, "needs_tls"_a,
        "Check that the libraries of the transport can be opened.");
  m.def("release_freed_memory", &serving::release_freed_memory, nb::call_guard<ReleasedGil>(),
        "Return freed memory of the heap to the system.");
  nb::class_<serving::Service>(m, "ScoreService", "Queue, model threads and routes of the native request path.")
      .def("__init__", &make_service, "threads"_a, "max_rows"_a, "wait_s"_a, "max_queued_rows"_a, "max_queued_bytes"_a,
           "bounds_us"_a, "max_values"_a)
      .def("set_routes", &set_routes, "routes"_a,
           nb::sig("def set_routes(self, routes: collections.abc.Mapping[str, tuple[collections.abc.Sequence[tuple[int,"
                   " ServedModel | None, float, bool]], collections.abc.Mapping[str, int]]]) -> None"),
           "Replace the versions by model name: (version, model or None for Python, share to log, has a canary).")
      .def(
          "next_call",
          [](serving::Service& service, double timeout_s) { return service.next_call(seconds(timeout_s)); },
          "timeout_s"_a, nb::call_guard<ReleasedGil>(), "Return the next request for Python, or None.")
      .def("take_errors", &serving::Service::take_errors, "Return unexpected errors since the last call, for the log.")
      .def("stats", &service_stats, nb::sig("def stats(self) -> dict[str, typing.Any]"), "Return all counts so far.")
      .def(
          "queued",
          [](const serving::Service& service) {
            const auto load = service.queued();
            return std::pair(load.requests, load.rows);
          },
          "Return the queued requests and rows.")
      .def(
          "close", [](serving::Service& service, double drain_s) { service.close(seconds(drain_s)); }, "drain_s"_a,
          nb::call_guard<ReleasedGil>(), "Answer the queue for a while, fail the rest, stop the threads.");
  nb::class_<serving::Server>(m, "ScoreServer", "Listens for REST and gRPC, without Python on the way of a score.")
      .def("__init__", &make_server, "service"_a, "host"_a, "rest_port"_a.none(), "grpc_port"_a.none(), "io_threads"_a,
           "max_body"_a, "max_pending"_a, "max_connections"_a, "idle_s"_a, "read_s"_a, "answer_s"_a, "token"_a,
           "admin_token"_a, "cert_file"_a, "key_file"_a, "ca_file"_a)
      .def_prop_ro("rest_port", &serving::Server::rest_port)
      .def_prop_ro("grpc_port", &serving::Server::grpc_port)
      .def_prop_ro("connections", [](const serving::Server& server) { return server.stats().connections.load(); })
      .def_prop_ro("pending_bytes", [](const serving::Server& server) { return server.stats().pending_bytes.load(); })
      .def_prop_ro("resets", [](const serving::Server& server) { return server.stats().resets.load(); })
      .def_prop_ro("accept_pauses", [](const serving::Server& server) { return server.stats().accept_pauses.load(); })
      .def(
          "close", [](serving::Server& server, double drain_s) { server.close(seconds(drain_s)); }, "drain_s"_a,
          nb::call_guard<ReleasedGil>(), "Stop listening, drain, close all connections.");
}

}  // namespace bindings
