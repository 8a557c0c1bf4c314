// model.cc: scores a batch on the calling thread; parallelism comes from batches.
#include "serving/model.h"

#include <algorithm>
#include <shared_mutex>

#include "serving/status.h"

namespace serving {

using engine::data::BatchData;
using engine::data::Buffer;
using engine::data::RecordKind;
using engine::layout::MatrixView;

namespace {

// A pool of one thread runs everything on the caller's.
engine::Pool& own_thread() {
  static engine::Pool pool(1);
  return pool;
}

// Hands out aligned pieces of one buffer.
class Pieces {
 public:
  std::size_t add(std::size_t floats) {
    const std::size_t begin = size_;
    size_ += (floats * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }
  [[nodiscard]] std::shared_ptr<Buffer> take() const { return Buffer::take(std::max(size_, kAlignment)); }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::size_t size_ = 0;
};

std::shared_ptr<engine::data::Columns> make_columns(const std::vector<std::string>& names) {
  auto columns = std::make_shared<engine::data::Columns>();
  for (const std::string& name : names) columns->want(name);
  return columns;
}

float* floats_at(Buffer& buffer, std::size_t begin) { return reinterpret_cast<float*>(buffer.data() + begin); }

}  // namespace

std::size_t ProgramOutput::width() const noexcept {
  std::size_t product = 1;
  for (const std::int64_t size : tail) product *= static_cast<std::size_t>(size);
  return product;
}

Model::Parser::Parser(const ParserRecipe& recipe)
    : rows(recipe.rows, make_columns(recipe.columns)), batch(recipe.batch) {}

Model::Model(ModelConfig config, engine::layout::Layouts layouts, std::vector<ParserRecipe> recipes)
    : config_(std::move(config)), layouts_(std::move(layouts)), recipes_(std::move(recipes)) {}

bool Model::find_outputs(const Signature& signature, std::span<const std::string> names,
                         std::vector<std::size_t>& places) const {
  places.clear();
  if (names.empty()) {
    places = signature.outputs;
    return true;
  }
  for (const std::string& name : names) {
    const auto found = std::find_if(signature.outputs.begin(), signature.outputs.end(),
                                    [&](std::size_t place) { return config_.outputs[place].name == name; });
    if (found == signature.outputs.end() || std::find(places.begin(), places.end(), *found) != places.end())
      return false;
    places.push_back(*found);
  }
  return true;
}

void Model::show(std::vector<std::shared_ptr<engine::Table>> tables, std::shared_ptr<const OnnxSession> dense,
                 bool is_whole) {
  tables_ = std::move(tables);
  dense_ = std::move(dense);
  is_whole_ = is_whole;
}

bool Model::take_turn(std::chrono::steady_clock::duration interval) const noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  auto next = next_turn_.load(std::memory_order_relaxed);
  return now >= next && next_turn_.compare_exchange_strong(next, now + interval.count(), std::memory_order_relaxed);
}

std::unique_ptr<Model::Parser> Model::take_parser(RecordKind kind) const {
  Idle& idle = idle_[static_cast<std::size_t>(kind)];
  {
    const std::lock_guard lock(idle.mutex);
    if (!idle.parsers.empty()) {
      auto parser = std::move(idle.parsers.back());
      idle.parsers.pop_back();
      return parser;
    }
  }
  return std::make_unique<Parser>(recipe_of(kind));
}

const Model::ParserRecipe& Model::recipe_of(RecordKind kind) const {
  const auto recipe =
      std::find_if(recipes_.begin(), recipes_.end(), [&](const ParserRecipe& each) { return each.rows.kind == kind; });
  if (recipe == recipes_.end()) throw Failure(Code::kInvalidArgument, "record kind is unknown to the model");
  return *recipe;
}

void Model::put_back(RecordKind kind, std::unique_ptr<Parser> parser) const {
  // An assembler learns the type of a feature without one; the next request must not depend on that.
  const engine::data::AssemblerConfig& recipe = recipe_of(kind).batch;
  const bool has_types = std::none_of(recipe.sparse.begin(), recipe.sparse.end(),
                                      [](const auto& each) { return each.kind == engine::data::ValueKind::kUnknown; });
  if (!has_types) parser->batch = engine::data::Assembler(recipe);
  Idle& idle = idle_[static_cast<std::size_t>(kind)];
  const std::lock_guard lock(idle.mutex);
  idle.parsers.push_back(std::move(parser));
}

Scores Model::score(std::shared_ptr<const engine::data::Records> records, RecordKind kind,
                    std::span<const std::size_t> outputs) const {
  auto parser = take_parser(kind);  // a parser that fails is dropped
  const std::shared_ptr<BatchData> batch = parser->batch.assemble(parser->rows.parse(std::move(records)));
  put_back(kind, std::move(parser));
  Scores scores;
  scores.rows = batch->rows;
  if (batch->rows == 0) {
    scores.outputs.resize(outputs.size());
    return scores;
  }
  std::vector<engine::layout::FeatureIds> ids;
  ids.reserve(config_.id_places.size());
  for (const std::size_t place : config_.id_places) {
    const auto& each = batch->ids[place];
    ids.push_back({each.values, each.offsets, each.is_shared});
  }
  const engine::layout::StepPlan plan = layouts_.plan(batch->rows, ids, own_thread());
  Pieces pieces;
  std::vector<std::size_t> begins;
  for (const std::size_t width : config_.layout_widths) begins.push_back(pieces.add(width * batch->rows));
  const auto memory = pieces.take();
  std::vector<MatrixView<float>> layouts;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    layouts.push_back({floats_at(*memory, begins[i]), batch->rows, config_.layout_widths[i]});
  }
  std::shared_ptr<const OnnxSession> dense;
  {
    const std::shared_lock lock(mutex_);  // rows and weights of one cut
    if (dense_ == nullptr) {
      throw Failure(Code::kUnavailable, "version " + std::to_string(config_.version) + " of model '" + config_.name +
                                            "' is unloaded; request another version");
    }
    if (!is_whole_) {
      throw Failure(Code::kUnavailable, "rows of version " + std::to_string(config_.version) + " of model '" +
                                            config_.name +
                                            "' are incomplete after a failed update; retry, or use another replica");
    }
    dense = dense_;
    if (!layouts.empty()) {
      Pieces row_pieces;
      std::vector<std::size_t> row_begins;
      for (std::size_t i = 0; i < tables_.size(); ++i) {
        row_begins.push_back(row_pieces.add(plan.unique(i).ids.size() * tables_[i]->schema().dim()));
      }
      const auto row_memory = row_pieces.take();
      std::vector<engine::LookupJob> jobs;
      std::vector<MatrixView<const float>> rows;
      for (std::size_t i = 0; i < tables_.size(); ++i) {
        float* out = floats_at(*row_memory, row_begins[i]);
        jobs.push_back(
            {.table = tables_[i].get(),
             .bags = {.ids = plan.unique(i).ids, .offsets = {}, .pooling = engine::Pooling::kNone, .first_n = 0},
             .out = out,
             .found = nullptr});
        rows.push_back({out, plan.unique(i).ids.size(), tables_[i]->schema().dim()});
      }
      engine::Table::lookup_all(jobs, own_thread());
      plan.pool(rows, layouts, own_thread());
    }
  }
  run_dense(*dense, *batch, layouts, outputs, scores);
  return scores;
}

