// bind_layouts.cc: exposes layouts and their step plans; converts, releases the GIL and forwards.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>

#include "arrays.h"
#include "engine/data/assembler.h"
#include "engine/error.h"
#include "engine/layout/layouts.h"
#include "engine/layout/step_rows.h"
#include "engine/table.h"
#include "module.h"

namespace bindings {

using namespace nb::literals;
using engine::layout::Layouts;
using engine::layout::MatrixView;
using engine::layout::StepPlan;
using engine::layout::StepRows;

namespace {

using FeatureTuple = std::tuple<std::uint32_t, std::string, std::uint32_t>;
using TransformTuple = std::tuple<std::size_t, std::uint64_t, std::uint64_t, bool>;
using PartTuple = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;

engine::Pooling pooling_of(const std::string& name, std::size_t feature) {
  if (name == "sum") return engine::Pooling::kSum;
  if (name == "mean") return engine::Pooling::kMean;
  if (name == "first") return engine::Pooling::kFirst;
  throw engine::ConfigError("feature " + std::to_string(feature) + " has pooling '" + name +
                            "'; use sum, mean or first");
}

void make_layouts(Layouts* self, std::vector<std::size_t> table_dims, const std::vector<FeatureTuple>& features,
                  const std::vector<PartTuple>& parts, std::vector<std::size_t> output_widths,
                  const std::vector<TransformTuple>& id_transforms) {
  std::vector<engine::layout::Feature> made_features;
  for (const auto& [table, pooling, n] : features) {
    made_features.push_back({table, pooling_of(pooling, made_features.size()), n, {}});
  }
  for (const auto& [feature, size, divisor, is_quotient] : id_transforms) {
    if (feature >= made_features.size()) {
      throw engine::ConfigError("an id transform is of feature " + std::to_string(feature) + ", expected less than " +
                                std::to_string(made_features.size()) + "; features count from 0");
    }
    made_features[feature].transform = {.size = size, .divisor = divisor, .is_quotient = is_quotient};
  }
  std::vector<engine::layout::Part> made_parts;
  for (const auto& [output, feature, column, width, offset, stride] : parts) {
    made_parts.push_back({output, feature, column, width, offset, stride});
  }
  new (self) Layouts(std::move(table_dims), std::move(made_features), made_parts, std::move(output_widths));
}

// The arrays of a sequence as they are: a copy would be filled and thrown away.
template <class Array>
std::vector<Array> arrays_of(nb::sequence items, const char* what, const char* wanted) {
  std::vector<Array> arrays;
  for (nb::handle item : items) {
    Array array;
    if (!item.is_none() && !nb::try_cast(item, array, false)) {
      throw engine::DimensionMismatch(std::string(what) + " " + std::to_string(arrays.size()) +
                                      " is not a C-contiguous array of " + wanted);
    }
    arrays.push_back(std::move(array));
  }
  return arrays;
}

template <class T>
std::vector<MatrixView<T>> views_of(const std::vector<Matrix<T>>& arrays) {
  std::vector<MatrixView<T>> views;
  for (const auto& array : arrays) {
    if (array.is_valid()) {
      views.push_back({array.data(), array.shape(0), array.shape(1)});
    } else {
      views.emplace_back();
    }
  }
  return views;
}

using Ids = Vector<const std::int64_t>;

StepPlan make_plan(const Layouts& layouts, std::size_t rows, nb::sequence values, nb::sequence offsets,
                   const std::vector<bool>& shared) {
  const auto all_values = arrays_of<Ids>(values, "the ids of feature", "int64 with one dimension");
  const auto all_offsets = arrays_of<Ids>(offsets, "the offsets of feature", "int64 with one dimension");
  if (all_values.size() != all_offsets.size() || all_values.size() != shared.size()) {
    throw engine::DimensionMismatch("there are values of " + std::to_string(all_values.size()) +
                                    " features, offsets of " + std::to_string(all_offsets.size()) +
                                    " and shared flags of " + std::to_string(shared.size()) +
                                    "; give one of each per feature");
  }
  std::vector<engine::layout::FeatureIds> ids;
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (!all_values[i].is_valid() || !all_offsets[i].is_valid()) {
      throw engine::DimensionMismatch("feature " + std::to_string(i) + " has no ids; a batch has every feature");
    }
    ids.push_back({as_span(all_values[i]), as_span(all_offsets[i]), shared[i]});
  }
  ReleasedGil unlocked;
  return layouts.plan(rows, ids, *shared_pool());
}

// The same for ids that a parser left in a batch: feature i is at places[i].
StepPlan make_plan_of(const Layouts& layouts, const engine::data::BatchData& batch,
                      const std::vector<std::size_t>& places) {
  std::vector<engine::layout::FeatureIds> ids;
  ids.reserve(places.size());
  for (const std::size_t place : places) {
    if (place >= batch.ids.size()) throw nb::index_error();
    const auto& each = batch.ids[place];
    ids.push_back({each.values, each.offsets, each.is_shared});
  }
  ReleasedGil unlocked;
  return layouts.plan(batch.rows, ids, *shared_pool());
}

void pool(const StepPlan& plan, nb::sequence rows, nb::sequence outputs) {
  const auto all_rows = arrays_of<Matrix<const float>>(rows, "the rows of table", "float32 with two dimensions");
  const auto all_outputs = arrays_of<Matrix<float>>(outputs, "output", "writable float32 with two dimensions");
  const auto row_views = views_of(all_rows);
  const auto output_views = views_of(all_outputs);
  ReleasedGil unlocked;
  plan.pool(row_views, output_views, *shared_pool());
}

// Looks the ids of every table up and pools their rows, in one step.
void gather(const StepPlan& plan, const std::vector<std::shared_ptr<engine::Table>>& tables, nb::sequence outputs) {
  if (tables.size() != plan.tables()) {
    throw engine::DimensionMismatch("there are " + std::to_string(tables.size()) + " tables; the plan has ids of " +
                                    std::to_string(plan.tables()));
  }
  const auto all_outputs = arrays_of<Matrix<float>>(outputs, "output", "writable float32 with two dimensions");
  const auto output_views = views_of(all_outputs);
  ReleasedGil unlocked;
  std::vector<std::unique_ptr<float[]>> rows;
  std::vector<MatrixView<const float>> row_views;
  std::vector<engine::LookupJob> jobs;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto& ids = plan.unique(i).ids;
    const std::size_t dim = tables[i]->schema().dim();
    rows.push_back(std::make_unique_for_overwrite<float[]>(ids.size() * dim));
    row_views.push_back({rows.back().get(), ids.size(), dim});
    jobs.push_back({.table = tables[i].get(),
                    .bags = {.ids = ids, .offsets = {}, .pooling = engine::Pooling::kNone, .first_n = 0},
                    .out = rows.back().get(),
                    .found = nullptr});
  }
  engine::Table::lookup_all(jobs, *shared_pool());
  plan.pool(row_views, output_views, *shared_pool());
}

