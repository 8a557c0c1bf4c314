// bind_table.cc: exposes engine::Table to Python; converts, releases the GIL and forwards.
#include <dlfcn.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "arrays.h"
#include "engine/error.h"
#include "engine/kernels.h"
#include "engine/table.h"
#include "module.h"

namespace bindings {

using namespace nb::literals;

const std::shared_ptr<engine::Pool>& shared_pool() {
  static const auto pool = std::make_shared<engine::Pool>(std::max(1U, std::thread::hardware_concurrency()));
  return pool;
}

namespace {

using Ids = Vector<const std::int64_t>;
using Offsets = Vector<const std::int64_t>;

// Jobs keep their arrays alive until the call is over.
struct LookupJob {
  std::shared_ptr<engine::Table> table;
  Ids ids;
  std::optional<Offsets> offsets;
  Matrix<float> out;
  std::shared_ptr<engine::RowPlan> plan;
  engine::LookupJob job;
};

struct GradientJob {
  std::shared_ptr<engine::Table> table;
  Ids ids;
  std::optional<Offsets> offsets;
  Matrix<const float> grads;
  Vector<const float> learning_rates;
  std::optional<Vector<const std::uint32_t>> counts;
  std::optional<Matrix<const float>> latest;
  std::shared_ptr<engine::RowPlan> plan;
  engine::GradientJob job;
};

// Bag boundaries go from 0 to the number of ids and never fall.
void check_offsets(const engine::Table& table, std::span<const std::int64_t> offsets, std::size_t ids) {
  const auto refuse = [&](const std::string& reason) {
    throw engine::ConfigError("table '" + table.config().name + "': offsets " + reason);
  };
  if (offsets.empty()) refuse("are empty; give bags + 1 integers");
  if (offsets.front() != 0 || static_cast<std::size_t>(offsets.back()) != ids) {
    refuse("go from " + std::to_string(offsets.front()) + " to " + std::to_string(offsets.back()) +
           "; they must go from 0 to the " + std::to_string(ids) + " ids");
  }
  const auto fall = std::ranges::adjacent_find(offsets, std::ranges::greater{});
  if (fall != offsets.end()) {
    refuse("fall from " + std::to_string(fall[0]) + " to " + std::to_string(fall[1]) + " at position " +
           std::to_string(fall - offsets.begin() + 1));
  }
}

engine::Bags make_bags(const engine::Table& table, const Ids& ids, const std::optional<Offsets>& offsets,
                       engine::Pooling pooling, std::uint32_t first_n) {
  engine::Bags bags{.ids = as_span(ids), .offsets = {}, .pooling = pooling, .first_n = first_n};
  if (!offsets) return bags;
  bags.offsets = as_span(*offsets);
  check_offsets(table, bags.offsets, bags.ids.size());
  return bags;
}

void bind_configs(nb::module_& m) {
  nb::class_<engine::PartConfig>(m, "PartConfig")
      .def(nb::init<std::string, std::map<std::string, double>>(), "kind"_a, "settings"_a);
  nb::class_<engine::SliceConfig>(m, "SliceConfig")
      .def(nb::init<>())
      .def_rw("dim", &engine::SliceConfig::dim)
      .def_rw("optimizer", &engine::SliceConfig::optimizer)
      .def_rw("delay_lambda", &engine::SliceConfig::delay_lambda)
      .def_rw("stochastic_rounding", &engine::SliceConfig::stochastic_rounding)
      .def_rw("initializer", &engine::SliceConfig::initializer)
      .def_rw("compressor", &engine::SliceConfig::compressor);
  nb::enum_<engine::NanPolicy>(m, "NanPolicy")
      .value("refuse", engine::NanPolicy::kRefuse)
      .value("skip", engine::NanPolicy::kSkip)
      .value("apply", engine::NanPolicy::kApply);
  nb::enum_<engine::Pooling>(m, "Pooling")
      .value("none", engine::Pooling::kNone)
      .value("sum", engine::Pooling::kSum)
      .value("mean", engine::Pooling::kMean)
      .value("first", engine::Pooling::kFirst);
  nb::class_<engine::TableConfig>(m, "TableConfig")
      .def(nb::init<>())
      .def_rw("name", &engine::TableConfig::name)
      .def_rw("slices", &engine::TableConfig::slices)
      .def_rw("expire_days", &engine::TableConfig::expire_days)
      .def_rw("slot_expire_days", &engine::TableConfig::slot_expire_days)
      .def_rw("admission", &engine::TableConfig::admission)
      .def_rw("occurrence_threshold", &engine::TableConfig::occurrence_threshold)
      .def_rw("slot_thresholds", &engine::TableConfig::slot_thresholds)
      .def_rw("miss_is_initial", &engine::TableConfig::miss_is_initial)
      .def_rw("max_bytes", &engine::TableConfig::max_bytes)
      .def_rw("evicts_when_full", &engine::TableConfig::evicts_when_full)
      .def_rw("seed", &engine::TableConfig::seed)
      .def_rw("is_deterministic", &engine::TableConfig::is_deterministic)
      .def_rw("nan_policy", &engine::TableConfig::nan_policy)
      .def_rw("touched_capacity", &engine::TableConfig::touched_capacity)
      .def_rw("is_serving", &engine::TableConfig::is_serving)
      .def_rw("skip_zero_rows", &engine::TableConfig::skip_zero_rows);
  nb::class_<engine::TableStats>(m, "TableStats")
      .def_ro("nan_rows_skipped", &engine::TableStats::nan_rows_skipped)
      .def_ro("ids_filtered", &engine::TableStats::ids_filtered)
      .def_ro("rows_evicted", &engine::TableStats::rows_evicted)
      .def_ro("rows_evicted_full", &engine::TableStats::rows_evicted_full)
      .def_ro("touched_dropped", &engine::TableStats::touched_dropped);
  nb::class_<engine::StateField>(m, "StateField")
      .def_ro("name", &engine::StateField::name)
      .def_ro("offset", &engine::StateField::offset)
      .def_ro("words", &engine::StateField::words)
      .def_ro("is_int64", &engine::StateField::is_int64);
}

void bind_jobs(nb::module_& m) {
  nb::class_<engine::RowPlan>(
      m, "RowPlan",
      "The ids of one lookup, searched once, for the update of the same rows.\n\n"
      "A lookup fills it; ``apply_planned_gradients`` of the same table then neither groups nor\n"
      "searches the ids again. The results are those of an update without a plan. Reuse it from\n"
      "step to step: it keeps its memory. One call at a time.")
      .def(nb::init<>())
      .def_prop_ro("is_filled", &engine::RowPlan::is_filled, "Whether a lookup has filled it.")
      .def_prop_ro("targets", &engine::RowPlan::targets, "Rows of a gradient.")
      .def_prop_ro("first_n", &engine::RowPlan::first_n, "Rows per bag with mode (\"first\", n); otherwise 0.")
      .def_prop_ro("memory_bytes", &engine::RowPlan::memory_bytes, "Bytes that it keeps.");
  nb::class_<LookupJob>(m, "LookupJob")
      .def(
          "__init__",
          [](LookupJob* self, std::shared_ptr<engine::Table> table, Ids ids, std::optional<Offsets> offsets,
             engine::Pooling pooling, std::uint32_t first_n, Matrix<float> out, std::shared_ptr<engine::RowPlan> plan) {
            const engine::Bags bags = make_bags(*table, ids, offsets, pooling, first_n);
            new (self)
                LookupJob{std::move(table), std::move(ids), std::move(offsets), std::move(out), std::move(plan), {}};
            self->job = {.table = self->table.get(),
                         .bags = bags,
                         .out = self->out.data(),
                         .found = nullptr,
                         .plan = self->plan.get()};
          },
          "table"_a, "ids"_a.noconvert(), "offsets"_a.noconvert().none(), "pooling"_a, "first_n"_a, "out"_a.noconvert(),
          "plan"_a.none() = nb::none());
  nb::class_<GradientJob>(m, "GradientJob")
      .def(
          "__init__",
          [](GradientJob* self, std::shared_ptr<engine::Table> table, Ids ids, std::optional<Offsets> offsets,
             engine::Pooling pooling, std::uint32_t first_n, Matrix<const float> grads,
             Vector<const float> learning_rates, std::optional<Vector<const std::uint32_t>> counts,
             std::optional<Matrix<const float>> latest, std::uint32_t time_s, std::int64_t step, bool dedup,
             std::shared_ptr<engine::RowPlan> plan) {
            const engine::Bags bags = make_bags(*table, ids, offsets, pooling, first_n);
            new (self) GradientJob{std::move(table),
                                   std::move(ids),
                                   std::move(offsets),
                                   std::move(grads),
                                   std::move(learning_rates),
                                   std::move(counts),
                                   std::move(latest),
                                   std::move(plan),
                                   {}};
            self->job = {.table = self->table.get(),
                         .bags = bags,
                         .grads = self->grads.data(),
                         .counts = {},
                         .latest = self->latest ? self->latest->data() : nullptr,
                         .learning_rates = as_span(self->learning_rates),
                         .time_s = time_s,
                         .step = step,
                         .dedup = dedup,
                         .plan = self->plan.get(),
                         .planned_rows = self->grads.shape(0)};
            if (self->counts) self->job.counts = as_span(*self->counts);
          },
          "table"_a, "ids"_a.noconvert(), "offsets"_a.noconvert().none(), "pooling"_a, "first_n"_a,
          "grads"_a.noconvert(), "learning_rates"_a.noconvert(), "counts"_a.noconvert().none(),
          "latest"_a.noconvert().none(), "time_s"_a, "step"_a, "dedup"_a, "plan"_a.none() = nb::none());
  m.def("lookup_all", [](const std::vector<LookupJob*>& jobs) {
    std::vector<engine::LookupJob> inner;
    for (const LookupJob* job : jobs) inner.push_back(job->job);
    ReleasedGil unlocked;
    engine::Table::lookup_all(inner, *shared_pool());
  });
  m.def("apply_all", [](const std::vector<GradientJob*>& jobs) {
    std::vector<engine::GradientJob> inner;
    for (const GradientJob* job : jobs) inner.push_back(job->job);
    ReleasedGil unlocked;
    engine::Table::apply_all(inner, *shared_pool());
  });
}

std::vector<std::vector<engine::StateField>> state_fields(const engine::Table& table) {
  std::vector<std::vector<engine::StateField>> fields;
  for (const auto& slice : table.schema().slices()) fields.push_back(slice.optimizer->state_fields());
  return fields;
}

// Ids, times, and rows as a matrix of 32-bit words.
using RawArrays = std::tuple<NewVector<std::int64_t>, NewVector<std::uint32_t>, NewMatrix<float>>;

RawArrays raw_rows(const engine::Table& table, const Ids& ids) {
  engine::RawRows raw;
  {
    ReleasedGil unlocked;
    raw = table.raw_rows(as_span(ids));
  }
  std::vector<float> words(raw.rows.size() / sizeof(float));
  if (!words.empty()) std::memcpy(words.data(), raw.rows.data(), raw.rows.size());
  return {as_vector(std::move(raw.ids)), as_vector(std::move(raw.times)),
          as_matrix(std::move(words), table.schema().row_bytes() / sizeof(float))};
}

// Returns the call by which torch runs its operators on several threads; null if torch is not loaded or uses none.
engine::Pool::ParallelCall find_torch_call() {
  static engine::Pool::ParallelCall found = nullptr;  // callers hold the GIL
  if (found != nullptr) return found;
  void* const torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch == nullptr) return nullptr;
  // A handle searches the libraries that torch was linked with. Another copy of OpenMP has other threads.
  found = reinterpret_cast<engine::Pool::ParallelCall>(dlsym(torch, "GOMP_parallel"));
  dlclose(torch);
  return found;
}

// Lends the threads of torch to the calls of one thread, from enter to exit.
class TorchThreads {
 public:
  explicit TorchThreads(unsigned threads) : threads_(threads) {}