void Model::run_dense(const OnnxSession& dense, const BatchData& batch, std::span<const MatrixView<float>> layouts,
                      std::span<const std::size_t> outputs, Scores& scores) const {
  const auto rows = static_cast<std::int64_t>(batch.rows);
  std::vector<const char*> input_names;
  std::vector<Tensor> inputs;
  for (const ProgramInput& input : config_.inputs) {
    Tensor tensor{ElementType::kFloat, {rows}, nullptr};
    tensor.dims.insert(tensor.dims.end(), input.tail.begin(), input.tail.end());
    switch (input.source) {
      case Source::kLayout:
        tensor.data = layouts[input.place].data;
        break;
      case Source::kDense: {
        const auto& field = batch.dense[input.place];
        if (field.integers.data() != nullptr) tensor.type = ElementType::kInt64;
        tensor.data = field.integers.data() != nullptr ? static_cast<void*>(field.integers.data()) : field.reals.data();
        break;
      }
      case Source::kLabel:
        tensor.data = batch.labels.data();
        break;
      case Source::kLabelMask:
        tensor.type = ElementType::kBool;
        tensor.data = batch.label_mask.data();
        break;
      case Source::kWeight:
        tensor.data = batch.weights.data();
        break;
      case Source::kSampleRate:
        tensor.data = batch.sample_rates.data();
        break;
      case Source::kEventTime:
        tensor.type = ElementType::kInt64;
        tensor.data = batch.times_s.data();
        break;
      case Source::kUid:
        tensor.type = ElementType::kInt64;
        tensor.data = batch.uids.data();
        break;
    }
    input_names.push_back(input.name.c_str());
    inputs.push_back(std::move(tensor));
  }
  Pieces pieces;
  std::vector<std::size_t> begins;
  for (const std::size_t place : outputs) begins.push_back(pieces.add(config_.outputs[place].width() * batch.rows));
  scores.memory = pieces.take();
  std::vector<const char*> output_names;
  std::vector<Tensor> filled;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const ProgramOutput& output = config_.outputs[outputs[i]];
    float* data = floats_at(*scores.memory, begins[i]);
    Tensor tensor{ElementType::kFloat, {rows}, data};
    tensor.dims.insert(tensor.dims.end(), output.tail.begin(), output.tail.end());
    scores.outputs.emplace_back(data, output.width() * batch.rows);
    output_names.push_back(output.name.c_str());
    filled.push_back(std::move(tensor));
  }
  dense.run(input_names, inputs, output_names, filled);
}

}  // namespace serving