// The rows lie in one pooled buffer, which returns to its pool with the last of the arrays.
std::vector<NewMatrix<float>> pull(StepRows& step_rows, std::shared_ptr<StepPlan> plan) {
  using engine::data::Buffer;
  constexpr std::size_t kLineFloats = engine::kLineBytes / sizeof(float);
  const auto& tables = step_rows.tables();
  if (plan->tables() != tables.size()) {
    throw engine::DimensionMismatch("the plan has ids of " + std::to_string(plan->tables()) + " tables, expected " +
                                    std::to_string(tables.size()) + "; pull it from its own tables");
  }
  std::size_t floats = 0;
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    begins.push_back(floats);
    floats += plan->unique(i).ids.size() * tables[i]->schema().dim() + kLineFloats;
    floats = floats / kLineFloats * kLineFloats;
  }
  auto memory = Buffer::take(floats * sizeof(float));
  auto* const base = reinterpret_cast<float*>(memory->data());
  std::vector<MatrixView<float>> views;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    views.push_back({base + begins[i], plan->unique(i).ids.size(), tables[i]->schema().dim()});
  }
  {
    ReleasedGil unlocked;
    step_rows.pull(std::move(plan), views, *shared_pool());
  }
  const nb::capsule owner(new std::shared_ptr<Buffer>(std::move(memory)),
                          [](void* held) noexcept { delete static_cast<std::shared_ptr<Buffer>*>(held); });
  std::vector<NewMatrix<float>> arrays;
  for (const auto& view : views)
    arrays.emplace_back(view.data, std::initializer_list<std::size_t>{view.rows, view.columns}, owner);
  return arrays;
}

void push(StepRows& step_rows, nb::sequence grads, nb::sequence learning_rates, std::uint32_t time_s,
          std::int64_t step) {
  const auto all_grads = arrays_of<Matrix<const float>>(grads, "the gradient of table", "float32 with two dimensions");
  const auto all_rates =
      arrays_of<Vector<const float>>(learning_rates, "the learning rates of table", "float32 with one dimension");
  const auto grad_views = views_of(all_grads);
  std::vector<std::span<const float>> rates;
  for (const auto& each : all_rates) rates.push_back(each.is_valid() ? as_span(each) : std::span<const float>());
  ReleasedGil unlocked;
  step_rows.push(grad_views, rates, time_s, step, *shared_pool());
}

