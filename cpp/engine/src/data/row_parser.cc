// row_parser.cc: walks the messages of each format and fills blocks. Cells are read by cells.cc.
#include "engine/data/row_parser.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "cells.h"
#include "engine/data/cell_table.h"
#include "engine/data/row_op.h"
#include "engine/error.h"
#include "wire.h"

namespace engine::data {

namespace {

using wire::kBlock;
using wire::kFixed32;
using wire::kFixed64;
using wire::kVarint;
using wire::Malformed;
using wire::Reader;
using wire::Tag;

constexpr std::string_view kLabelName = "__LABEL__";
constexpr std::string_view kLineName = "__LINE_ID__";

// Columns of their own, never in a block: where a feature goes that is part of RowInfo.
constexpr std::uint32_t kLineColumn = 0xfffffffe;
constexpr std::uint32_t kWeightColumn = 0xfffffffd;
constexpr std::uint32_t kLineFieldColumn = 0xfffffffc;   // tf.Example's __NAME__
constexpr std::uint32_t kFirstLabelColumn = 0xffff0000;  // plus the place among the label features
constexpr std::uint32_t kMostLabelFeatures = 4096;

bool is_label_column(std::uint32_t column) {
  return column >= kFirstLabelColumn && column < kFirstLabelColumn + kMostLabelFeatures;
}

std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

template <typename Value>
Value load(const std::byte* at) {
  Value value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Names of 8 to 16 bytes, as most are, are hashed and compared as two words that may overlap, without a call.
bool are_two_words(std::string_view name) noexcept { return name.size() >= 8 && name.size() <= 16; }

std::uint64_t word_at(std::string_view name, std::size_t at) noexcept {
  std::uint64_t word;
  std::memcpy(&word, name.data() + at, sizeof word);
  return word;
}

struct EqualNames {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const noexcept {
    if (a.size() != b.size() || !are_two_words(a)) return a == b;
    const std::size_t last = a.size() - sizeof(std::uint64_t);
    return word_at(a, 0) == word_at(b, 0) && word_at(a, last) == word_at(b, last);
  }
};

struct HashOfName {
  using is_transparent = void;
  std::size_t operator()(std::string_view name) const noexcept {
    if (!are_two_words(name)) return std::hash<std::string_view>{}(name);
    return mix(word_at(name, 0), word_at(name, name.size() - sizeof(std::uint64_t)));
  }
};

// The first value of a bytes cell.
Bytes first_text(const Cell& cell) {
  if (cell.arm != Arm::kBytes) return {};
  Reader reader(cell.bytes());
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field == cell.field && tag.wire == kBlock) return reader.block();
    reader.skip(tag);
  }
  return {};
}

}  // namespace

// State kept between calls: the columns of names, and the guesses that were right so far.
struct RowParser::Scratch {
  // Where each name leads, wanted or not.
  std::unordered_map<std::string, std::uint32_t, HashOfName, EqualNames> targets;
  // Records of one stream name their features in the same order: the guess is the name that stood here last time.
  struct Guess {
    const std::string* name = nullptr;
    std::uint32_t column = Columns::kUnwanted;
  };
  std::vector<Guess> guesses;
  std::vector<Bytes> feature_lists;
  std::vector<std::uint32_t> packed_fields;  // LineId's repeated integers
  std::vector<Cell> cells;
  std::vector<float> labels;
  std::vector<std::pair<std::uint32_t, Cell>> shared_cells;  // by column, of a row-major batch
  std::vector<std::byte> merged;                             // of a feature that comes in several pieces
  std::vector<std::byte> merged_line;                        // of the row that is being read
  std::vector<Cell> line_field_cells;                        // of tf.Example, by place among the line fields
  std::vector<std::int64_t> integers;
  Cell line_cell;  // of the row that is being read
  Cell weight_cell;
  std::vector<Cell> label_cells;  // of each label feature, and of each row when columns are read
};

// Fills one block. Lives for one call.
class RowParser::RecordReader {
 public:
  // `copy_room` is how many bytes may be copied for rows that share their values.
  RecordReader(const ParserConfig& config, Columns& columns, Scratch& scratch, Block& block,
               std::size_t copy_room = std::numeric_limits<std::size_t>::max())
      : config_(config), columns_(columns), scratch_(scratch), block_(block), copy_room_(copy_room) {}

  void read(std::uint32_t row, Bytes record) {
    switch (config_.kind) {
      case RecordKind::kInstance:
        return read_instance(row, record);
      case RecordKind::kTfExample:
        return read_tf_example(row, record);
      default:
        return read_example(row, record);
    }
  }

