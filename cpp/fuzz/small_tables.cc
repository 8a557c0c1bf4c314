#include "small_tables.h"

#include "target.h"

namespace fuzz {

namespace {

engine::SliceConfig slice(std::uint32_t dim, engine::PartConfig optimizer, const char* compressor) {
  engine::SliceConfig config;
  config.dim = dim;
  config.optimizer = std::move(optimizer);
  config.initializer = {"zeros", {}};
  config.compressor = {compressor, {}};
  return config;
}

std::shared_ptr<engine::Table> make(bool is_serving) {
  engine::TableConfig config;
  config.name = "a";
  config.slices = {slice(2, {"adagrad", {{"initial_accumulator_value", 0.1}, {"weight_decay_factor", 0.0}}}, "fp16"),
                   slice(1, {"sgd", {}}, "fp32")};
  config.is_serving = is_serving;
  return std::make_shared<engine::Table>(config, std::make_shared<engine::Pool>(1));
}

}  // namespace

SmallTables::SmallTables() : training(make(false)), serving(make(true)) {}

void SmallTables::clear() {
  for (const auto& table : {training, serving}) {
    if (table->size() > 0 || table->max_time_s() != 0) table->clear();
  }
}

SmallTables& small_tables() {
  static SmallTables tables;
  return tables;
}

void check_table(const engine::Table& table) {
  std::size_t rows = 0;
  for (std::size_t part = 0; part < engine::kParts && rows < table.size(); ++part) {
    const std::vector<std::int64_t> ids = table.part_ids(part);
    const engine::RawRows raw = table.raw_rows(ids);
    expect(raw.ids == ids, "an id is not found");
    expect(raw.rows.size() == ids.size() * table.schema().row_bytes(), "rows have another size");
    rows += ids.size();
  }
  expect(rows == table.size(), "a table miscounts its rows");
}

}  // namespace fuzz
