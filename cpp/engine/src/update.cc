// update.cc: batched writes. Occurrences are grouped by part; each part is changed by one thread at a time.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <shared_mutex>

#include "engine/error.h"
#include "engine/table.h"
#include "kernels/kernels.h"
#include "part_update.h"
#include "partition.h"
#include "row_plan_content.h"
#include "rows.h"

namespace engine {

namespace {

void check_gradients_finite(const GradientJob& job, Pool& pool) {
  const std::size_t dim = job.table->schema().dim();
  const std::size_t rows = job.bags.targets();
  constexpr std::size_t kRows = 16384;
  pool.run((rows + kRows - 1) / kRows, [&](std::size_t piece) {
    const std::size_t begin = piece * kRows * dim;
    const std::size_t end = std::min(rows, (piece + 1) * kRows) * dim;
    if (kernels().is_finite(job.grads + begin, end - begin)) return;
    for (std::size_t i = begin; i < end; ++i) {
      if (std::isfinite(job.grads[i])) continue;
      throw ConfigError("table '" + job.table->config().name + "': gradient row " + std::to_string(i / dim) +
                        ", column " + std::to_string(i % dim) + " is " + std::to_string(job.grads[i]) +
                        "; nothing was applied (nan_gradients=\"skip\" leaves such rows out instead)");
    }
  });
}

// Gradients of mean pooling: each bag's row divided by the bag's length.
std::vector<float> scale_gradients(const GradientJob& job) {
  const std::size_t dim = job.table->schema().dim();
  std::vector<float> scaled(job.grads, job.grads + job.bags.units() * dim);
  divide_by_length(job.bags, {0, job.bags.units()}, scaled.data(), dim);
  return scaled;
}

}  // namespace

std::unique_lock<std::mutex> Table::check_budget(std::span<const std::span<const std::int64_t>> calls) {
  const std::uint64_t budget = budget_.load(std::memory_order_relaxed);
  if (budget == 0) return {};
  std::vector<std::int64_t> ids;
  for (const auto& call : calls) ids.insert(ids.end(), call.begin(), call.end());
  std::unique_lock lock(budget_mutex_);
  const std::size_t used = memory_bytes();
  // No call can need more than one row and two index slots per id, plus a slab and an index growth per part.
  const std::size_t worst = ids.size() * (schema_.row_bytes() + 2 * sizeof(Index::Bucket) / Index::kWidth) +
                            kParts * arena_.slab_bytes() + used / 4;
  if (used + worst <= budget) return {};
  // Near the budget: count the absent ids exactly, and let no other write in between.
  std::vector<std::uint8_t> found(ids.size());
  contains(ids, found.data());
  std::vector<std::int64_t> absent;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == 0) absent.push_back(ids[i]);
  }
  std::sort(absent.begin(), absent.end());
  absent.erase(std::unique(absent.begin(), absent.end()), absent.end());
  std::array<std::size_t, kParts> per_part{};
  for (const std::int64_t id : absent) ++per_part[part_of(mix(static_cast<std::uint64_t>(id)))];
  std::size_t growth = 0;
  for (std::size_t number = 0; number < kParts; ++number) {
    const Part& part = *parts_[number];
    const std::shared_lock part_lock(part.mutex);
    growth += part.index.growth_bytes(per_part[number]) + part.rows.growth_bytes(per_part[number]);
  }
  if (growth > 0 && used + growth > budget && !(evicts_when_full() && make_room(ids, per_part))) {
    throw CapacityExceeded("table '" + config_.name + "' uses " + std::to_string(used) + " of max_bytes " +
                           std::to_string(budget) + "; " + std::to_string(absent.size()) + " new ids need " +
                           std::to_string(growth) +
                           " more. Nothing was changed: evict, delete, raise max_bytes or the admission threshold");
  }
  return lock;
}