  // Reads the features of a row-major batch that every row has. Once: they may be as many as the rows.
  void read_shared(const std::vector<Bytes>& features) {
    auto& shared = scratch_.shared_cells;
    shared.clear();
    shared_features_ = features.size();
    std::size_t position = 0;
    for (const Bytes feature : features) {
      const Named named = read_named(feature);
      const std::uint32_t column = target(as_text(named.name), position++);
      if (column == Columns::kUnwanted) continue;
      const Cell cell = read_example_feature(named.feature, block_.arena());
      if (cell.arm != Arm::kNone) shared.emplace_back(column, cell);
    }
    // Of a name that comes again the last counts.
    std::reverse(shared.begin(), shared.end());
    std::stable_sort(shared.begin(), shared.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto is_double = [](const auto& a, const auto& b) { return a.first == b.first; };
    shared.erase(std::unique(shared.begin(), shared.end(), is_double), shared.end());
  }

  // A row's own features come after those that it shares, and so count.
  void read_example(std::uint32_t row, Bytes record) {
    begin_row();
    RowInfo& info = block_.info(row);
    std::size_t position = shared_features_;
    if (shared_features_ > 0) {
      for (const auto& [column, cell] : scratch_.shared_cells) set(row, column, cell);
    }
    Reader reader(record);
    while (!reader.done()) {
      const Tag tag = reader.tag();
      if (tag.field == 1 && tag.wire == kBlock) {
        read_named_feature(row, reader.block(), position++);
      } else if (tag.field == 100 && tag.wire == kBlock) {
        add_line(info, reader.block());
      } else if (tag.field == 101) {
        read_label(reader, tag);
      } else if (tag.field == 102 && tag.wire == kFixed32) {
        set_weight(info, reader.fixed<float>());
      } else if (tag.field == 103 && tag.wire == kVarint) {
        info.source_key = static_cast<std::uint32_t>(reader.varint());
      } else {
        reader.skip(tag);
      }
    }
    end_row(info);
  }

  // Reads an ExampleBatch column by column.
  void read_batch(const std::vector<Bytes>& lists) {
    const std::uint32_t rows = block_.rows();
    scratch_.label_cells.assign(label_features() * rows, Cell{});
    std::size_t position = 0;
    for (const Bytes list : lists) read_named_list(list, position++);
    set_all_labels();
  }

  // Reads a table column by column.
  void read_table(const CellTable& table) {
    const std::uint32_t rows = block_.rows();
    scratch_.label_cells.assign(label_features() * rows, Cell{});
    std::size_t position = 0;
    for (const CellColumn& source : table.columns) {
      const std::uint32_t column = target(source.name, position++);
      if (column == Columns::kUnwanted || rows == 0) continue;
      Cell* const cells = cells_of(column);
      for (std::uint32_t row = 0; row < rows; ++row) cells[row] = source.cell(row);
      finish_column(column, cells);
    }
    set_all_labels();
  }

 private:
  [[nodiscard]] std::size_t label_features() const { return std::max<std::size_t>(1, config_.label_features.size()); }

  void begin_row() {
    scratch_.labels.clear();
    scratch_.merged_line.clear();
    scratch_.line_field_cells.clear();
    scratch_.line_cell = scratch_.weight_cell = {};
    scratch_.label_cells.assign(label_features(), Cell{});
  }

  // Reserved features take precedence over the record's own fields, wherever they stood.
  void end_row(RowInfo& info) {
    for (std::size_t place = 0; place < scratch_.line_field_cells.size(); ++place) {
      set_line_field(info, config_.line_fields[place], scratch_.line_field_cells[place]);
    }
    if (const Bytes line = first_text(scratch_.line_cell); !line.empty()) add_line(info, line);
    if (const auto& merged = scratch_.merged_line; !merged.empty()) {
      take_copy_room(merged.size());
      info.line = block_.arena().copy(merged);
    }
    if (const auto weight = first_number(scratch_.weight_cell)) set_weight(info, *weight);
    set_labels(info, 0, 1);
  }

  void take_copy_room(std::size_t bytes) {
    if (bytes > copy_room_) throw Malformed{"the rows of the batch share too much to be plausible"};
    copy_room_ -= bytes;
  }

  void read_named_list(Bytes list, std::size_t position) {
    const std::uint32_t rows = block_.rows();
    const Bytes name = name_of(list);
    const std::uint32_t column = target(as_text(name), position);
    if (column == Columns::kUnwanted || rows == 0) return;

    Cell* const cells = cells_of(column);
    std::uint64_t type = 0;
    std::uint64_t count = 0;
    Reader reader(list);
    while (!reader.done()) {
      const Bytes left{reader.at(), list.data() + list.size()};
      if (const std::size_t size = read_short_features(left, cells, rows, count)) {
        reader = Reader(left.subspan(size));
        continue;
      }
      const Tag tag = reader.tag();
      if (tag.field == 2 && tag.wire == kBlock) {
        const Bytes feature = reader.block();
        if (count < rows) cells[count] = read_example_feature(feature, block_.arena());
        ++count;
      } else if (tag.field == 3 && tag.wire == kVarint) {
        type = reader.varint();
      } else {
        reader.skip(tag);
      }
    }
    if (type == 1) {
      if (count > 0) std::fill(cells + 1, cells + rows, cells[0]);
    } else if (count != rows) {
      throw Malformed{"column '" + std::string(as_text(name)) + "' has " + std::to_string(count) +
                          " features for a batch of " + std::to_string(rows) +
                          " rows; a column that serves all rows must be of type SHARED",
                      list.data()};
    }
    finish_column(column, cells);
  }

  // Where the cells of a column go: a column of the block is written in place, one that belongs to the infos goes
  // through scratch.
  Cell* cells_of(std::uint32_t column) {
    if (column < kFirstLabelColumn) return block_.column(column);
    if (is_label_column(column)) {
      return scratch_.label_cells.data() + std::size_t{column - kFirstLabelColumn} * block_.rows();
    }
    scratch_.cells.assign(block_.rows(), Cell{});
    return scratch_.cells.data();
  }

  void finish_column(std::uint32_t column, const Cell* cells) {
    if (column == kLineColumn) set_lines(cells);
    if (column == kWeightColumn) set_weights(cells);
  }

  void set_all_labels() {
    for (std::uint32_t row = 0; row < block_.rows(); ++row) {
      scratch_.labels.clear();
      set_labels(block_.info(row), row, block_.rows());
    }
  }

  // Shared columns are read once. A column that comes again counts where it holds something.
  void set_lines(const Cell* cells) {
    Bytes line;
    for (std::uint32_t row = 0; row < block_.rows(); ++row) {
      if (row == 0 || cells[row].data != cells[row - 1].data) check_line(line = first_text(cells[row]));
      if (!line.empty()) block_.info(row).line = line;
    }
  }

  void set_weights(const Cell* cells) {
    std::optional<float> weight;
    for (std::uint32_t row = 0; row < block_.rows(); ++row) {
      if (row == 0 || cells[row].data != cells[row - 1].data) weight = first_number(cells[row]);
      if (weight) set_weight(block_.info(row), *weight);
    }
  }

  // Labels of the record itself, then those of its label features; a feature that was named and is absent is a
  // missing label, so that the labels behind it keep their places.
  void set_labels(RowInfo& info, std::size_t row, std::size_t rows) {
    for (std::size_t feature = 0; feature < label_features(); ++feature) {
      const Cell& cell = scratch_.label_cells[feature * rows + row];
      if (cell.arm == Arm::kNone && !config_.label_features.empty()) scratch_.labels.push_back(kInvalidLabel);
      append_numbers(cell, scratch_.labels);
    }
    const std::size_t count = scratch_.labels.size();
    if (count == 0) return;
    take_copy_room(count * sizeof(float));
    auto* labels = block_.arena().take_array<float>(count);
    std::copy_n(scratch_.labels.data(), count, labels);
    info.labels = labels;
    info.label_count = static_cast<std::uint32_t>(count);
  }

  static void set_weight(RowInfo& info, float weight) {
    // A joiner undoes an example with a negative weight.
    if (!std::isfinite(weight)) {
      throw Malformed{"instance weight is " + std::to_string(weight) + ", expected a finite number"};
    }
    info.weight = weight;
  }

  void add_line(RowInfo& info, Bytes line) {
    if (line.data() != checked_line_.data() || line.size() != checked_line_.size()) check_line(line);
    checked_line_ = line;
    if (info.line.empty()) {
      info.line = line;
      return;
    }
    // A message field that comes again is merged, which is to say concatenated; in the end, and then once.
    append(scratch_.merged_line, info.line, line);
  }

  // Joins pieces: `merged` begins with the first of them.
  static void append(std::vector<std::byte>& merged, Bytes first, Bytes next) {
    if (merged.empty()) merged.assign(first.begin(), first.end());
    merged.insert(merged.end(), next.begin(), next.end());
  }

  // Everything that reads the LineId later relies on its structure, packed numbers included.
  void check_line(Bytes line) const {
    Reader reader(line);
    while (!reader.done()) {
      const Tag tag = reader.tag();
      if (tag.wire != kBlock) {
        reader.skip(tag);
        continue;
      }
      const Bytes value = reader.block();
      const auto& packed = scratch_.packed_fields;
      if (std::find(packed.begin(), packed.end(), tag.field) != packed.end()) check_varints(value);
    }
  }

  // One occurrence of the record's own label field, packed or not.
  void read_label(Reader& reader, const Tag& tag) {
    if (!config_.label_features.empty()) return reader.skip(tag);
    if (tag.wire == kBlock) {
      const Bytes values = reader.block();
      if (values.size() % sizeof(float) != 0) {
        throw Malformed{"packed labels take " + std::to_string(values.size()) + " bytes", values.data()};
      }
      for (std::size_t at = 0; at < values.size(); at += sizeof(float)) {
        scratch_.labels.push_back(load<float>(values.data() + at));
      }
    } else if (tag.wire == kFixed32) {
      scratch_.labels.push_back(reader.fixed<float>());
    } else {
      reader.skip(tag);
    }
  }

  // Field 1 of a feature or a column; writers put it first.
  static Bytes name_of(Bytes message) {
    Bytes name;
    Reader reader(message);
    while (!reader.done()) {
      const Tag tag = reader.tag();
      if (tag.field != 1 || tag.wire != kBlock) {
        reader.skip(tag);
        continue;
      }
      const bool is_first = reader.at() == message.data() + 1;
      name = reader.block();
      if (is_first) break;
    }
    return name;
  }

  struct Named {
    Bytes name;
    Bytes feature;
  };

  // The usual form, [1][length] name [2][length] feature with lengths of one byte, without a loop over fields.
  static bool split_short(Bytes message, Named& named) {
    constexpr std::size_t kHeads = 4;
    constexpr std::size_t kMost = 0x7f;
    const auto byte = [message](std::size_t at) { return static_cast<std::size_t>(message[at]); };
    if (message.size() < kHeads || byte(0) != (1 << 3 | kBlock)) return false;
    const std::size_t name = byte(1);
    if (name > kMost || name > message.size() - kHeads) return false;
    const std::size_t feature = message.size() - kHeads - name;
    if (feature > kMost || byte(2 + name) != (2 << 3 | kBlock) || byte(3 + name) != feature) return false;
    named = {message.subspan(2, name), message.last(feature)};
    return true;
  }

  // A name and a feature: NamedFeature, or an entry of tf.Example's map.
  Named read_named(Bytes message) {
    Named named;
    if (split_short(message, named)) return named;
    bool has_feature = false;
    auto& merged = scratch_.merged;
    merged.clear();
    Reader reader(message);
    while (!reader.done()) {
      const Tag tag = reader.tag();
      if (tag.wire == kBlock && tag.field == 1) {
        named.name = reader.block();
      } else if (tag.wire == kBlock && tag.field == 2) {
        const Bytes feature = reader.block();
        if (has_feature) append(merged, named.feature, feature);
        if (!has_feature) named.feature = feature;
        has_feature = true;
      } else {
        reader.skip(tag);
      }
    }
    if (!merged.empty()) named.feature = block_.arena().copy(merged);
    return named;
  }

  void read_named_feature(std::uint32_t row, Bytes message, std::size_t position) {
    const Named named = read_named(message);
    const std::uint32_t column = target(as_text(named.name), position);
    if (column == Columns::kUnwanted) return;
    put(row, column, read_example_feature(named.feature, block_.arena()));
  }

  // A name that comes twice in a row: the later one counts, unless it holds nothing.
  void put(std::uint32_t row, std::uint32_t column, const Cell& cell) {
    if (cell.arm != Arm::kNone) set(row, column, cell);
  }

  void set(std::uint32_t row, std::uint32_t column, const Cell& cell) {
    if (column < kFirstLabelColumn) {
      block_.set_cell(row, column, cell);
    } else if (column == kLineColumn) {
      scratch_.line_cell = cell;
    } else if (column == kWeightColumn) {
      scratch_.weight_cell = cell;
    } else {
      scratch_.label_cells[column - kFirstLabelColumn] = cell;
    }
  }

  static std::optional<float> first_number(const Cell& cell) {
    switch (cell.arm) {
      case Arm::kNone:
        return std::nullopt;
      case Arm::kFloat:
        return load<float>(cell.data);
      case Arm::kDouble:
        return static_cast<float>(load<double>(cell.data));
      case Arm::kInt64:
        return static_cast<float>(static_cast<std::int64_t>(Reader(cell.bytes()).varint()));
      case Arm::kFixedInt64:
        return static_cast<float>(load<std::int64_t>(cell.data));
      default:
        throw_no_numbers(cell);
    }
  }

  [[noreturn]] static void throw_no_numbers(const Cell& cell) {
    throw Malformed{"a label or weight must be a list of numbers", cell.data};
  }

  static void append_numbers(const Cell& cell, std::vector<float>& out) {
    switch (cell.arm) {
      case Arm::kNone:
        return;
      case Arm::kFloat:
        for (std::size_t at = 0; at < cell.size; at += 4) out.push_back(load<float>(cell.data + at));
        return;
      case Arm::kDouble:
        for (std::size_t at = 0; at < cell.size; at += 8) {
          out.push_back(static_cast<float>(load<double>(cell.data + at)));
        }
        return;
      case Arm::kInt64: {
        Reader reader(cell.bytes());
        while (!reader.done()) out.push_back(static_cast<float>(static_cast<std::int64_t>(reader.varint())));
        return;
      }
      case Arm::kFixedInt64:
        for (std::size_t at = 0; at < cell.size; at += 8) {
          out.push_back(static_cast<float>(load<std::int64_t>(cell.data + at)));
        }
        return;
      default:
        throw_no_numbers(cell);
    }
  }

  // --- Instance ---

  void read_instance(std::uint32_t row, Bytes record) {
    begin_row();
    RowInfo& info = block_.info(row);
    std::uint32_t fid_fields = 0;
    bool has_other = false;  // the rare fields `value`, `dense` and `next_fid`
    Reader reader(record);
    std::size_t position = 0;
    while (!reader.done()) {
      const Tag tag = reader.tag();
      if (tag.field == 1 && tag.wire == kBlock) {
        info.flat_fids = reader.block();
        if (info.flat_fids.size() % 8 != 0) {
          throw Malformed{"packed fids take " + std::to_string(info.flat_fids.size()) + " bytes",
                          info.flat_fids.data()};
        }
        ++fid_fields;
      } else if (tag.field == 1 && tag.wire == kFixed64) {
        reader.skip(tag);
        fid_fields += 2;
      } else if (tag.field == 3) {
        read_label(reader, tag);
      } else if (tag.field == 4 && tag.wire == kFixed32) {
        set_weight(info, reader.fixed<float>());
      } else if (tag.field == 5 && tag.wire == kBlock) {
        add_line(info, reader.block());
      } else if (tag.field == 9 && tag.wire == kBlock) {
        read_instance_feature_of(row, reader.block(), position++);
      } else if (tag.field == 100 && tag.wire == kVarint) {
        info.source_key = static_cast<std::uint32_t>(reader.varint());
      } else {
        has_other = has_other || tag.field == 2 || tag.field == 6 || tag.field == 8;
        reader.skip(tag);
      }
    }
    if (fid_fields > 1) info.flat_fids = packed_fixed(record, 1, 8, block_.arena());
    if (has_other) read_plain_fields(row, record);
    end_row(info);
  }

  void read_plain_fields(std::uint32_t row, Bytes record) {
    struct Plain {
      std::string_view name;
      std::uint32_t field;
      std::uint32_t width;
      Arm arm;
    };
    static constexpr Plain kPlain[] = {
        {"value", 2, 4, Arm::kFloat}, {"dense", 6, 4, Arm::kFloat}, {"next_fid", 8, 8, Arm::kFidV1}};
    for (const Plain& plain : kPlain) {
      const std::uint32_t column = columns_.find(plain.name);
      if (column == Columns::kUnwanted || block_.cell(row, column).arm != Arm::kNone) continue;
      const Bytes values = packed_fixed(record, plain.field, plain.width, block_.arena());
      if (values.empty()) continue;
      put(row, column, {values.data(), static_cast<std::uint32_t>(values.size()), plain.arm, 0});
    }
  }

  void read_instance_feature_of(std::uint32_t row, Bytes feature, std::size_t position) {
    const std::uint32_t column = target(as_text(name_of(feature)), position);
    if (column == Columns::kUnwanted) return;
    put(row, column, read_instance_feature(feature, block_.arena()));
  }

  // --- tf.Example ---

  void read_tf_example(std::uint32_t row, Bytes record) {
    begin_row();
    RowInfo& info = block_.info(row);
    std::size_t position = 0;
    Reader reader(record);
    while (!reader.done()) {
      const Tag tag = reader.tag();
      if (tag.field != 1 || tag.wire != kBlock) {
        reader.skip(tag);
        continue;
      }
      Reader features(reader.block());
      while (!features.done()) {
        const Tag entry = features.tag();
        if (entry.field == 1 && entry.wire == kBlock) {
          read_map_entry(row, features.block(), position++);
        } else {
          features.skip(entry);
        }
      }
    }
    end_row(info);
  }

  void read_map_entry(std::uint32_t row, Bytes entry, std::size_t position) {
    const Named named = read_named(entry);
    const std::uint32_t column = target(as_text(named.name), position);
    if (column == Columns::kUnwanted) return;
    const Cell cell = read_tf_feature(named.feature, block_.arena());
    // In a map the last value of a key counts, empty or not.
    if (column != kLineFieldColumn) return set(row, column, cell);
    scratch_.line_field_cells.resize(config_.line_fields.size());
    scratch_.line_field_cells[find_line_field(as_text(named.name))] = cell;
  }

  void set_line_field(RowInfo& info, const LineField& field, const Cell& cell) {
    const bool is_real = field.kind == FieldKind::kFloat || field.kind == FieldKind::kDouble;
    const bool is_text = field.kind == FieldKind::kText;
    Arena& arena = block_.arena();
    if (cell.arm == Arm::kNone) return;
    if (cell.arm == Arm::kInt64 && !is_text) {
      auto& values = scratch_.integers;
      values.clear();
      for (Reader reader(cell.bytes()); !reader.done();) values.push_back(static_cast<std::int64_t>(reader.varint()));
      if (is_real) {
        info.line = line_set_real(info.line, field, static_cast<double>(values.back()), arena);
      } else if (field.is_repeated) {
        info.line = line_add_ints(info.line, field, values, arena);
      } else {
        info.line = line_set_int(info.line, field, values.back(), arena);
      }
    } else if (cell.arm == Arm::kFloat && is_real) {
      info.line = line_set_real(info.line, field, load<float>(cell.data), arena);
    } else if (cell.arm == Arm::kBytes && is_text) {
      info.line = line_set_text(info.line, field, as_text(first_text(cell)), arena);
    } else {
      throw Malformed{"the feature of LineId field '" + field.name + "' is of another type than the field", cell.data};
    }
  }

  // --- names ---

  std::uint32_t target(std::string_view name, std::size_t position) {
    auto& guesses = scratch_.guesses;
    if (position < guesses.size()) {
      const auto& guess = guesses[position];
      if (guess.name != nullptr && EqualNames{}(*guess.name, name)) return guess.column;
    } else {
      guesses.resize(std::min<std::size_t>(position + 1, kMostGuesses));
    }
    const std::string* kept = nullptr;
    const std::uint32_t column = find_target(name, kept);
    if (position < guesses.size()) guesses[position] = {kept, column};
    return column;
  }

  std::uint32_t find_target(std::string_view name, const std::string*& kept) {
    auto& targets = scratch_.targets;
    if (const auto found = targets.find(name); found != targets.end()) {
      // A column may have been asked for since the name was first met.
      if (found->second == Columns::kUnwanted) found->second = columns_.find(name);
      kept = &found->first;
      return found->second;
    }
    const std::uint32_t column = new_target(name);
    // Names without end would be memory without end: past the limit they are looked up each time.
    if (targets.size() < kMostNames) kept = &targets.emplace(name, column).first->first;
    return column;
  }

  std::uint32_t new_target(std::string_view name) {
    const auto& labels = config_.label_features;
    if (labels.empty() && name == kLabelName) return kFirstLabelColumn;
    if (labels.empty() && config_.kind == RecordKind::kTfExample && name == "label") return kFirstLabelColumn;
    if (const auto found = std::find(labels.begin(), labels.end(), name); found != labels.end()) {
      return kFirstLabelColumn + static_cast<std::uint32_t>(found - labels.begin());
    }
    if (name == config_.weight_feature) return kWeightColumn;
    if (name == kLineName) return kLineColumn;
    const std::uint32_t column = columns_.find(name);
    if (column != Columns::kUnwanted) return column;
    if (const auto alias = config_.aliases.find(std::string(name)); alias != config_.aliases.end()) {
      return alias->second;
    }
    const bool is_tf = config_.kind == RecordKind::kTfExample;
    if (is_tf && find_line_field(name) < config_.line_fields.size()) return kLineFieldColumn;
    // With label features, the record's own labels count for nothing: as a feature they would be taken for labels again
    // by the next parser of the row.
    if (name == kLabelName) return Columns::kUnwanted;
    if (config_.keep_all && columns_.size() < kMostNames) return columns_.want(name);
    return Columns::kUnwanted;
  }

  // The place among the line fields of the one that __NAME__ names, or their number.
  std::size_t find_line_field(std::string_view name) const {
    const auto& fields = config_.line_fields;
    if (name.size() <= 4 || !name.starts_with("__") || !name.ends_with("__")) return fields.size();
    const std::string_view inner = name.substr(2, name.size() - 4);
    const auto found = std::find_if(fields.begin(), fields.end(), [inner](const LineField& field) {
      return std::equal(inner.begin(), inner.end(), field.name.begin(), field.name.end(),
                        [](char one, char other) { return std::tolower(static_cast<unsigned char>(one)) == other; });
    });
    return static_cast<std::size_t>(found - fields.begin());
  }

  static constexpr std::size_t kMostNames = 1 << 16;
  static constexpr std::size_t kMostGuesses = 1 << 14;

  const ParserConfig& config_;
  Columns& columns_;
  Scratch& scratch_;
  Block& block_;
  std::size_t copy_room_;
  std::size_t shared_features_ = 0;
  Bytes checked_line_;
};

RowParser::RowParser(ParserConfig config, std::shared_ptr<Columns> columns)
    : config_(std::move(config)), columns_(std::move(columns)), scratch_(std::make_unique<Scratch>()) {
  if (config_.label_features.size() > kMostLabelFeatures) {
    throw ConfigError("label_features names " + std::to_string(config_.label_features.size()) + " features; at most " +
                      std::to_string(kMostLabelFeatures) + " are possible");
  }
  for (const LineField& field : config_.line_fields) {
    if (field.is_repeated && field.kind == FieldKind::kInt) scratch_->packed_fields.push_back(field.number);
  }
}

RowParser::~RowParser() = default;

namespace {

[[noreturn]] void fail(const Records& records, std::size_t index, const Malformed& malformed) {
  const Bytes record = records[index];
  std::string where;
  if (records.table == nullptr && malformed.at >= record.data() && malformed.at <= record.data() + record.size()) {
    where = ", byte " + std::to_string(malformed.at - record.data()) + " of it";
  }
  const char* const unit = records.table == nullptr ? "byte " : "row ";
  throw RecordCorrupt(records.source + ": record at " + unit + std::to_string(records.entries[index].stream_offset) +
                      where + ": " + malformed.reason);
}

// Rows and columns that a batch claims, held against its bytes: a few bytes must not ask for gigabytes.
void check_size(std::uint64_t rows, std::size_t columns, std::size_t bytes) {
  constexpr std::uint64_t kMostRows = 1 << 22;
  constexpr std::uint64_t kFreeRows = 1 << 16;
  constexpr std::uint64_t kFreeCells = 1 << 22;
  const std::uint64_t cells = rows * std::max<std::uint64_t>(columns, 1);
  if (rows > std::min(kMostRows, std::max<std::uint64_t>(kFreeRows, bytes)) ||
      cells > std::max(kFreeCells, std::uint64_t{8} * bytes)) {
    throw Malformed{"a batch of " + std::to_string(rows) + " rows in " + std::to_string(bytes) +
                    " bytes is not plausible"};
  }
}

// Bytes that may be copied for rows that share them: labels, and merged LineIds.
std::size_t copy_room(std::size_t bytes) { return std::max<std::size_t>(std::size_t{16} << 20, 8 * bytes); }

// Features of a column, without reading them.
std::uint64_t count_features(Bytes list) {
  std::uint64_t count = 0;
  Reader reader(list);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    count += tag.field == 2 && tag.wire == kBlock ? 1U : 0U;
    reader.skip(tag);
  }
  return count;
}

struct BatchShape {
  std::uint64_t rows = 0;
  std::uint32_t source_key = 0;
};

// Columns of an ExampleBatch and its size; the size stands behind the columns.
BatchShape scan_batch(Bytes record, std::size_t columns, std::vector<Bytes>& lists) {
  BatchShape shape;
  std::int64_t batch_size = 0;
  lists.clear();
  Reader reader(record);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field == 1 && tag.wire == kBlock) {
      lists.push_back(reader.block());
    } else if (tag.field == 3 && tag.wire == kVarint) {
      batch_size = static_cast<std::int32_t>(reader.varint());
    } else if (tag.field == 100 && tag.wire == kVarint) {
      shape.source_key = static_cast<std::uint32_t>(reader.varint());
    } else {
      reader.skip(tag);
    }
  }
  if (batch_size < 0) throw Malformed{"batch_size is " + std::to_string(batch_size)};
  shape.rows = static_cast<std::uint64_t>(batch_size);
  // A batch that does not say its size has as many rows as its longest column.
  if (batch_size == 0) {
    for (const Bytes list : lists) shape.rows = std::max(shape.rows, count_features(list));
  }
  check_size(shape.rows, columns + lists.size(), record.size());
  return shape;
}

