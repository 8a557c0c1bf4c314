// shard.cc: pulls read straight from the tables into the reply, pushes go straight from the request into the tables.
#include "dataplane/shard.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <thread>

#include "engine/data/records.h"
#include "engine/half.h"

namespace dataplane {

namespace {

// Bytes that one thread looks up at a time: small enough that all have work, large enough that starting is cheap.
constexpr std::size_t kLeastPieceBytes = std::size_t{16} << 10, kMostPieceBytes = std::size_t{128} << 10;
constexpr std::size_t kPiecesPerThread = 4;

std::uint64_t random_number() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

// Rows that one thread looks up.
struct Piece {
  std::vector<engine::LookupJob> jobs;
  std::size_t floats = 0;
  std::atomic<bool> is_filled{false};
};

void look_up(Piece& piece, std::byte* out, bool half) {
  static engine::Pool alone(1);
  std::shared_ptr<engine::data::Buffer> wide;
  if (half) wide = engine::data::Buffer::take(piece.floats * sizeof(float));
  auto* const rows = reinterpret_cast<float*>(half ? wide->data() : out);
  float* at = rows;
  for (engine::LookupJob& job : piece.jobs) {
    job.out = at;
    at += job.bags.ids.size() * job.table->schema().dim();
  }
  engine::Table::lookup_all(piece.jobs, alone);
  if (half) engine::encode_halves(rows, out, piece.floats);
}

// All threads look pieces up; this one, which alone knows the sink, also hands out those that are next.
void fill(std::deque<Piece>& pieces, bool half, engine::Pool& pool, RowSink& sink) {
  if (pieces.empty()) return;
  std::vector<std::size_t> begins{0};
  for (const Piece& piece : pieces) begins.push_back(begins.back() + piece.floats * float_bytes(half));
  std::byte* const room = sink.room(begins.back());
  std::size_t next = 0;
  const auto hand_out = [&] {
    const std::size_t first = next;
    while (next < pieces.size() && pieces[next].is_filled.load(std::memory_order_acquire)) ++next;
    if (next > first) sink.filled(begins[next] - begins[first]);
  };
  const auto self = std::this_thread::get_id();
  pool.run(pieces.size(), [&](std::size_t i) {
    look_up(pieces[i], room + begins[i], half);
    pieces[i].is_filled.store(true, std::memory_order_release);
    if (std::this_thread::get_id() == self) hand_out();
  });
  hand_out();
}

}  // namespace

Shard::Shard(std::uint32_t index, std::uint32_t count, std::vector<std::shared_ptr<engine::Table>> tables,
             std::vector<std::string> names)
    : index_(index), map_(std::max(count, 1U)), instance_(random_number()) {
  if (index >= count) {
    throw engine::ConfigError("shard " + std::to_string(index) + " of " + std::to_string(count) +
                              " does not exist; indexes go from 0");
  }
  if (tables.empty() || tables.size() != names.size()) {
    throw engine::ConfigError("a shard has " + std::to_string(tables.size()) + " tables and " +
                              std::to_string(names.size()) + " names; give one name per table, and at least one");
  }
  std::vector<std::uint32_t> dims;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    if (i > 0 && names[i] <= names[i - 1]) {
      throw engine::ConfigError("table '" + names[i] + "' comes after '" + names[i - 1] +
                                "'; give the tables in sorted order, each once");
    }
    dims.push_back(tables[i]->schema().dim());
    shapes_.push_back({dims.back(), static_cast<std::uint32_t>(tables[i]->config().slices.size())});
    members_.push_back(std::make_unique<Member>());
    members_.back()->table = std::move(tables[i]);
    members_.back()->name = names[i];
  }
  tables_hash_ = hash_tables(names, dims);
}

void Shard::check_time(Deadline deadline) {
  if (Clock::now() < deadline) return;
  lates_.fetch_add(1, std::memory_order_relaxed);
  throw Late("the deadline had passed before the work began, so nothing was done; ask again, or allow more time");
}

void Shard::check_ids(std::uint32_t number, std::span<const std::int64_t> ids) const {
  const std::size_t at = map_.first_foreign_id(ids, index_);
  if (at == ids.size()) return;
  throw engine::ConfigError("table '" + members_[number]->name + "': id " + std::to_string(ids[at]) +
                            " belongs to shard " + std::to_string(map_.shard_of(ids[at])) + ", this is shard " +
                            std::to_string(index_) + " of " + std::to_string(map_.shards()) +
                            "; route by uint64(id) mod shards");
}

PullRequest Shard::read_pull(Bytes payload) const {
  PullRequest request = parse_pull(payload, shapes_);
  for (const PullTable& table : request.tables) check_ids(table.number, table.ids);
  return request;
}

std::size_t Shard::reply_bytes(const PullRequest& request, bool half) const noexcept {
  std::size_t bytes = 0;
  for (const PullTable& table : request.tables) {
    bytes += table.ids.size() * shapes_[table.number].dim * float_bytes(half);
  }
  return bytes;
}

void Shard::check_reply(const PullRequest& request, bool half, std::size_t most_bytes, const char* setting) const {
  const std::size_t bytes = reply_bytes(request, half);
  if (bytes <= most_bytes) return;
  throw engine::ConfigError("the rows take " + std::to_string(bytes) + " bytes, " + setting + " is " +
                            std::to_string(most_bytes) + "; ask for fewer ids at a time, or raise it");
}