template <class Change>
void Table::change_rows(std::span<const std::int64_t> ids, bool asks_filter, Change&& change) {
  const auto budget = check_budget({&ids, 1});
  const Pool::Phases phases(*pool_);
  const Bags bags{.ids = ids};
  const Partition& grouped = partition({&bags, 1}, *pool_)[0];
  Turnstile turnstile;
  const Admission admission{.asks_filter = asks_filter,
                            .counts = {},
                            .turn = turn_.fetch_add(1),
                            .order = config_.is_deterministic && filter_ ? &turnstile : nullptr};
  pool_->run(kParts, [&](std::size_t part) {
    const TurnEnd turn_end(admission.order, part);
    const Partition::Group group = grouped.gather(part);
    if (group.ids.empty()) return;
    PartUpdate update(*this, part);
    update.resolve(group, admission);
    change(update, group);
  });
}

void Table::assign(std::span<const std::int64_t> ids, const float* rows, std::uint32_t time_s) {
  const std::size_t dim = schema_.dim();
  change_rows(ids, true, [&](PartUpdate& update, const Partition::Group& group) {
    for (std::size_t i = 0; i < group.ids.size(); ++i) {
      if (i + kAhead < group.ids.size()) update.fetch(i + kAhead);
      RowHandle& handle = update.member(i);
      if (handle.row == kNoRow) continue;
      const float* values = rows + group.targets[i] * dim;
      update.preserve(group.ids[i], handle);
      schema_.set(update.values(handle), values);
      handle.leaves = config_.skip_zero_rows && is_zero_row(values, dim);
    }
    update.finish(time_s);
  });
  force_clock(time_s);
}

void Table::assign_add(std::span<const std::int64_t> ids, const float* rows, std::uint32_t time_s) {
  const std::size_t dim = schema_.dim();
  change_rows(ids, true, [&](PartUpdate& update, const Partition::Group& group) {
    std::vector<float> values(dim);
    for (std::size_t i = 0; i < group.ids.size(); ++i) {
      if (i + kAhead < group.ids.size()) update.fetch(i + kAhead);
      RowHandle& handle = update.member(i);
      if (handle.row == kNoRow) continue;
      update.preserve(group.ids[i], handle);
      schema_.get(update.values(handle), values.data());
      add_row(values.data(), rows + group.targets[i] * dim, AnyWidth{dim});
      schema_.set(update.values(handle), values.data());
      handle.leaves = config_.skip_zero_rows && is_zero_row(values.data(), dim);
    }
    update.finish(time_s);
  });
  force_clock(time_s);
}

void Table::check_job(const GradientJob& job, Pool& pool) {
  const Table& table = *job.table;
  if (table.schema_.is_serving()) {
    throw ConfigError("table '" + table.config_.name + "' is a serving table: it has no optimizer state to train");
  }
  if (job.learning_rates.size() != table.config_.slices.size()) {
    throw DimensionMismatch("table '" + table.config_.name + "' has " + std::to_string(table.config_.slices.size()) +
                            " slices, got " + std::to_string(job.learning_rates.size()) + " learning rates");
  }
  for (std::size_t k = 0; k < job.learning_rates.size(); ++k) {
    const float rate = job.learning_rates[k];
    if (std::isfinite(rate) && rate >= 0.0F) continue;
    throw ConfigError("table '" + table.config_.name + "': the learning rate of slice " + std::to_string(k) + " is " +
                      std::to_string(rate) + ", expected a finite number of at least 0; nothing was applied");
  }
  if (table.config_.nan_policy == NanPolicy::kRefuse) check_gradients_finite(job, pool);
}