  // A team of another size would make torch start new threads for each of its operators.
  bool enter() {
    const auto call = threads_ == shared_pool()->threads() ? find_torch_call() : nullptr;
    if (call != nullptr) loan_.emplace(call, threads_);
    return loan_.has_value();
  }

  void exit() { loan_.reset(); }

 private:
  const unsigned threads_;
  std::optional<engine::Pool::BorrowedThreads> loan_;
};

}  // namespace

void bind_table(nb::module_& m) {
  m.def("set_threads", [](unsigned threads) {
    ReleasedGil unlocked;
    shared_pool()->resize(threads);
  });
  m.def("threads", [] { return shared_pool()->threads(); });
  nb::class_<TorchThreads>(m, "TorchThreads")
      .def(nb::init<unsigned>(), "threads"_a)
      .def("__enter__", &TorchThreads::enter)
      .def(
          "__exit__", [](TorchThreads& self, nb::handle, nb::handle, nb::handle) { self.exit(); }, "kind"_a.none(),
          "error"_a.none(), "trace"_a.none());
  m.def("kernel_level", [] { return std::string(engine::kernel_level()); });
  m.def("kernel_levels", [] {
    const auto levels = engine::kernel_levels();
    return std::vector<std::string>(levels.begin(), levels.end());
  });
  bind_configs(m);

  using engine::Table;
  nb::class_<Table>(m, "Table")
      .def("__init__", [](Table* self, const engine::TableConfig& config) { new (self) Table(config, shared_pool()); })
      .def_prop_ro("dim", [](const Table& table) { return table.schema().dim(); })
      .def_prop_ro("row_words", [](const Table& table) { return table.schema().row_bytes() / sizeof(float); })
      .def_prop_ro("state_fields", &state_fields)
      .def_prop_ro("max_time_s", &Table::max_time_s)
      .def_prop_ro("stats", &Table::stats)
      .def_prop_ro("skips_zero_rows", [](const Table& table) { return table.config().skip_zero_rows; })
      .def_prop_ro("parts", [](const Table&) { return engine::kParts; })
      .def("size", &Table::size, nb::call_guard<ReleasedGil>())
      .def("memory_bytes", &Table::memory_bytes, nb::call_guard<ReleasedGil>())
      .def(
          "lookup",
          [](const Table& table, const Ids& ids, const Matrix<float>& out, std::optional<Vector<std::uint8_t>> found) {
            ReleasedGil unlocked;
            table.lookup(as_span(ids), out.data(), found ? found->data() : nullptr);
          },
          "ids"_a.noconvert(), "out"_a.noconvert(), "found"_a.noconvert().none())
      .def(
          "contains",
          [](const Table& table, const Ids& ids, const Vector<std::uint8_t>& found) {
            ReleasedGil unlocked;
            table.contains(as_span(ids), found.data());
          },
          "ids"_a.noconvert(), "found"_a.noconvert())
      .def(
          "assign",
          [](Table& table, const Ids& ids, const Matrix<const float>& rows, std::uint32_t time_s) {
            ReleasedGil unlocked;
            table.assign(as_span(ids), rows.data(), time_s);
          },
          "ids"_a.noconvert(), "rows"_a.noconvert(), "time_s"_a)
      .def(
          "assign_add",
          [](Table& table, const Ids& ids, const Matrix<const float>& rows, std::uint32_t time_s) {
            ReleasedGil unlocked;
            table.assign_add(as_span(ids), rows.data(), time_s);
          },
          "ids"_a.noconvert(), "rows"_a.noconvert(), "time_s"_a)
      .def(
          "reinitialize",
          [](Table& table, const Ids& ids, const Vector<std::int8_t>& existed) {
            ReleasedGil unlocked;
            table.reinitialize(as_span(ids), existed.data());
          },
          "ids"_a.noconvert(), "existed"_a.noconvert())
      .def(
          "erase",
          [](Table& table, const Ids& ids) {
            ReleasedGil unlocked;
            return table.erase(as_span(ids));
          },
          "ids"_a.noconvert())
      .def("evict", &Table::evict, "now_s"_a, "force"_a = false, nb::call_guard<ReleasedGil>())
      .def("check_expiry", &Table::check_expiry, "now_s"_a, nb::call_guard<ReleasedGil>())
      .def_prop_rw("forces_expiry", &Table::forces_expiry, &Table::set_forces_expiry)
      .def("force_clock", &Table::force_clock, "time_s"_a)
      .def("set_budget", &Table::set_budget, "bytes"_a)
      .def_prop_rw("evicts_when_full", &Table::evicts_when_full, &Table::set_evicts_when_full)
      .def("clear", &Table::clear, nb::call_guard<ReleasedGil>())
      .def("explain", &Table::explain, "id"_a, nb::call_guard<ReleasedGil>())
      .def("drain_touched",
           [](Table& table) {
             std::vector<std::int64_t> ids;
             {
               ReleasedGil unlocked;
               ids = table.drain_touched();
             }
             return as_vector(std::move(ids));
           })
      .def(
          "part_ids",
          [](const Table& table, std::size_t part) {
            if (part >= engine::kParts) {
              throw engine::ConfigError("part is " + std::to_string(part) + ", expected one below " +
                                        std::to_string(engine::kParts));
            }
            std::vector<std::int64_t> ids;
            {
              ReleasedGil unlocked;
              ids = table.part_ids(part);
            }
            return as_vector(std::move(ids));
          },
          "part"_a)
      .def("copy_to", &Table::copy_to, "other"_a, "index"_a = 0, "count"_a = 1, nb::call_guard<ReleasedGil>())
      .def("raw_rows", &raw_rows, "ids"_a.noconvert())
      .def(
          "import_rows",
          [](Table& table, const Ids& ids, const Vector<const std::uint32_t>& times, const Matrix<const float>& rows) {
            ReleasedGil unlocked;
            table.import_rows(as_span(ids), as_span(times), reinterpret_cast<const std::byte*>(rows.data()));
          },
          "ids"_a.noconvert(), "times"_a.noconvert(), "rows"_a.noconvert());
  bind_jobs(m);
}

}  // namespace bindings
