// model.h: one served version: records -> parser -> plan -> rows -> layouts -> dense program -> scores.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/data/assembler.h"
#include "engine/data/records.h"
#include "engine/data/row_parser.h"
#include "engine/layout/layouts.h"
#include "engine/shared_mutex.h"
#include "engine/table.h"
#include "engine/table_view.h"
#include "serving/helpers.h"
#include "serving/onnx.h"

namespace serving {

// Where an input of the dense program comes from.
enum class Source : std::uint8_t { kLayout, kDense, kLabel, kLabelMask, kWeight, kSampleRate, kEventTime, kUid };

struct ProgramInput {
  std::string name;
  Source source = Source::kLayout;
  std::size_t place = 0;           // of the layout tensor or the dense feature
  std::vector<std::int64_t> tail;  // sizes after the row
};

// An output of float32 with known sizes after the row.
struct ProgramOutput {
  std::string name;
  std::vector<std::int64_t> tail;

  [[nodiscard]] std::size_t width() const noexcept;
};

struct Signature {
  std::vector<std::size_t> outputs;  // places among the outputs of the program
  std::string only_input;            // takes records without a name; empty = no such input
};

struct ModelConfig {
  std::string name;
  std::int64_t version = 0;
  std::vector<std::size_t> id_places;      // feature of the layouts -> place among the parser's sparse features
  std::vector<std::size_t> layout_widths;  // of a row of each layout tensor
  std::vector<ProgramInput> inputs;
  std::vector<ProgramOutput> outputs;
  std::map<std::string, Signature, std::less<>> signatures;  // of kind score
};

// Scores of a batch; the arrays live as long as this object.
struct Scores {
  std::size_t rows = 0;
  std::vector<std::span<float>> outputs;
  std::shared_ptr<engine::data::Buffer> memory;
};

// Concurrent. Rows and weights change only between lock() and unlock().
class Model {
 public:
  // How parsers are made; one kind of records.
  struct ParserRecipe {
    engine::data::ParserConfig rows;
    std::vector<std::string> columns;
    engine::data::AssemblerConfig batch;
  };
  struct Parser {
    explicit Parser(const ParserRecipe& recipe);

    engine::data::RowParser rows;
    engine::data::Assembler batch;
  };

  Model(ModelConfig config, engine::layout::Layouts layouts, std::vector<ParserRecipe> recipes);

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  // Places of the named outputs in order, all of the signature without names. Nothing for unknown or repeated names.
  [[nodiscard]] bool find_outputs(const Signature& signature, std::span<const std::string> names,
                                  std::vector<std::size_t>& places) const;

  // True for one caller per interval.
  [[nodiscard]] bool take_turn(std::chrono::steady_clock::duration interval) const noexcept;

  // Waits until no batch reads rows, and keeps batches out. Not for threads that hold it.
  void lock() noexcept { mutex_.lock(); }
  void unlock() noexcept { mutex_.unlock(); }
  // Replaces rows and weights; the caller holds the lock. `is_whole` is false while the rows show no cut.
  void show(std::vector<std::shared_ptr<engine::Table>> tables, std::shared_ptr<const OnnxSession> dense,
            bool is_whole);

  // Scores records at one cut. `helper` scores half of the rows, where it is idle. Throws Failure, or an error of the
  // engine for records that do not fit.
  [[nodiscard]] Scores score(std::shared_ptr<const engine::data::Records> records, engine::data::RecordKind kind,
                             std::span<const std::size_t> outputs, HelpingThread* helper = nullptr) const;

 private:
  struct Idle {
    std::mutex mutex;
    std::vector<std::unique_ptr<Parser>> parsers;
  };
  static constexpr std::size_t kKinds = 5;

  [[nodiscard]] const ParserRecipe& recipe_of(engine::data::RecordKind kind) const;
  [[nodiscard]] std::unique_ptr<Parser> take_parser(engine::data::RecordKind kind) const;
  void put_back(engine::data::RecordKind kind, std::unique_ptr<Parser> parser) const;
  [[nodiscard]] std::shared_ptr<engine::data::BatchData> parse(std::shared_ptr<const engine::data::Records> records,
                                                               engine::data::RecordKind kind) const;
  // Memory for the scores of some rows.
  [[nodiscard]] Scores make_scores(std::size_t rows, std::span<const std::size_t> outputs) const;
  // Throws Failure where the rows show no cut. The caller holds the lock.
  void check_whole() const;

  ModelConfig config_;
  engine::layout::Layouts layouts_;
  std::vector<ParserRecipe> recipes_;
  mutable std::array<Idle, kKinds> idle_;
  mutable std::atomic<std::chrono::steady_clock::rep> next_turn_{0};

  mutable engine::SharedMutex mutex_;
  std::vector<std::shared_ptr<engine::Table>> tables_;
  std::vector<engine::TableView> views_;  // of the tables as they are since the last show()
  std::shared_ptr<const OnnxSession> dense_;
  bool is_whole_ = false;
};

}  // namespace serving
