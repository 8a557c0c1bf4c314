// table_view.cc: gathers rows of many tables in one software pipeline. Blocks of ids pass four stages: compute and
// fetch the buckets, find the rows, fetch the rows, read them. A block holds ids of several tables, so that the memory
// system stays busy where each table has few ids.
#include "engine/table_view.h"

#include <algorithm>

#include "engine/table_image.h"
#include "rows.h"

namespace engine {

namespace {

// Lines of buckets and rows of a block stay in the first cache.
constexpr std::size_t kBlockIds = 256;

}  // namespace

TableView::TableView(const Table& table) : table_(&table), shape_(table.parts_[0]->rows.shape()) {
  for (std::size_t i = 0; i < kParts; ++i) {
    const Part& part = *table.parts_[i];
    const auto slabs = part.rows.slabs();
    places_[i] = {
        .buckets = part.index.view(), .slabs = slabs.data(), .first_slab = slabs.empty() ? nullptr : slabs.front()};
  }
}

void TableView::read(const std::byte* row, std::int64_t id, float* out, std::span<const float> scales) const noexcept {
  const RowSchema& schema = table_->schema();
  if (row != nullptr) {
    schema.read(row, out, scales);
  } else if (table_->config().miss_is_initial) {
    schema.read_initial(id, out, scales);
  } else {
    std::fill_n(out, schema.dim(), 0.0F);
  }
}

class TableView::Block {
 public:
  [[nodiscard]] std::size_t room() const noexcept { return kBlockIds - size_; }

  // Adds ids [first, first + count) of a gather; there must be room.
  void add(const Gather& gather, std::size_t first, std::size_t count) {
    const TableView& view = *gather.view;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t id = gather.ids[first + i];
      const Place& part = view.places_[part_of(mix(static_cast<std::uint64_t>(id)))];
      parts_[size_ + i] = &part;
      places_[size_ + i] = part.buckets.place(id);
    }
    runs_[run_count_++] = {&gather, first, size_, size_ + count};
    size_ += count;
  }

  // Reads the rows of all ids, and starts again without any.
  void read() {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < size_; ++i) prefetch(places_[i].bucket);
    for (const Run& run : runs()) find(run);
    for (const Run& run : runs()) fetch(run);
    for (const Run& run : runs()) copy(run);
    size_ = run_count_ = 0;
  }

 private:
  // Consecutive ids of one gather.
  struct Run {
    const Gather* gather;
    std::size_t first;  // place in the gather
    std::size_t begin;  // places in the block
    std::size_t end;
  };

  [[nodiscard]] std::span<const Run> runs() const noexcept { return {runs_.data(), run_count_}; }

  void find(const Run& run) {
    const TableView& view = *run.gather->view;
    const std::int64_t* ids = run.gather->ids.data() + run.first;
    for (std::size_t i = run.begin; i < run.end; ++i) {
      bool continues = false;
      std::uint32_t row = parts_[i]->buckets.row_at(places_[i], continues);
      if (continues) {
        const auto number = static_cast<std::size_t>(parts_[i] - view.places_.data());
        row = view.table_->parts_[number]->index.find(ids[i - run.begin]);
      }
      rows_[i] = row == Index::kNoRow ? nullptr : view.row_at(*parts_[i], row);
    }
  }

  // Inline: the compiler drops calls of a function that only fetches, because it changes nothing.
  [[gnu::always_inline]] void fetch(const Run& run) const noexcept {
    const std::size_t last = run.gather->view->shape_.row_bytes - 1;
    for (std::size_t i = run.begin; i < run.end; ++i) prefetch(rows_[i]);
    // A row may cross a line; longer rows are left to the processor's own fetching.
    for (std::size_t i = run.begin; i < run.end; ++i) prefetch(rows_[i] == nullptr ? nullptr : rows_[i] + last);
  }

  void copy(const Run& run) const {
    const Gather& gather = *run.gather;
    const TableView& view = *gather.view;
    const Table& table = *view.table_;
    const std::vector<float> scales = table.schema().is_plain() ? std::vector<float>() : table.scales();
    float* out = gather.out + run.first * view.dim();
    for (std::size_t i = run.begin; i < run.end; ++i, out += view.dim()) {
      view.read(rows_[i], gather.ids[run.first + i - run.begin], out, scales);
    }
    if (table.image_) table.image_->check_whole();  // a file that was cut off gives zeros
  }

  std::array<const Place*, kBlockIds> parts_;
  std::array<Index::Place, kBlockIds> places_;
  std::array<const std::byte*, kBlockIds> rows_;
  std::array<Run, kBlockIds> runs_;  // no run is empty
  std::size_t size_ = 0;
  std::size_t run_count_ = 0;
};

void TableView::gather_all(std::span<const Gather> gathers) {
  Block block;
  for (const Gather& gather : gathers) {
    if (&gather != &gathers.back()) prefetch_row((&gather + 1)->view->places_.data(), sizeof places_);
    for (std::size_t first = 0; first < gather.ids.size();) {
      const std::size_t count = std::min(block.room(), gather.ids.size() - first);
      block.add(gather, first, count);
      first += count;
      if (block.room() == 0) block.read();
    }
  }
  block.read();
}

}  // namespace engine
