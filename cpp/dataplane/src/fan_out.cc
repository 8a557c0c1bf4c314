// fan_out.cc: with one server ids, rows and gradients go between the socket and the caller's arrays; with several they
// are gathered by shard, and rows are scattered while they are still in the cache.
#include "dataplane/fan_out.h"

#include <algorithm>
#include <cstring>

#include "engine/data/records.h"
#include "engine/half.h"
#include "exchange.h"

namespace dataplane {

namespace {

using engine::data::Buffer;

// Memory that a request points into lives as long as the call.
class Scratch {
 public:
  template <class Value>
  std::span<Value> take(std::size_t count) {
    buffers_.push_back(Buffer::take(std::max<std::size_t>(1, count) * sizeof(Value)));
    return {reinterpret_cast<Value*>(buffers_.back()->data()), count};
  }
  std::span<const std::byte> keep(std::vector<std::byte> bytes) {
    heads_.push_back(std::move(bytes));
    return heads_.back();
  }

 private:
  std::vector<std::shared_ptr<Buffer>> buffers_;
  std::vector<std::vector<std::byte>> heads_;
};

// The ids of one table on one server, and where each stands in the caller's array.
struct Share {
  std::span<const std::int64_t> ids;
  std::span<const std::uint32_t> places;  // empty: each where it stands
};

// Shares of one table by server, in stable order.
std::vector<Share> split(std::span<const std::int64_t> ids, const ShardMap& map, Scratch& scratch) {
  if (map.shards() == 1) return {{.ids = ids, .places = {}}};
  std::vector<std::size_t> ends(map.shards() + 1);
  for (const std::int64_t id : ids) ++ends[map.shard_of(id) + 1];
  for (std::size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
  const auto sorted = scratch.take<std::int64_t>(ids.size());
  const auto places = scratch.take<std::uint32_t>(ids.size());
  std::vector<Share> shares;
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    const std::size_t count = ends[i + 1] - ends[i];
    shares.push_back({.ids = sorted.subspan(ends[i], count), .places = places.subspan(ends[i], count)});
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t at = ends[map.shard_of(ids[i])]++;
    sorted[at] = ids[i];
    places[at] = static_cast<std::uint32_t>(i);
  }
  return shares;
}

// One table's rows in a server's reply, on their way to the caller.
struct Scatter {
  std::size_t dim = 0;
  std::size_t rows = 0;
  std::span<const std::uint32_t> places;
  float* out = nullptr;
};

void copy_row(const std::byte* from, float* to, std::size_t dim, bool half) {
  if (!half) {
    std::memcpy(to, from, dim * sizeof(float));
    return;
  }
  engine::decode_halves(from, to, dim);
}

// Hands out the rows of a reply as they come.
class Scatterer {
 public:
  Scatterer(const std::byte* reply, std::vector<Scatter> tables, bool half)
      : at_(reply), tables_(std::move(tables)), half_(half) {}

  // So many bytes of the reply are there.
  void advance(std::size_t bytes) {
    while (table_ < tables_.size()) {
      const Scatter& table = tables_[table_];
      const std::size_t row_bytes = table.dim * float_bytes(half_);
      const std::size_t here = std::min((bytes - taken_) / row_bytes, table.rows - row_);
      for (std::size_t i = row_; i < row_ + here; ++i, at_ += row_bytes) {
        copy_row(at_, table.out + (table.places.empty() ? i : table.places[i]) * table.dim, table.dim, half_);
      }
      taken_ += here * row_bytes;
      row_ += here;
      if (row_ < table.rows) return;
      row_ = 0;
      ++table_;
    }
  }