void Table::apply_part(std::size_t part, std::span<const TableWork> work, std::uint64_t turn, Turnstile* order) {
  const TurnEnd turn_end(order, part);
  for (const TableWork& one : work) {
    const bool is_planned = one.job->plan != nullptr;  // then the lookup gathered them
    const Partition::Group group = is_planned ? one.grouped->group(part) : one.grouped->gather(part);
    if (group.ids.empty()) continue;
    PartUpdate update(*this, part);
    if (one.job->dedup && is_planned) {
      update.resolve(*one.job->plan, {.asks_filter = true,
                                      .counts = one.job->counts,
                                      .turn = turn,
                                      .order = order,
                                      .ends_turn = &one == &work.back()});
      update.step(group, *one.job);
      update.finish({});
      continue;
    }
    const std::size_t at_a_time = one.job->dedup ? group.ids.size() : 1;
    for (std::size_t first = 0; first < group.ids.size(); first += at_a_time) {
      const Partition::Group some{group.ids.subspan(first, at_a_time), group.targets.subspan(first, at_a_time)};
      const bool is_last = &one == &work.back() && first + at_a_time == group.ids.size();
      update.resolve(
          some, {.asks_filter = true, .counts = one.job->counts, .turn = turn, .order = order, .ends_turn = is_last});
      update.step(some, *one.job);
      update.finish({});
    }
  }
}

Bags Table::bags_of(const GradientJob& job) {
  if (job.plan == nullptr) return job.bags;
  const RowPlan::Content& content = *job.plan->content_;
  if (content.table != job.table->serial_) {
    throw ConfigError("table '" + job.table->config_.name + "': the plan is " +
                      (content.table == 0 ? "empty" : "of another table") +
                      ", expected the plan of a lookup in this table; nothing was applied");
  }
  if (job.planned_rows && *job.planned_rows != content.bags.targets()) {
    throw ConfigError("table '" + job.table->config_.name + "': the gradients have " +
                      std::to_string(*job.planned_rows) + " rows, expected the " +
                      std::to_string(content.bags.targets()) +
                      " of the plan, which another lookup has filled; nothing was applied");
  }
  return content.bags;
}

void Table::apply_all(std::span<const GradientJob> jobs, Pool& pool) {
  const Pool::Phases phases(pool);
  std::vector<GradientJob> ready(jobs.begin(), jobs.end());
  std::vector<std::vector<float>> scaled(jobs.size());
  std::vector<Bags> calls;
  std::vector<Table*> tables;  // each once
  std::vector<RowPlan::Use> uses;
  for (GradientJob& job : ready) {
    if (job.plan != nullptr) uses.emplace_back(*job.plan);
    job.bags = bags_of(job);
    check_job(job, pool);
    if (job.plan == nullptr) calls.push_back(job.bags);
    if (std::find(tables.begin(), tables.end(), job.table) == tables.end()) tables.push_back(job.table);
    if (job.bags.pooling == Pooling::kMean) {
      std::vector<float>& own = scaled[static_cast<std::size_t>(&job - ready.data())];
      own = scale_gradients(job);
      job.grads = own.data();
    }
  }
  // In one order for all calls: a call waits for the budget of a table while it holds that of another.
  std::ranges::sort(tables, {}, [](const Table* table) { return table->serial_; });
  std::vector<std::unique_lock<std::mutex>> budgets;
  for (Table* table : tables) {
    std::vector<std::span<const std::int64_t>> ids;
    for (const GradientJob& job : ready) {
      if (job.table == table) ids.push_back(job.bags.ids);
    }
    budgets.push_back(table->check_budget(ids));
  }
  std::vector<const Partition*> grouped;
  const std::span<const Partition> partitions = partition(calls, pool);
  for (std::size_t i = 0, unplanned = 0; i < ready.size(); ++i) {
    grouped.push_back(ready[i].plan == nullptr ? &partitions[unplanned++] : &ready[i].plan->content_->grouped);
  }

  // The jobs of one table run in order within each of its parts, so the result does not depend on threads.
  struct Group {
    std::vector<TableWork> work;
    std::uint64_t turn = 0;
    Turnstile turnstile;
    Turnstile* order = nullptr;
  };
  struct Piece {
    std::size_t table;
    std::size_t part;
    std::size_t size;  // ids
  };
  std::vector<Group> groups(tables.size());
  std::vector<Piece> pieces;
  bool is_ordered = false;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    Table& table = *tables[t];
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (ready[i].table != &table) continue;
      groups[t].work.push_back({&ready[i], grouped[i]});
      for (std::size_t k = 0; k < table.config_.slices.size(); ++k) {
        table.scales_[k] = table.schema_.slices()[k].compressor->scale_at(ready[i].step, table.scales_[k]);
      }
    }
    groups[t].turn = table.turn_.fetch_add(1);
    groups[t].order = table.config_.is_deterministic && table.filter_ ? &groups[t].turnstile : nullptr;
    is_ordered = is_ordered || groups[t].order != nullptr;
    for (std::size_t part = 0; part < kParts; ++part) {
      std::size_t size = 0;
      for (const TableWork& work : groups[t].work) size += work.grouped->size(part);
      pieces.push_back({t, part, size});
    }
  }
  const auto apply = [&](std::size_t i) {
    const Group& group = groups[pieces[i].table];
    tables[pieces[i].table]->apply_part(pieces[i].part, group.work, group.turn, group.order);
  };
  if (is_ordered) {
    pool.run(pieces.size(), apply);  // a part waits for those before it
  } else {
    pool.sort_shares(pieces, &Piece::table);
    pool.run_in_shares(pieces.size(), apply);
  }
  for (const GradientJob& job : jobs) job.table->advance_clock(job.time_s);
}

