// model.cc: scores a batch on the calling thread; a helping thread scores half of the rows of a batch that is alone.
#include "serving/model.h"

#include <algorithm>
#include <optional>
#include <shared_mutex>

#include "float_pieces.h"
#include "other_half.h"
#include "row_section.h"
#include "serving/status.h"

namespace serving {

using engine::data::BatchData;
using engine::data::RecordKind;

namespace {

// Fewer rows are scored sooner than a second thread wakes.
constexpr std::size_t kLeastSharedRows = 64;

std::shared_ptr<engine::data::Columns> make_columns(const std::vector<std::string>& names) {
  auto columns = std::make_shared<engine::data::Columns>();
  for (const std::string& name : names) columns->want(name);
  return columns;
}

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
  views_.clear();
  tables_ = std::move(tables);
  views_.reserve(tables_.size());
  for (const auto& table : tables_) views_.emplace_back(*table);
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

std::shared_ptr<BatchData> Model::parse(std::shared_ptr<const engine::data::Records> records, RecordKind kind) const {
  auto parser = take_parser(kind);  // a parser that fails is dropped
  std::shared_ptr<BatchData> batch = parser->batch.assemble(parser->rows.parse(std::move(records)));
  put_back(kind, std::move(parser));
  return batch;
}

Scores Model::make_scores(std::size_t rows, std::span<const std::size_t> outputs) const {
  Scores scores;
  scores.rows = rows;
  FloatPieces pieces;
  std::vector<std::size_t> begins;
  for (const std::size_t place : outputs) begins.push_back(pieces.add(config_.outputs[place].width() * rows));
  scores.memory = pieces.take();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    scores.outputs.emplace_back(FloatPieces::at(*scores.memory, begins[i]), config_.outputs[outputs[i]].width() * rows);
  }
  return scores;
}

void Model::check_whole() const {
  const std::string version = "version " + std::to_string(config_.version) + " of model '" + config_.name + "'";
  if (dense_ == nullptr) throw Failure(Code::kUnavailable, version + " is unloaded; request another version");
  if (!is_whole_) {
    throw Failure(Code::kUnavailable,
                  "rows of " + version + " are incomplete after a failed update; retry, or use another replica");
  }
}

Scores Model::score(std::shared_ptr<const engine::data::Records> records, RecordKind kind,
                    std::span<const std::size_t> outputs, HelpingThread* helper) const {
  const std::shared_ptr<const BatchData> batch = parse(std::move(records), kind);
  const std::size_t rows = batch->rows;
  Scores scores = make_scores(rows, outputs);
  if (rows == 0) return scores;
  std::shared_lock lock(mutex_);  // rows and weights of one cut
  check_whole();
  const std::shared_ptr<const OnnxSession> dense = dense_;
  std::optional<OtherHalf> other;
  std::size_t end = rows;
  if (helper != nullptr && rows >= kLeastSharedRows) {
    const std::size_t middle = (rows + 1) / 2;
    other.emplace(*helper, RowSection(config_, layouts_, *batch, middle, rows), views_, *dense, outputs, scores);
    if (other->offer()) {
      end = middle;
    } else {
      other.reset();
    }
  }
  RowSection section(config_, layouts_, *batch, 0, end);
  section.gather(views_);
  if (other) other->gather();
  lock.unlock();
  section.run(*dense, outputs, scores);
  if (other) other->run_dense();
  return scores;
}

}  // namespace serving