std::vector<double> scatter(const StepPlan& plan, nb::sequence grads, nb::sequence rows) {
  const auto all_grads = arrays_of<Matrix<const float>>(grads, "the gradient of output", "float32 with two dimensions");
  const auto all_rows = arrays_of<Matrix<float>>(rows, "the gradient of table", "writable float32 with two dimensions");
  const auto grad_views = views_of(all_grads);
  const auto row_views = views_of(all_rows);
  ReleasedGil unlocked;
  return plan.scatter(grad_views, row_views, *shared_pool());
}

void pack(const StepPlan& plan, Vector<std::uint8_t> out) {
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(out.data()), out.size());
  ReleasedGil unlocked;
  plan.pack(bytes, *shared_pool());
}

const StepPlan::UniqueIds& unique(const StepPlan& plan, std::size_t table) {
  if (table >= plan.tables())
    throw nb::index_error(("table " + std::to_string(table) + " of " + std::to_string(plan.tables())).c_str());
  return plan.unique(table);
}

// A view that keeps its plan alive.
template <class T>
nb::ndarray<nb::numpy, const T, nb::ndim<1>> view(std::span<const T> values, nb::handle plan) {
  return nb::ndarray<nb::numpy, const T, nb::ndim<1>>(values.data(), {values.size()}, plan);
}

}  // namespace

void bind_layouts(nb::module_& m) {
  nb::class_<StepPlan>(m, "StepPlan", "The ids of one batch, numbered per table. Immutable.")
      .def_prop_ro("rows", &StepPlan::rows, "Examples.")
      .def_prop_ro("occurrences", &StepPlan::occurrences, "Ids that count, repeated ones included.")
      .def(
          "ids",
          [](nb::handle_t<StepPlan> self, std::size_t table) {
            return view(unique(nb::cast<const StepPlan&>(self), table).ids, self);
          },
          "table"_a, "The unique ids of a table in order of first occurrence, a view.")
      .def(
          "counts",
          [](nb::handle_t<StepPlan> self, std::size_t table) {
            return view(unique(nb::cast<const StepPlan&>(self), table).counts, self);
          },
          "table"_a, "How often each of ids(table) occurs, a view.")
      .def("pool", &pool, "rows"_a, "outputs"_a,
           nb::sig("def pool(self, rows: collections.abc.Sequence[typing.Any], "
                   "outputs: collections.abc.Sequence[typing.Any]) -> None"),
           "Fill every output (rows, width) from the rows (unique ids, dim) of every table.")
      .def("gather", &gather, "tables"_a, "outputs"_a,
           nb::sig("def gather(self, tables: collections.abc.Sequence[Table], "
                   "outputs: collections.abc.Sequence[typing.Any]) -> None"),
           "Fill every output (rows, width) with the present rows of the tables, one per table of the plan.")
      .def("scatter", &scatter, "grads"_a, "rows"_a,
           nb::sig("def scatter(self, grads: collections.abc.Sequence[typing.Any], "
                   "rows: collections.abc.Sequence[typing.Any]) -> list[float]"),
           "Fill the gradient of every unique id's row; return the sum of squares per table. None counts as zeros.")
      .def_prop_ro("packed_bytes", &StepPlan::packed_bytes, "Bytes of the packed plan.")
      .def("pack", &pack, "out"_a, "Copy the plan into one buffer, for a device that fills outputs itself.");
  nb::class_<StepRows>(m, "StepRows", "The rows of a plan's ids in its tables: pulled, then pushed once.")
      .def(nb::init<std::vector<std::shared_ptr<engine::Table>>>(), "tables"_a)
      .def("pull", &pull, "plan"_a, "Return one row per unique id of each table, (unique ids, dim).")
      .def("push", &push, "grads"_a, "learning_rates"_a, "time_s"_a, "step"_a,
           nb::sig("def push(self, grads: collections.abc.Sequence[typing.Any], "
                   "learning_rates: collections.abc.Sequence[typing.Any], time_s: int, step: int) -> None"),
           "Take one optimizer step per unique id of the last pull, without a second search.")
      .def_prop_ro("memory_bytes", &StepRows::memory_bytes, "Bytes that it keeps.");
  nb::class_<Layouts>(m, "Layouts", "How rows of tables become the tensors of a model.")
      .def("__init__", &make_layouts, "table_dims"_a, "features"_a, "parts"_a, "output_widths"_a,
           "id_transforms"_a = std::vector<TransformTuple>{})
      .def(
          "plan", &make_plan, "rows"_a, "values"_a, "offsets"_a, "shared"_a,
          nb::sig("def plan(self, rows: int, values: collections.abc.Sequence[typing.Any], "
                  "offsets: collections.abc.Sequence[typing.Any], shared: collections.abc.Sequence[bool]) -> StepPlan"),
          "Number the ids of one batch.")
      .def("plan_of", &make_plan_of, "batch"_a, "places"_a,
           "The same for ids that a parser left in a batch: feature i is at places[i] of it.");
}

}  // namespace bindings
