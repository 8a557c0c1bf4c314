// row_section.cc: plan, gather, fill layouts, run the dense program; all on the calling thread.
#include "row_section.h"

#include "float_pieces.h"

namespace serving {

using engine::layout::MatrixView;

namespace {

// A pool of one thread runs all work on the caller's.
engine::Pool& own_thread() {
  static engine::Pool pool(1);
  return pool;
}

// Moves a pointer by the values of some rows.
template <class T>
T* skip_rows(std::span<T> values, std::size_t rows, std::size_t width) {
  return values.data() == nullptr ? nullptr : values.data() + rows * width;
}

}  // namespace

engine::layout::StepPlan RowSection::plan() const {
  std::vector<engine::layout::FeatureIds> ids;
  ids.reserve(config_.id_places.size());
  std::vector<std::vector<std::int64_t>> shifted;  // offsets of a section begin at 0, as those of a batch do
  shifted.reserve(config_.id_places.size());
  for (const std::size_t place : config_.id_places) {
    const auto& each = batch_.ids[place];
    if (each.is_shared || begin_ == 0) {
      const auto offsets = each.is_shared ? each.offsets : each.offsets.first(end_ + 1);
      ids.push_back({each.values.first(static_cast<std::size_t>(offsets.back())), offsets, each.is_shared});
      continue;
    }
    const std::int64_t first = each.offsets[begin_];
    const auto last = static_cast<std::size_t>(each.offsets[end_]);
    auto& offsets = shifted.emplace_back(each.offsets.begin() + static_cast<std::ptrdiff_t>(begin_),
                                         each.offsets.begin() + static_cast<std::ptrdiff_t>(end_ + 1));
    for (std::int64_t& offset : offsets) offset -= first;
    const auto from = static_cast<std::size_t>(first);
    ids.push_back({each.values.subspan(from, last - from), offsets, false});
  }
  return layouts_.plan(rows(), ids, own_thread());
}

void RowSection::gather(std::span<const engine::TableView> views) {
  if (config_.layout_widths.empty()) return;
  plan_.emplace(plan());
  FloatPieces pieces;
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < views.size(); ++i) {
    begins.push_back(pieces.add(plan_->unique(i).ids.size() * views[i].dim()));
  }
  row_memory_ = pieces.take();
  std::vector<engine::TableView::Gather> gathers;
  for (std::size_t i = 0; i < views.size(); ++i) {
    const auto ids = plan_->unique(i).ids;
    float* out = FloatPieces::at(*row_memory_, begins[i]);
    gathers.push_back({.view = &views[i], .ids = ids, .out = out});
    table_rows_.push_back({out, ids.size(), views[i].dim()});
  }
  engine::TableView::gather_all(gathers);
}

void RowSection::run(const OnnxSession& dense, std::span<const std::size_t> outputs, const Scores& scores) const {
  FloatPieces pieces;
  std::vector<std::size_t> begins;
  for (const std::size_t width : config_.layout_widths) begins.push_back(pieces.add(width * rows()));
  const auto memory = pieces.take();
  std::vector<MatrixView<float>> layouts;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    layouts.push_back({FloatPieces::at(*memory, begins[i]), rows(), config_.layout_widths[i]});
  }
  if (plan_) plan_->pool(table_rows_, layouts, own_thread());
  std::vector<const char*> input_names;
  std::vector<Tensor> inputs;
  for (const ProgramInput& input : config_.inputs) {
    input_names.push_back(input.name.c_str());
    inputs.push_back(tensor_of(input, layouts));
  }
  std::vector<const char*> output_names;
  std::vector<Tensor> filled;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const ProgramOutput& output = config_.outputs[outputs[i]];
    Tensor tensor{
        ElementType::kFloat, {static_cast<std::int64_t>(rows())}, scores.outputs[i].data() + begin_ * output.width()};
    tensor.dims.insert(tensor.dims.end(), output.tail.begin(), output.tail.end());
    output_names.push_back(output.name.c_str());
    filled.push_back(std::move(tensor));
  }
  dense.run(input_names, inputs, output_names, filled);
}

Tensor RowSection::tensor_of(const ProgramInput& input, std::span<const MatrixView<float>> layouts) const {
  Tensor tensor{ElementType::kFloat, {static_cast<std::int64_t>(rows())}, nullptr};
  std::size_t width = 1;
  for (const std::int64_t size : input.tail) width *= static_cast<std::size_t>(size);
  tensor.dims.insert(tensor.dims.end(), input.tail.begin(), input.tail.end());
  switch (input.source) {
    case Source::kLayout:
      tensor.data = layouts[input.place].data;
      break;
    case Source::kDense: {
      const auto& field = batch_.dense[input.place];
      if (field.integers.data() != nullptr) {
        tensor.type = ElementType::kInt64;
        tensor.data = skip_rows(field.integers, begin_, field.width);
      } else {
        tensor.data = skip_rows(field.reals, begin_, field.width);
      }
      break;
    }
    case Source::kLabel:
      tensor.data = skip_rows(batch_.labels, begin_, width);
      break;
    case Source::kLabelMask:
      tensor.type = ElementType::kBool;
      tensor.data = skip_rows(batch_.label_mask, begin_, width);
      break;
    case Source::kWeight:
      tensor.data = skip_rows(batch_.weights, begin_, width);
      break;
    case Source::kSampleRate:
      tensor.data = skip_rows(batch_.sample_rates, begin_, width);
      break;
    case Source::kEventTime:
      tensor.type = ElementType::kInt64;
      tensor.data = skip_rows(batch_.times_s, begin_, width);
      break;
    case Source::kUid:
      tensor.type = ElementType::kInt64;
      tensor.data = skip_rows(batch_.uids, begin_, width);
      break;
  }
  return tensor;
}

}  // namespace serving
