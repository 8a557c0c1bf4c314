// entry_dump_fuzz.cc: checkpoint records of the original, for tables of several shapes.
#include <cstring>
#include <vector>

#include "engine/entry_dump.h"
#include "target.h"

namespace {

using namespace engine;

SliceConfig slice(std::uint32_t dim, std::string kind, std::map<std::string, double> settings) {
  SliceConfig config;
  config.dim = dim;
  config.optimizer = {std::move(kind), std::move(settings)};
  return config;
}

const std::vector<DumpSchema>& schemas() {
  static const std::vector<DumpSchema> all = [] {
    const SliceConfig sgd = slice(3, "sgd", {});
    const SliceConfig adagrad = slice(2, "adagrad", {{"initial_accumulator_value", 0.5}, {"weight_decay_factor", 0}});
    const SliceConfig adam =
        slice(4, "adam",
              {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay_factor", 0}, {"use_nesterov", 0}, {"epsilon", 0.01}});
    const SliceConfig softmax = slice(1, "batch_softmax", {});
    const SliceConfig average = slice(2, "moving_average", {{"momentum", 0.9}});
    const std::vector<std::vector<SliceConfig>> tables{
        {sgd}, {adagrad}, {adam}, {softmax}, {sgd, average, adam}, {average}, {adagrad, softmax, adagrad}};
    std::vector<DumpSchema> made;
    for (const auto& table : tables) made.push_back(make_dump_schema(table));
    return made;
  }();
  return all;
}

bool is_equal(const EntryBatch& a, const EntryBatch& b) {
  return a.ids == b.ids && a.times_s == b.times_s && a.rows.size() == b.rows.size() &&
         (a.rows.empty() || std::memcmp(a.rows.data(), b.rows.data(), a.rows.size() * sizeof(float)) == 0);
}

void decode(const DumpSchema& schema, fuzz::Bytes stream, bool allow_missing_state, EntryBatch& batch) {
  RecordScanner scanner(stream, 0, "stream");
  while (decode_entries(schema, scanner, 3, allow_missing_state, batch) > 0) {
  }
  scanner.finish();
}

void read_metadata(fuzz::Bytes stream) {
  RecordScanner scanner(stream, 0, "stream");
  fuzz::Bytes record;
  while (scanner.next(record)) {
    const TableMetadata metadata = decode_metadata(record, scanner);
    std::vector<std::byte> again;
    encode_metadata(metadata, again);
    RecordScanner copy(again, 0, "copy");
    fuzz::Bytes copied;
    fuzz::expect(copy.next(copied), "metadata that was written is not a record");
    const TableMetadata same = decode_metadata(copied, copy);
    fuzz::expect(same.table_name == metadata.table_name && same.entries == metadata.entries,
                 "other metadata comes back");
  }
}

// Input: shape of the table, options, pieces that become records (or, by option, a raw stream).
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const DumpSchema& schema = schemas()[input.byte() % schemas().size()];
  const std::uint8_t options = input.byte();
  const bool allows_missing = (options & 1) != 0;
  const bool is_raw = (options & 2) != 0;
  const std::vector<std::byte> framed = is_raw ? std::vector<std::byte>{} : fuzz::frame_pieces(input.pieces(64));
  const fuzz::Bytes stream = is_raw ? input.rest() : fuzz::Bytes(framed);
  fuzz::accepts([&] { read_metadata(stream); });

  EntryBatch batch;
  const bool is_good = fuzz::accepts([&] { decode(schema, stream, allows_missing, batch); });
  const std::size_t count = batch.ids.size();
  fuzz::expect(batch.times_s.size() == count && batch.value_counts.size() == count &&
                   batch.rows.size() == count * schema.row_words,
               "a batch is lopsided");
  for (const std::uint32_t values : batch.value_counts) fuzz::expect(values <= schema.dim, "a row has too many values");
  if (!is_good) return;

  // The rows have all state now, and come back unchanged.
  std::vector<std::byte> again;
  encode_entries(schema, batch.ids, batch.times_s, batch.rows, again);
  EntryBatch copy;
  fuzz::expect(fuzz::accepts([&] { decode(schema, again, false, copy); }), "rows that were written are refused");
  fuzz::expect(is_equal(batch, copy), "other rows come back");
}

const fuzz::Target target("entry_dump", run, fuzz::Layout::kPieces, 2);

}  // namespace
