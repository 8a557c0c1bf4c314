// bind_rows.cc: records -> rows -> batches. Converts, releases the GIL and forwards.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arrays.h"
#include "engine/data/assembler.h"
#include "engine/data/batch_rows.h"
#include "engine/data/line_id.h"
#include "engine/data/row.h"
#include "engine/data/row_encoder.h"
#include "engine/data/row_op.h"
#include "engine/data/row_parser.h"
#include "engine/data/shuffle_window.h"
#include "engine/error.h"
#include "line_fields.h"
#include "module.h"

namespace bindings {

using namespace nb::literals;
using engine::data::Assembler;
using engine::data::BatchData;
using engine::data::Columns;
using engine::data::Records;
using engine::data::RowParser;
using engine::data::Rows;
using engine::data::ShuffleWindow;

namespace {

engine::data::RecordKind record_kind(const std::string& name) {
  using engine::data::RecordKind;
  if (name == "instance") return RecordKind::kInstance;
  if (name == "example") return RecordKind::kExample;
  if (name == "example_batch") return RecordKind::kExampleBatch;
  if (name == "example_batch_row_major") return RecordKind::kExampleBatchRowMajor;
  if (name == "tf_example") return RecordKind::kTfExample;
  throw engine::ConfigError("record is '" + name +
                            "'; it must be instance, example, example_batch, example_batch_row_major or tf_example");
}

void make_parser(RowParser* self, const std::string& record, std::shared_ptr<Columns> columns, bool keep_all,
                 bool skip_corrupt, std::vector<std::string> label_features, std::string weight_feature,
                 std::unordered_map<std::string, std::uint32_t> aliases, const std::vector<LineFieldTuple>& line_fields,
                 std::uint64_t seed) {
  engine::data::ParserConfig config;
  config.kind = record_kind(record);
  config.keep_all = keep_all;
  config.skip_corrupt = skip_corrupt;
  config.label_features = std::move(label_features);
  config.weight_feature = std::move(weight_feature);
  config.aliases = std::move(aliases);
  if (!line_fields.empty()) config.line_fields = as_line_fields(line_fields);
  config.seed = seed;
  new (self) RowParser(std::move(config), std::move(columns));
}

using SparseTuple = std::tuple<std::string, std::uint32_t, std::int32_t, bool, std::string, bool>;
using DenseTuple = std::tuple<std::string, std::uint32_t, std::uint32_t, std::string, double, bool>;
using ExtraTuple = std::tuple<LineFieldTuple, std::uint32_t>;

engine::data::DenseKind dense_kind(const std::string& name) {
  using engine::data::DenseKind;
  if (name == "float32") return DenseKind::kFloat;
  if (name == "int64") return DenseKind::kInt64;
  if (name == "bytes") return DenseKind::kText;
  throw engine::ConfigError("dtype is '" + name + "'; it must be float32, int64 or bytes");
}

void make_assembler(Assembler* self, const std::vector<SparseTuple>& sparse, const std::vector<DenseTuple>& dense,
                    const std::vector<ExtraTuple>& extras, std::uint32_t labels, float missing_label,
                    bool keeps_fid_version) {
  engine::data::AssemblerConfig config;
  for (const auto& [name, column, slot, takes_flat, value_type, hashes_wide] : sparse) {
    const auto kind = engine::data::value_kind(value_type);
    if (!kind) throw engine::ConfigError("value_type of feature '" + name + "' is '" + value_type + "'");
    config.sparse.push_back({name, column, slot, takes_flat, *kind, hashes_wide});
  }
  for (const auto& [name, column, width, dtype, default_value, pads] : dense) {
    config.dense.push_back({name, column, width, dense_kind(dtype), default_value, pads});
  }
  for (const auto& [field, width] : extras) config.extras.push_back({as_line_field(field), width});
  config.labels = labels;
  config.missing_label = missing_label;
  config.keeps_fid_version = keeps_fid_version;
  new (self) Assembler(std::move(config));
}

// --- arrays of a batch: views, each of which keeps the batch alive. They refuse to be written, unless asked for so ---

using Batch = std::shared_ptr<BatchData>;

nb::capsule keep(const Batch& batch) {
  return {new Batch(batch), [](void* held) noexcept { delete static_cast<Batch*>(held); }};
}

template <typename T>
nb::object view(const Batch& batch, std::span<T> values, bool writable) {
  if (writable) return nb::cast(NewVector<T>(values.data(), {values.size()}, keep(batch)));
  return nb::cast(NewVector<const T>(values.data(), {values.size()}, keep(batch)));
}

template <typename T>
nb::object view(const Batch& batch, std::span<T> values, std::size_t columns, bool writable) {
  const std::size_t rows = batch->rows;
  if (writable) return nb::cast(NewMatrix<T>(values.data(), {rows, columns}, keep(batch)));
  return nb::cast(NewMatrix<const T>(values.data(), {rows, columns}, keep(batch)));
}

nb::tuple view(const Batch& batch, const BatchData::RaggedIds& ids, bool writable) {
  return nb::make_tuple(view(batch, ids.values, writable), view(batch, ids.offsets, writable), ids.is_shared);
}

// A matrix of numbers, or (bytes, offsets): whichever the place holds.
nb::object view(const Batch& batch, const std::vector<BatchData::Field>& fields, std::size_t place, bool writable) {
  if (place >= fields.size()) throw nb::index_error();
  const BatchData::Field& field = fields[place];
  if (field.reals.data() != nullptr) return view(batch, field.reals, field.width, writable);
  if (field.integers.data() != nullptr) return view(batch, field.integers, field.width, writable);
  const std::span<std::uint8_t> bytes{reinterpret_cast<std::uint8_t*>(field.texts.bytes.data()),
                                      field.texts.bytes.size()};
  return nb::make_tuple(view(batch, bytes, false), view(batch, field.texts.offsets, false));
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def(
      "batch_rows",
      [](nb::bytes record) {
        return engine::data::batch_rows({reinterpret_cast<const std::byte*>(record.c_str()), record.size()});
      },
      "record"_a, "Return the rows that a serialized ExampleBatch claims; None where it is not a message.");

  nb::class_<Columns>(m, "Columns", "Names of features and their column numbers; only grows.")
      .def(nb::init<>())
      .def("want", &Columns::want, "name"_a, "The column of that name; made when it is new.")
      .def("__len__", &Columns::size)
      .def(
          "name",
          [](const Columns& columns, std::uint32_t column) {
            if (column >= columns.size()) throw nb::index_error();
            return columns.name(column);
          },
          "column"_a);

  nb::class_<Rows>(m, "Rows", "A sequence of parsed rows.")
      .def(nb::init<>())
      .def("__len__", &Rows::size)
      .def(
          "slice",
          [](const Rows& rows, std::size_t begin, std::size_t end) {
            if (begin > end || end > rows.size()) throw nb::index_error();
            return rows.slice(begin, end);
          },
          "begin"_a, "end"_a)
      .def(
          "append", [](Rows& rows, const Rows& other) { rows.append(other); }, "other"_a)
      .def(
          "keys",
          [](const Rows& rows) {
            std::vector<std::uint64_t> keys(rows.size());
            for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = rows.info(i).key;
            return as_vector(std::move(keys));
          },
          "The random seed of each row.")
      .def(
          "source_keys",
          [](const Rows& rows) {
            std::vector<std::uint32_t> keys(rows.size());
            for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = rows.info(i).source_key;
            return as_vector(std::move(keys));
          },
          "The data source of each row, 0 when it is not known.");

  nb::class_<ShuffleWindow>(m, "ShuffleWindow", "The rows of one window in random order.")
      .def(nb::init<std::size_t, std::uint64_t>(), "size"_a, "seed"_a, nb::call_guard<ReleasedGil>())
      .def_prop_ro("missing", &ShuffleWindow::missing, "Rows that the window does not have yet.")
      .def_prop_ro("left", &ShuffleWindow::left, "Rows that were added and not read.")
      .def("add", &ShuffleWindow::add, "rows"_a, nb::call_guard<ReleasedGil>(),
           "Add the next rows, at most ``missing``; copies their values.")
      .def("read", &ShuffleWindow::read, nb::call_guard<ReleasedGil>(),
           "Return the next rows of the result; none at the end.");

  nb::class_<RowParser>(m, "RowParser", "Turns records into rows.")
      .def("__init__", &make_parser, "record"_a, "columns"_a, "keep_all"_a = false, "skip_corrupt"_a = false,
           "label_features"_a = std::vector<std::string>{}, "weight_feature"_a = "instance_weight",
           "aliases"_a = std::unordered_map<std::string, std::uint32_t>{},
           "line_fields"_a = std::vector<LineFieldTuple>{}, "seed"_a = 0)
      .def("parse", &RowParser::parse, "records"_a, nb::call_guard<ReleasedGil>())
      .def_rw("next_row", &RowParser::next_row)
      .def_ro("corrupt_records", &RowParser::corrupt_records);

  m.def("mix", &engine::data::mix, "seed"_a, "key"_a, "A well-mixed number of the two.");
  m.def(
      "encode_examples",
      [](const Rows& rows, const Columns& columns) {
        std::vector<std::string> examples;
        {
          ReleasedGil unlocked;
          examples = engine::data::encode_examples(rows, columns);
        }
        nb::list list;
        for (const auto& example : examples) list.append(nb::bytes(example.data(), example.size()));
        return list;
      },
      "rows"_a, "columns"_a, "Each row as a serialized Example.",
      nb::sig("def encode_examples(rows: Rows, columns: Columns) -> list[bytes]"));

  nb::class_<BatchData>(m, "BatchData", "The arrays of one batch.")
      .def_ro("rows", &BatchData::rows)
      .def_prop_ro(
          "value_kinds",
          [](const BatchData& batch) { return nb::bytes(batch.value_kinds.data(), batch.value_kinds.size()); },
          "A byte per sparse feature: the place of its type in VALUE_TYPES.")
      .def(
          "ids",
          [](const Batch& batch, std::size_t place, bool writable) {
            if (place >= batch->ids.size()) throw nb::index_error();
            return view(batch, batch->ids[place], writable);
          },
          "place"_a, "writable"_a = false,
          nb::sig("def ids(self, place: int, writable: bool = False) -> tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.int64], bool]"))
      .def(
          "dense",
          [](const Batch& batch, std::size_t place, bool writable) {
            return view(batch, batch->dense, place, writable);
          },
          "place"_a, "writable"_a = false, nb::sig("def dense(self, place: int, writable: bool = False) -> typing.Any"))
      .def(
          "extra",
          [](const Batch& batch, std::size_t place, bool writable) {
            return view(batch, batch->extras, place, writable);
          },
          "place"_a, "writable"_a = false, nb::sig("def extra(self, place: int, writable: bool = False) -> typing.Any"))
      .def(
          "label", [](const Batch& batch, bool writable) { return view(batch, batch->labels, batch->heads, writable); },
          "writable"_a = false,
          nb::sig("def label(self, writable: bool = False) -> numpy.typing.NDArray[numpy.float32]"))
      .def(
          "label_mask",
          [](const Batch& batch, bool writable) { return view(batch, batch->label_mask, batch->heads, writable); },
          "writable"_a = false,
          nb::sig("def label_mask(self, writable: bool = False) -> numpy.typing.NDArray[numpy.bool_]"))
      .def(
          "weight", [](const Batch& batch, bool writable) { return view(batch, batch->weights, writable); },
          "writable"_a = false,
          nb::sig("def weight(self, writable: bool = False) -> numpy.typing.NDArray[numpy.float32]"))
      .def(
          "sample_rate", [](const Batch& batch, bool writable) { return view(batch, batch->sample_rates, writable); },
          "writable"_a = false,
          nb::sig("def sample_rate(self, writable: bool = False) -> numpy.typing.NDArray[numpy.float32]"))
      .def(
          "event_time_s", [](const Batch& batch, bool writable) { return view(batch, batch->times_s, writable); },
          "writable"_a = false,
          nb::sig("def event_time_s(self, writable: bool = False) -> numpy.typing.NDArray[numpy.int64]"))
      .def(
          "uid", [](const Batch& batch, bool writable) { return view(batch, batch->uids, writable); },
          "writable"_a = false, nb::sig("def uid(self, writable: bool = False) -> numpy.typing.NDArray[numpy.int64]"))
      .def(
          "actions", [](const Batch& batch, bool writable) { return view(batch, batch->actions, writable); },
          "writable"_a = false,
          nb::sig("def actions(self, writable: bool = False) -> tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.int64], bool]"));

  nb::class_<Assembler>(m, "Assembler", "Turns rows into a batch.")
      .def("__init__", &make_assembler, "sparse"_a, "dense"_a, "extras"_a, "labels"_a, "missing_label"_a,
           "keeps_fid_version"_a)
      .def("assemble", &Assembler::assemble, "rows"_a, nb::call_guard<ReleasedGil>());
}

}  // namespace bindings