 private:
  const std::byte* at_;
  std::vector<Scatter> tables_;
  bool half_;
  std::size_t table_ = 0;
  std::size_t row_ = 0;
  std::size_t taken_ = 0;
};

// The gradients of a share, as they travel.
const void* gather(const float* gradients, const Share& share, std::size_t dim, bool half, Scratch& scratch) {
  if (!half && share.places.empty()) return gradients;
  const auto place = [&](std::size_t i) { return gradients + (share.places.empty() ? i : share.places[i]) * dim; };
  if (!half) {
    const auto out = scratch.take<float>(share.ids.size() * dim);
    for (std::size_t i = 0; i < share.ids.size(); ++i) {
      std::memcpy(out.data() + i * dim, place(i), dim * sizeof(float));
    }
    return out.data();
  }
  const auto out = scratch.take<std::uint16_t>(share.ids.size() * dim);
  for (std::size_t i = 0; i < share.ids.size(); ++i) {
    engine::encode_halves(place(i), reinterpret_cast<std::byte*>(out.data() + i * dim), dim);
  }
  return out.data();
}

std::span<const std::uint32_t> gather(std::span<const std::uint32_t> counts, const Share& share, Scratch& scratch) {
  if (share.places.empty()) return counts.first(share.ids.size());
  const auto out = scratch.take<std::uint32_t>(share.ids.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = counts[share.places[i]];
  return out;
}

void add_array(Pieces& payload, const void* data, std::size_t bytes) {
  payload.add(data, bytes);
  payload.add_padding(bytes);
}

void run(std::vector<Exchange>& exchanges, std::chrono::milliseconds timeout) {
  run_all(exchanges, Clock::now() + timeout);
  check_all(exchanges);
}

}  // namespace

FanOut::FanOut(std::vector<std::shared_ptr<Connection>> connections, std::vector<std::uint32_t> dims)
    : connections_(std::move(connections)),
      dims_(std::move(dims)),
      map_(std::max<std::size_t>(1, connections_.size())) {
  if (connections_.empty()) throw engine::ConfigError("connections is empty; give one per server");
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const Hello& hello = connections_[i]->hello();
    if (hello.shard == i && hello.shards == connections_.size()) continue;
    throw engine::ConfigError("connection " + std::to_string(i) + " of " + std::to_string(connections_.size()) + " (" +
                              connections_[i]->address().text() + ") is to shard " + std::to_string(hello.shard) +
                              " of " + std::to_string(hello.shards) + "; give them in the order of their shards");
  }
  if (dims_.empty() || std::find(dims_.begin(), dims_.end(), 0U) != dims_.end()) {
    throw engine::ConfigError("dims must have one number of at least 1 per table, and at least one table");
  }
}

void FanOut::pull(std::span<const PullPart> parts, bool half, std::chrono::milliseconds timeout) {
  Scratch scratch;
  std::vector<std::vector<Share>> shares;  // by part, by server
  for (const PullPart& part : parts) shares.push_back(split(part.ids, map_, scratch));
  std::vector<Exchange> exchanges;
  exchanges.reserve(connections_.size());
  for (std::size_t server = 0; server < connections_.size(); ++server) {
    std::vector<PullTable> tables;
    std::vector<Scatter> scatters;
    std::size_t floats = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Share& share = shares[i][server];
      if (share.ids.empty()) continue;
      const std::size_t dim = dims_[parts[i].number];
      tables.push_back({parts[i].number, share.ids});
      scatters.push_back({dim, share.ids.size(), share.places, parts[i].rows});
      floats += share.ids.size() * dim;
    }
    if (tables.empty()) continue;
    Request request{.kind = Kind::kPull, .flags = half ? kHalf : std::uint16_t{0}};
    const auto list = scratch.keep(encode_pull_list(tables));
    request.payload.add(list.data(), list.size());
    for (const PullTable& table : tables) request.payload.add(table.ids.data(), table.ids.size_bytes());
    if (map_.shards() == 1 && !half) {
      for (const Scatter& table : scatters) request.reply.add(table.out, table.rows * table.dim * sizeof(float));
    } else {
      const auto reply = scratch.take<std::byte>(floats * float_bytes(half));
      request.reply.add(reply.data(), reply.size());
      request.progress = [scatterer = Scatterer(reply.data(), std::move(scatters), half)](std::size_t bytes) mutable {
        scatterer.advance(bytes);
      };
    }
    exchanges.emplace_back(server, *connections_[server], std::move(request));
  }
  run(exchanges, timeout);
}

void FanOut::push(const PushCall& call, bool half, std::chrono::milliseconds timeout) {
  if (call.parts.empty()) return;
  Scratch scratch;
  std::vector<std::vector<Share>> shares;
  for (const PushPart& part : call.parts) shares.push_back(split(part.ids, map_, scratch));
  std::vector<Exchange> exchanges;
  exchanges.reserve(connections_.size());
  for (std::size_t server = 0; server < connections_.size(); ++server) {
    PushRequest head{
        .client = call.client, .sequence = call.sequence, .time_s = call.time_s, .step = call.step, .tables = {}};
    Pieces arrays;
    for (std::size_t i = 0; i < call.parts.size(); ++i) {
      const PushPart& part = call.parts[i];
      const Share& share = shares[i][server];
      const std::size_t dim = dims_[part.number];
      const auto counts = gather(part.counts, share, scratch);
      head.tables.push_back({part.number, share.ids, counts, part.rates, nullptr});
      add_array(arrays, share.ids.data(), share.ids.size_bytes());
      add_array(arrays, counts.data(), counts.size_bytes());
      add_array(arrays, part.rates.data(), part.rates.size_bytes());
      add_array(arrays, gather(part.gradients, share, dim, half, scratch), share.ids.size() * dim * float_bytes(half));
    }
    Request request{.kind = Kind::kPush, .flags = half ? kHalf : std::uint16_t{0}};
    const auto list = scratch.keep(encode_push_list(head));
    request.payload.add(list.data(), list.size());
    request.payload.append(std::move(arrays));
    if (server == 0 && call.record) {
      const auto record = scratch.keep(encode_job_record(*call.record));
      request.payload.add(record.data(), record.size());
    }
    exchanges.emplace_back(server, *connections_[server], std::move(request));
  }
  run(exchanges, timeout);
}

}  // namespace dataplane
