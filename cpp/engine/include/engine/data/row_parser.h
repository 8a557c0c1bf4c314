// row_parser.h: records -> rows, for every record format. Reads the protobuf wire format directly and copies nothing
// that lies as it should; unwanted fields are skipped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/data/line_id.h"
#include "engine/data/records.h"
#include "engine/data/row.h"

namespace engine::data {

enum class RecordKind : std::uint8_t { kInstance, kExample, kExampleBatch, kExampleBatchRowMajor, kTfExample };

struct ParserConfig {
  RecordKind kind = RecordKind::kExample;
  // Every feature gets a column, not only those that the columns name.
  bool keep_all = false;
  // A record that cannot be read is counted and left out instead of ending the work.
  bool skip_corrupt = false;
  // Features that hold the labels, one after the other. Empty: where the format keeps them.
  std::vector<std::string> label_features;
  std::string weight_feature = "instance_weight";
  // Other names of columns, for features that no column is called by.
  std::unordered_map<std::string, std::uint32_t> aliases;
  // In tf.Example a feature __NAME__ is the LineId field of that name, in lower case.
  std::vector<LineField> line_fields = standard_line_fields();
  // Seeds RowInfo::key, together with the number of the row in the stream.
  std::uint64_t seed = 0;
};

// Exclusive.
class RowParser {
 public:
  RowParser(ParserConfig config, std::shared_ptr<Columns> columns);
  ~RowParser();

  // Throws RecordCorrupt, with the record's place and the byte in it, or SchemaMismatch.
  [[nodiscard]] Rows parse(std::shared_ptr<const Records> records);
  [[nodiscard]] const ParserConfig& config() const noexcept { return config_; }
  [[nodiscard]] const Columns& columns() const noexcept { return *columns_; }

  // Rows seen so far: the number of the next one. Settable, to continue where another parser stopped.
  std::uint64_t next_row = 0;
  std::uint64_t corrupt_records = 0;

 private:
  struct Scratch;
  class RecordReader;

  ParserConfig config_;
  std::shared_ptr<Columns> columns_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace engine::data