void Shard::pull(const PullRequest& request, bool half, Deadline deadline, RowSink& sink) {
  CallTimer timer(pulls_);
  check_time(deadline);
  engine::Pool& pool = members_.front()->table->pool();
  const std::size_t share = reply_bytes(request, false) / (kPiecesPerThread * pool.threads());
  const std::size_t piece_bytes = std::clamp(share, kLeastPieceBytes, kMostPieceBytes);
  std::deque<Piece> window;
  std::size_t window_floats = 0;
  const auto hand_out = [&] {
    fill(window, half, pool, sink);
    window.clear();
    window_floats = 0;
  };
  for (const PullTable& table : request.tables) {
    Member& member = *members_[table.number];
    const std::size_t dim = shapes_[table.number].dim;
    const std::size_t most = std::max<std::size_t>(1, piece_bytes / (dim * sizeof(float)));
    for (std::size_t first = 0; first < table.ids.size(); first += most) {
      const auto ids = table.ids.subspan(first, std::min(most, table.ids.size() - first));
      const std::size_t floats = ids.size() * dim;
      if ((window_floats + floats) * sizeof(float) > kReplyWindowBytes) hand_out();
      if (window.empty() || (window.back().floats + floats) * sizeof(float) > piece_bytes) window.emplace_back();
      window.back().jobs.push_back({.table = member.table.get(), .bags = {.ids = ids}});
      window.back().floats += floats;
      window_floats += floats;
    }
    member.ids_pulled.fetch_add(table.ids.size(), std::memory_order_relaxed);
  }
  hand_out();
  timer.succeed();
}

void Shard::push(Bytes payload, bool half, Deadline deadline) {
  CallTimer timer(pushes_);
  check_time(deadline);
  const PushRequest request = parse_push(payload, shapes_, half);
  constexpr std::int64_t kMaxTime = 0xffff'ffff;
  if (request.time_s < 0 || request.time_s > kMaxTime) {
    throw engine::ConfigError("time_s is " + std::to_string(request.time_s) + "; give unix seconds from 0 to 2^32 - 1");
  }
  if (request.step < 0) {
    throw engine::ConfigError("step is " + std::to_string(request.step) + "; give a step number of at least 0");
  }
  for (const PushTable& table : request.tables) check_ids(table.number, table.ids);
  if (request.record && index_ != 0) {
    throw engine::ConfigError("a push to shard " + std::to_string(index_) +
                              " has a job record, expected none; send it to shard 0");
  }
  apply(request, half, deadline);
  timer.succeed();
}

void Shard::apply(const PushRequest& request, bool half, Deadline deadline) {
  std::vector<std::shared_ptr<engine::data::Buffer>> wide;
  std::vector<engine::GradientJob> jobs;
  for (const PushTable& table : request.tables) {
    const std::size_t floats = table.ids.size() * shapes_[table.number].dim;
    const auto* grads = reinterpret_cast<const float*>(table.gradients);
    if (half) {
      wide.push_back(engine::data::Buffer::take(floats * sizeof(float)));
      engine::decode_halves(table.gradients, reinterpret_cast<float*>(wide.back()->data()), floats);
      grads = reinterpret_cast<const float*>(wide.back()->data());
    }
    jobs.push_back({.table = members_[table.number]->table.get(),
                    .bags = {.ids = table.ids},
                    .grads = grads,
                    .counts = table.counts,
                    .latest = nullptr,
                    .learning_rates = table.rates,
                    .time_s = static_cast<std::uint32_t>(request.time_s),
                    .step = request.step,
                    .dedup = true});
  }
  // A thread that takes the lock alone sees a push either applied and marked, or neither.
  std::shared_lock no_cut(push_lock_);
  while (!gate_.lets_through({request.client, request.sequence})) {
    no_cut.unlock();
    gate_.wait({request.client, request.sequence}, deadline);
    check_time(deadline);
    no_cut.lock();
  }
  check_time(deadline);
  if (marks_.begin(request.client, request.sequence, deadline) == ClientMarks::Answer::kRepeat) {
    repeats_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  try {
    engine::Table::apply_all(jobs, jobs.front().table->pool());
    if (request.record) records_.put(*request.record);
  } catch (const engine::Error&) {  // thrown before any change
    marks_.finish(request.client, request.sequence, false);
    throw;
  } catch (const std::exception& error) {
    marks_.finish(request.client, request.sequence, true);
    throw PartlyApplied(std::string("the push broke off (") + error.what() +
                        "): some of its rows may be changed. It counts as applied and will not be applied again");
  }
  marks_.finish(request.client, request.sequence, true);
  for (const PushTable& table : request.tables) {
    members_[table.number]->ids_pushed.fetch_add(table.ids.size(), std::memory_order_relaxed);
  }
}

void Shard::put_record(JobRecord record) {
  const std::shared_lock no_cut(push_lock_);
  records_.put(std::move(record));
}

void Shard::hold_pushes(std::uint64_t hold, Clock::duration lease) {
  const std::lock_guard no_push(push_lock_);
  gate_.close(hold, Clock::now() + lease);
}

bool Shard::settle_pushes(std::uint64_t hold, std::span<const PushName> pushes, Deadline deadline) {
  return gate_.admit(hold, pushes) && marks_.wait_until_done(pushes, deadline);
}

std::vector<Shard::TableFigures> Shard::table_figures() const {
  std::vector<TableFigures> figures;
  for (const auto& member : members_) {
    figures.push_back({.name = member->name,
                       .rows = member->table->size(),
                       .bytes = member->table->memory_bytes(),
                       .ids_pulled = member->ids_pulled.load(std::memory_order_relaxed),
                       .ids_pushed = member->ids_pushed.load(std::memory_order_relaxed)});
  }
  return figures;
}

}  // namespace dataplane