void Table::reinitialize(std::span<const std::int64_t> ids, std::int8_t* existed) {
  const auto time_s = static_cast<std::uint32_t>(max_time_s());
  change_rows(ids, false, [&](PartUpdate& update, const Partition::Group& group) {
    for (std::size_t i = 0; i < group.ids.size(); ++i) existed[group.targets[i]] = update.member(i).is_new ? 0 : 1;
    update.for_each([&](std::int64_t id, RowHandle& handle) {
      update.preserve(id, handle);
      update.init(id, handle);
    });
    update.finish(time_s);
  });
}

std::size_t Table::erase(std::span<const std::int64_t> ids) {
  std::atomic<std::size_t> erased{0};
  const Bags bags{.ids = ids};
  const Partition& grouped = partition({&bags, 1}, *pool_)[0];
  pool_->run(kParts, [&](std::size_t number) {
    const Partition::Group group = grouped.gather(number);
    if (group.ids.empty()) return;
    Part& part = *parts_[number];
    const std::unique_lock lock(part.mutex);
    for (const std::int64_t id : group.ids) {
      if (part.index.find(id) == Index::kNoRow) continue;
      remove(part, id, Removal::Reason::kDeleted, 0);
      erased.fetch_add(1, std::memory_order_relaxed);
    }
    part.index.shrink();
  });
  return erased;
}

template <class Rows>
void Table::replace_all(std::span<const std::int64_t> ids, std::span<const std::uint32_t> times, const Rows& rows) {
  const auto budget = check_budget({&ids, 1});
  const Bags bags{.ids = ids};
  const Partition& grouped = partition({&bags, 1}, *pool_)[0];
  turn_.fetch_add(1);
  pool_->run(kParts, [&](std::size_t part) {
    const Partition::Group group = grouped.gather(part);
    if (!group.ids.empty()) PartUpdate(*this, part).replace(group, times, rows);
  });
}

void Table::import_columns(std::span<const std::int64_t> ids, std::span<const std::uint32_t> times,
                           const ColumnRows& rows) {
  replace_all(ids, times, rows);
}

void Table::import_rows(std::span<const std::int64_t> ids, std::span<const std::uint32_t> times, const std::byte* rows,
                        bool moves_clock) {
  replace_all(ids, times, rows);
  if (moves_clock && !times.empty()) force_clock(*std::max_element(times.begin(), times.end()));
}

}  // namespace engine
