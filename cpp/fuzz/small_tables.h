// small_tables.h: tables that targets read files into. They are made once; each input finds them empty.
#pragma once

#include <memory>
#include <vector>

#include "engine/table.h"

namespace fuzz {

// A training table "a" (adagrad 2, sgd 1) and a serving table "a" of the same slices, for one thread.
struct SmallTables {
  SmallTables();

  // Empties both where an input has filled them.
  void clear();

  std::shared_ptr<engine::Table> training;
  std::shared_ptr<engine::Table> serving;
};

SmallTables& small_tables();

// Fails when a table does not hold together: every id is found, and rows have their size.
void check_table(const engine::Table& table);

}  // namespace fuzz