void add_block(Rows& rows, std::shared_ptr<Block> block) {
  const auto number = static_cast<std::uint32_t>(rows.blocks.size());
  for (std::uint32_t row = 0; row < block->rows(); ++row) rows.refs.push_back({number, row});
  rows.blocks.push_back(std::move(block));
}

}  // namespace

Rows RowParser::parse(std::shared_ptr<const Records> records) {
  Rows rows;
  const std::size_t count = records->size();
  const auto new_block = [&](std::uint32_t size) {
    auto block = std::make_shared<Block>(size, columns_->size());
    block->keep(records->buffer);
    return block;
  };
  const auto corrupt = [&](std::size_t index, const Malformed& malformed) {
    if (!config_.skip_corrupt) fail(*records, index, malformed);
    ++corrupt_records;
  };
  const auto finish = [&](RowInfo& info, std::size_t index) {
    info.key = mix(config_.seed, next_row++);
    if (const auto header = records->entries[index].source_key; header != 0) info.source_key = header;
  };

  // Columns that the stream itself brought about count as its claim, those of the schema do not.
  const auto claimed_columns = [&] { return config_.keep_all ? std::size_t{columns_->size()} : 0; };

  if (records->table != nullptr) {
    try {
      auto block = new_block(records->table->rows);
      RecordReader reader(config_, *columns_, *scratch_, *block, copy_room((*records)[0].size()));
      reader.read_table(*records->table);
      for (std::uint32_t row = 0; row < block->rows(); ++row) finish(block->info(row), 0);
      add_block(rows, std::move(block));
    } catch (const Malformed& malformed) {
      corrupt(0, malformed);
    }
    return rows;
  }

  if (config_.kind == RecordKind::kExampleBatch) {
    for (std::size_t index = 0; index < count; ++index) {
      try {
        const BatchShape shape = scan_batch((*records)[index], claimed_columns(), scratch_->feature_lists);
        auto block = new_block(static_cast<std::uint32_t>(shape.rows));
        RecordReader reader(config_, *columns_, *scratch_, *block, copy_room((*records)[index].size()));
        reader.read_batch(scratch_->feature_lists);
        for (std::uint32_t row = 0; row < block->rows(); ++row) {
          block->info(row).source_key = shape.source_key;
          finish(block->info(row), index);
        }
        add_block(rows, std::move(block));
      } catch (const Malformed& malformed) {
        corrupt(index, malformed);
      }
    }
    return rows;
  }

  if (config_.kind == RecordKind::kExampleBatchRowMajor) {
    std::vector<Bytes> shared;
    std::vector<Bytes> examples;
    for (std::size_t index = 0; index < count; ++index) {
      try {
        shared.clear();
        examples.clear();
        Reader reader((*records)[index]);
        while (!reader.done()) {
          const Tag tag = reader.tag();
          if (tag.field == 1 && tag.wire == kBlock) {
            shared.push_back(reader.block());
          } else if (tag.field == 3 && tag.wire == kBlock) {
            examples.push_back(reader.block());
          } else {
            reader.skip(tag);
          }
        }
        check_size(examples.size(), claimed_columns() + shared.size(), (*records)[index].size());
        auto block = new_block(static_cast<std::uint32_t>(examples.size()));
        RecordReader row_reader(config_, *columns_, *scratch_, *block, copy_room((*records)[index].size()));
        row_reader.read_shared(shared);
        for (std::uint32_t row = 0; row < block->rows(); ++row) {
          row_reader.read_example(row, examples[row]);
          finish(block->info(row), index);
        }
        add_block(rows, std::move(block));
      } catch (const Malformed& malformed) {
        corrupt(index, malformed);
      }
    }
    return rows;
  }

  auto block = new_block(static_cast<std::uint32_t>(count));
  rows.refs.reserve(count);
  RecordReader reader(config_, *columns_, *scratch_, *block);
  for (std::size_t index = 0; index < count; ++index) {
    const auto row = static_cast<std::uint32_t>(index);
    try {
      reader.read(row, (*records)[index]);
      finish(block->info(row), index);
      rows.refs.push_back({0, row});
    } catch (const Malformed& malformed) {
      corrupt(index, malformed);
    }
  }
  rows.blocks.push_back(std::move(block));
  return rows;
}

}  // namespace engine::data
