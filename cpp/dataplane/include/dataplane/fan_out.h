// fan_out.h: the client's side of all servers: splits a step's ids by shard, asks all servers together, in one thread,
// and puts the rows in the caller's order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dataplane/connection.h"
#include "dataplane/shard_map.h"

namespace dataplane {

// One table's part of a step. Tables are named by number, in rising order; the ids of each are distinct.
struct PullPart {
  std::uint32_t number = 0;
  std::span<const std::int64_t> ids;
  float* rows = nullptr;  // (ids, dim)
};

struct PushPart {
  std::uint32_t number = 0;
  std::span<const std::int64_t> ids;
  std::span<const std::uint32_t> counts;
  std::span<const float> rates;
  const float* gradients = nullptr;  // (ids, dim)
};

struct PushCall {
  std::uint64_t client = 0;
  std::uint64_t sequence = 0;
  std::int64_t time_s = 0;
  std::int64_t step = 0;
  std::vector<PushPart> parts;
  std::optional<JobRecord> record = std::nullopt;  // for shard 0
};

// Concurrent.
class FanOut {
 public:
  // Connection i is to shard i of as many as there are. Throws ConfigError.
  FanOut(std::vector<std::shared_ptr<Connection>> connections, std::vector<std::uint32_t> dims);

  [[nodiscard]] std::span<const std::uint32_t> dims() const noexcept { return dims_; }

  // Asks the servers that have any of the ids. Throws CallFailed; then no row is to be used.
  void pull(std::span<const PullPart> parts, bool half, std::chrono::milliseconds timeout);
  // Tells every server, also one without any of the ids: the clock advances for all. Throws CallFailed, and the servers
  // that did not fail have applied their part; the same (client, sequence) again is applied where it was not.
  void push(const PushCall& call, bool half, std::chrono::milliseconds timeout);

 private:
  std::vector<std::shared_ptr<Connection>> connections_;
  std::vector<std::uint32_t> dims_;
  ShardMap map_;
};

}  // namespace dataplane
