#include "record_target.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data/assembler.h"
#include "engine/data/batch_rows.h"
#include "engine/data/row_encoder.h"
#include "engine/data/shuffle_window.h"
#include "engine/fid.h"
#include "transform_groups.h"

namespace fuzz {

namespace {

using namespace engine::data;

// A batch repeats the values that its rows share; more of them than this find nothing new. A fuzzer looks at small
// batches only, because one large batch costs the time of a thousand small ones; the replay of the corpus has both.
#ifdef MONOLITH_FUZZING
constexpr std::size_t kMostExpandedBytes = std::size_t{1} << 16;
constexpr std::size_t kMostRows = 128;
constexpr std::size_t kMostRecords = 4;
constexpr bool kTakesAllWays = false;
#else
constexpr std::size_t kMostExpandedBytes = std::size_t{8} << 20;
constexpr std::size_t kMostRows = std::size_t{1} << 20;
constexpr std::size_t kMostRecords = 64;
constexpr bool kTakesAllWays = true;
#endif

struct Options {
  bool keep_all;
  bool has_label_features;
  bool has_aliases;
  bool has_source_keys;
  bool keeps_fid_version;
  bool shuffles;
  bool parses_twice;

  explicit Options(std::uint8_t bits)
      : keep_all((bits & 1) != 0),
        has_label_features((bits & 2) != 0),
        has_aliases((bits & 4) != 0),
        has_source_keys((bits & 8) != 0),
        keeps_fid_version((bits & 16) != 0),
        shuffles((bits & 32) != 0),
        parses_twice((bits & 64) != 0) {}
};

std::shared_ptr<const Records> make_records(const std::vector<Bytes>& payloads, bool has_source_keys) {
  auto records = std::make_shared<Records>();
  std::size_t total = 0;
  for (const Bytes payload : payloads) total += payload.size();
  auto buffer = Buffer::take(total);
  std::uint64_t at = 0;
  for (const Bytes payload : payloads) {
    if (!payload.empty()) std::memcpy(buffer->data() + at, payload.data(), payload.size());
    const std::uint32_t key = has_source_keys ? static_cast<std::uint32_t>(at + 1) << 8 : 0;
    records->entries.push_back({at, static_cast<std::uint32_t>(payload.size()), key, at});
    at += payload.size();
  }
  records->source = "stream";
  records->buffer = std::move(buffer);
  return records;
}

std::shared_ptr<Columns> make_columns() {
  auto columns = std::make_shared<Columns>();
  for (const char* name : kColumnNames) columns->want(name);
  return columns;
}

ParserConfig make_parser_config(RecordKind kind, const Options& options, const Columns& columns) {
  ParserConfig config;
  config.kind = kind;
  config.keep_all = options.keep_all;
  config.seed = 7;
  if (options.has_label_features) config.label_features = {"i", "d"};
  if (options.has_aliases) config.aliases = {{"fc_a", columns.find("a")}, {"fc_slot_3", columns.find("slot_3")}};
  return config;
}

AssemblerConfig make_sparse_config(const Columns& columns, bool keeps_fid_version) {
  AssemblerConfig config;
  for (const auto& [name, slot, takes_flat_fids] :
       {std::tuple{"a", 7, false}, std::tuple{"b", 32767, true}, std::tuple{"slot_3", 3, true},
        std::tuple{"fc_slot_9", 9, true}, std::tuple{"d", 11, false}, std::tuple{"t", 700, true}}) {
    config.sparse.push_back({name, columns.find(name), slot, takes_flat_fids, ValueKind::kSlot48, false});
  }
  for (const LineField& field : standard_line_fields()) config.extras.push_back({field, field.is_repeated ? 2U : 1U});
  config.labels = 2;
  config.missing_label = -1;
  config.keeps_fid_version = keeps_fid_version;
  return config;
}

AssemblerConfig make_dense_config(const Columns& columns) {
  AssemblerConfig config;
  config.sparse.push_back({"a", columns.find("a"), -1, false, ValueKind::kUnknown, false});
  config.dense.push_back({"d", columns.find("d"), 2, DenseKind::kFloat, 0.5, false});
  config.dense.push_back({"q", columns.find("q"), 6, DenseKind::kFloat, 0, true});
  config.dense.push_back({"i", columns.find("i"), 3, DenseKind::kInt64, -1, true});
  config.dense.push_back({"t", columns.find("t"), 1, DenseKind::kText, 0, true});
  return config;
}

// --- batches ---

void check_ragged(std::span<const std::int64_t> values, std::span<const std::int64_t> offsets, std::size_t bags) {
  expect(offsets.size() == bags + 1 && offsets.front() == 0, "offsets do not fit the rows");
  expect(std::is_sorted(offsets.begin(), offsets.end()), "offsets shrink");
  expect(offsets.back() == static_cast<std::int64_t>(values.size()), "offsets do not end with the values");
}

void check_batch(const BatchData& batch, const Rows& rows) {
  const std::size_t count = rows.size();
  expect(batch.rows == count, "a batch has another number of rows");
  for (const auto& ids : batch.ids) check_ragged(ids.values, ids.offsets, ids.is_shared ? 1 : count);
  check_ragged(batch.actions.values, batch.actions.offsets, count);
  expect(batch.labels.size() == count * batch.heads && batch.label_mask.size() == batch.labels.size(),
         "labels do not fit the rows");
  for (const float weight : batch.weights) expect(std::isfinite(weight), "a weight is not finite");
  for (const auto& field : batch.dense) {
    expect(std::is_sorted(field.texts.offsets.begin(), field.texts.offsets.end()), "offsets shrink");
  }
}

template <typename Value>
bool is_equal(std::span<Value> a, std::span<Value> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::span<std::int64_t> bag(const BatchData::RaggedIds& ids, std::size_t row) {
  const std::size_t place = ids.is_shared ? 0 : row;
  const auto begin = static_cast<std::size_t>(ids.offsets[place]);
  return ids.values.subspan(begin, static_cast<std::size_t>(ids.offsets[place + 1]) - begin);
}

void expect_equal(const BatchData& a, const BatchData& b) {
  expect(a.rows == b.rows && a.ids.size() == b.ids.size(), "another batch comes back");
  for (std::size_t place = 0; place < a.ids.size(); ++place) {
    for (std::size_t row = 0; row < a.rows; ++row) {
      expect(is_equal(bag(a.ids[place], row), bag(b.ids[place], row)), "other ids come back");
    }
  }
  expect(is_equal(a.labels, b.labels) && is_equal(a.label_mask, b.label_mask), "other labels come back");
  expect(std::equal(a.weights.begin(), a.weights.end(), b.weights.begin(), b.weights.end()), "other weights come back");
  expect(is_equal(a.uids, b.uids) && is_equal(a.times_s, b.times_s) && is_equal(a.sample_rates, b.sample_rates),
         "other line fields come back");
  expect(is_equal(a.actions.values, b.actions.values), "other actions come back");
}

// --- rows -> Examples -> rows ---

std::string spelled(const Cell& cell) {
  std::string text;
  append_named_feature(text, 1, "", cell);
  return text;
}

// The ids of one slot among the flat ones, as the cell that the encoder makes of them.
std::string spelled_flat(Bytes flat, std::string_view name) {
  std::string ids;
  for (std::size_t at = 0; at < flat.size(); at += 8) {
    std::int64_t fid = 0;
    std::memcpy(&fid, flat.data() + at, sizeof fid);
    if (name != "fc_slot_" + std::to_string(engine::slot_v1(fid))) continue;
    ids.append(reinterpret_cast<const char*>(flat.data() + at), sizeof fid);
  }
  return spelled({reinterpret_cast<const std::byte*>(ids.data()), static_cast<std::uint32_t>(ids.size()),
                  ids.empty() ? Arm::kNone : Arm::kFidV1, 0});
}

// Names that mean something else in an Example, whatever they meant where the row is from.
bool is_reserved(std::string_view name) {
  return name == "__LABEL__" || name == "__LINE_ID__" || name == "instance_weight";
}

struct RoundTrip {
  Rows rows;
  bool has_flat = false;
  bool has_reserved = false;
};

void expect_same_row(const Rows& rows, const Rows& again, std::size_t index, const Columns& columns,
                     RoundTrip& result) {
  const RowInfo& info = rows.info(index);
  const RowInfo& other = again.info(index);
  result.has_flat = result.has_flat || !info.flat_fids.empty();
  bool has_reserved = false;
  for (std::uint32_t column = 0; column < columns.size(); ++column) {
    const std::string& name = columns.name(column);
    const Cell cell = rows.cell(index, column);
    if (is_reserved(name)) {
      has_reserved = has_reserved || cell.arm != Arm::kNone;
      continue;
    }
    const std::string expected = cell.arm == Arm::kNone ? spelled_flat(info.flat_fids, name) : spelled(cell);
    expect(spelled(again.cell(index, column)) == expected, "another cell comes back");
  }
  result.has_reserved = result.has_reserved || has_reserved;
  if (has_reserved) return;
  expect(info.label_count == other.label_count, "another number of labels comes back");
  expect(info.label_count == 0 || std::memcmp(info.labels, other.labels, info.label_count * sizeof(float)) == 0,
         "other labels come back");
  expect(info.weight == other.weight, "another weight comes back");
  expect(info.source_key == other.source_key, "another data source comes back");
  expect(is_equal(info.line, other.line), "another LineId comes back");
}

RoundTrip expect_round_trip(const Rows& rows, const std::shared_ptr<Columns>& columns) {
  const std::vector<std::string> examples = encode_examples(rows, *columns);
  expect(examples.size() == rows.size(), "rows are missing after encoding");
  std::vector<Bytes> payloads;
  for (const std::string& example : examples) payloads.push_back(std::as_bytes(std::span(example)));
  ParserConfig config;
  config.kind = RecordKind::kExample;
  config.keep_all = true;
  RowParser parser(config, columns);
  RoundTrip result;
  expect(accepts([&] { result.rows = parser.parse(make_records(payloads, false)); }), "an encoded row is refused");
  expect(result.rows.size() == rows.size(), "rows are missing after a round trip");
  for (std::size_t row = 0; row < rows.size(); ++row) expect_same_row(rows, result.rows, row, *columns, result);
  return result;
}

// --- the way ---

// `checks_refusal`: a strict parser must refuse damaged records. That throws, which costs more than all else.
Rows parse(RecordKind kind, const Options& options, const std::shared_ptr<Columns>& columns,
           const std::shared_ptr<const Records>& records, bool checks_refusal) {
  ParserConfig config = make_parser_config(kind, options, *columns);
  config.skip_corrupt = true;
  RowParser lenient(config, columns);
  Rows rows;
  expect(accepts([&] { rows = lenient.parse(records); }), "a parser that skips damage refused a record");
  const bool is_one_row = kind != RecordKind::kExampleBatch && kind != RecordKind::kExampleBatchRowMajor;
  if (is_one_row) expect(rows.size() + lenient.corrupt_records == records->size(), "records are miscounted");
  if (options.parses_twice) rows.append(lenient.parse(records));
  if (lenient.corrupt_records > 0 && !checks_refusal) return rows;

  config.skip_corrupt = false;
  RowParser strict(config, columns);
  Rows same;
  const bool is_good = accepts([&] { same = strict.parse(records); });
  expect(is_good == (lenient.corrupt_records == 0), "a sound record is skipped, or a damaged one accepted");
  if (is_good && !options.parses_twice) expect(same.size() == rows.size(), "rows depend on the skipped records");
  return rows;
}

std::shared_ptr<BatchData> assemble(Assembler& assembler, const Rows& rows) {
  std::shared_ptr<BatchData> batch;
  if (accepts([&] { batch = assembler.assemble(rows); })) check_batch(*batch, rows);
  return batch;
}

// Made once: the numbers of the columns are the same in every run.
Assembler& sparse_assembler(const Columns& columns, const Options& options) {
  static Assembler with_version(make_sparse_config(columns, true));
  static Assembler without_version(make_sparse_config(columns, false));
  return options.keeps_fid_version ? with_version : without_version;
}

Assembler& dense_assembler(const Columns& columns) {
  static Assembler assembler(make_dense_config(columns));
  return assembler;
}

bool is_too_large(RecordKind kind, const std::vector<Bytes>& payloads) {
  if (kind != RecordKind::kExampleBatch) return false;
  return std::any_of(payloads.begin(), payloads.end(), [](Bytes payload) {
    const auto rows = batch_rows(payload);
    return rows && *rows > kMostRows;
  });
}

// The rows in another order. The window is larger than the rows where `bits` is odd, and gets them in two lots.
Rows shuffle(const Rows& rows, std::uint8_t bits) {
  engine::data::ShuffleWindow window(rows.size() + (bits & 1), 3);
  window.add(rows.slice(0, rows.size() / 2));
  window.add(rows.slice(rows.size() / 2, rows.size()));
  Rows shuffled;
  while (window.left() != 0) shuffled.append(window.read());
  expect(shuffled.size() == rows.size(), "a window lost rows");
  return shuffled;
}

}  // namespace

void run_records(RecordKind kind, Bytes bytes) {
  Input input(bytes);
  const Options options(input.byte());
  const std::uint8_t groups = input.byte();
  const std::vector<Bytes> payloads = input.pieces(kMostRecords);
  if (is_too_large(kind, payloads)) return;
  const auto records = make_records(payloads, options.has_source_keys);
  const auto columns = make_columns();
  // A fuzzer takes one way per input, chosen by it: four short runs find more than one long run.
  const std::uint8_t way = groups >> 6;
  const auto takes = [&](std::uint8_t number) { return kTakesAllWays || way == number; };
  Rows rows = parse(kind, options, columns, records, takes(1));
  if (options.shuffles) rows = shuffle(rows, groups);

  if (rows.size() == 0 && !takes(0)) return;  // nothing to look at
  if (rows.size() > kMostRows || rows.size() * bytes.size() > kMostExpandedBytes) return;
  Assembler& sparse = sparse_assembler(*columns, options);
  std::shared_ptr<BatchData> batch;
  if (takes(0) || takes(2)) {
    batch = assemble(sparse, rows);
    expect(batch != nullptr, "a batch of ids was refused, though every feature has a slot");
  }
  if (takes(1)) assemble(dense_assembler(*columns), rows);
  if (takes(2)) {
    const RoundTrip trip = expect_round_trip(rows, columns);
    if (!trip.has_flat && !trip.has_reserved) expect_equal(*batch, *assemble(sparse, trip.rows));
  }
  if (!takes(3) || (groups & 63) == 0 || rows.size() > 4096) return;
  if (!run_transforms(groups, *columns, rows)) return;
  assemble(sparse, rows);
  expect_round_trip(rows, columns);
}

}  // namespace fuzz
