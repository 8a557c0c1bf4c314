// assembler.h: rows -> one batch of arrays: ragged ids, dense values, labels with their mask, and fields of LineId.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/data/line_id.h"
#include "engine/data/row.h"
#include "engine/data/value_ids.h"

namespace engine::data {

// Ids of one feature. Lists of lists are flattened.
struct SparseFeature {
  std::string name;
  std::uint32_t column = Columns::kUnwanted;
  // The feature's slot; -1 = none. It finds the ids among the flat ones of an Instance, and enters the ids of plain
  // values in a feature of fids.
  std::int32_t slot = -1;
  // Takes the flat v1 ids of its slot, when the row has no feature of that name.
  bool takes_flat_fids = false;
  // The feature's values; see value_ids.h. The assembler sets it when the first value decides.
  ValueKind kind = ValueKind::kUnknown;
  // An integer that does not fit beside a slot is hashed instead of refused.
  bool hashes_wide = false;
};

enum class DenseKind : std::uint8_t { kFloat, kInt64, kText };

// `width` values of one feature. A row without the feature gets the default; any other number of values than `width` is
// refused, unless `pads`.
struct DenseFeature {
  std::string name;
  std::uint32_t column = Columns::kUnwanted;
  std::uint32_t width = 1;
  DenseKind kind = DenseKind::kFloat;
  double default_value = 0;
  bool pads = false;  // short values are filled up with the default, long ones cut
};

// `width` values of one LineId field; a repeated field is cut or filled up with the default.
struct ExtraField {
  LineField field;
  std::uint32_t width = 1;
};

struct AssemblerConfig {
  std::vector<SparseFeature> sparse;
  std::vector<DenseFeature> dense;
  std::vector<ExtraField> extras;
  std::uint32_t labels = 1;
  float missing_label = 0;         // the value where the mask is false
  bool keeps_fid_version = false;  // v1 ids stay v1
};

// One batch. Arrays are views of pooled buffers that live as long as the batch. Immutable, so concurrent.
struct BatchData {
  struct RaggedIds {
    std::span<std::int64_t> values;
    std::span<std::int64_t> offsets;  // one more than bags
    bool is_shared = false;           // one bag, which every row has
  };
  struct Texts {
    std::span<std::byte> bytes;
    std::span<std::int64_t> offsets;
  };

  // A dense feature or an extra field: rows x width values of one kind; the others are empty.
  struct Field {
    std::uint32_t width = 1;
    std::span<float> reals;
    std::span<std::int64_t> integers;
    Texts texts;
  };

  std::uint32_t rows = 0;
  std::uint32_t heads = 0;
  std::vector<RaggedIds> ids;  // as in the config, and so for the next two
  std::string value_kinds;     // of the sparse features: a ValueKind per byte
  std::vector<Field> dense;
  std::vector<Field> extras;
  std::span<float> labels;     // rows x heads
  std::span<bool> label_mask;  // rows x heads
  std::span<float> weights;
  std::span<float> sample_rates;
  std::span<std::int64_t> times_s;
  std::span<std::int64_t> uids;
  RaggedIds actions;

  std::vector<std::shared_ptr<Buffer>> buffers;
};

// Exclusive.
class Assembler {
 public:
  explicit Assembler(AssemblerConfig config);

  // Throws SchemaMismatch that names the feature, the row and its content.
  [[nodiscard]] std::shared_ptr<BatchData> assemble(const Rows& rows);
  [[nodiscard]] const AssemblerConfig& config() const noexcept { return config_; }

 private:
  class Pass;
  struct Run {
    Block* block;
    std::uint32_t begin;
    std::uint32_t count;
  };

  AssemblerConfig config_;
  std::vector<std::int32_t> sparse_of_slot_;  // v1 slot -> place among the sparse features
  std::vector<Run> runs_;
  std::vector<Cell> cells_;            // of one column, where rows are scattered
  std::size_t batch_bytes_ = 0;        // of the batch before
  std::vector<double> flat_rates_;     // flat ids per row of each feature, in the batch before
  std::vector<std::int64_t> scratch_;  // ids whose number is not known before
};

}  // namespace engine::data
