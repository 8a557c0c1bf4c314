// small_shard.h: shards with small tables, and requests for them, for the tests.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/shard.h"

namespace dataplane {

// A table whose rows, with rate 1, are minus the sum of their gradients.
inline std::shared_ptr<engine::Table> small_table(const std::string& name, std::uint32_t dim,
                                                  std::shared_ptr<engine::Pool> pool, std::uint64_t max_bytes = 0) {
  engine::SliceConfig slice;
  slice.dim = dim;
  slice.optimizer = {"sgd", {}};
  slice.initializer = {"zeros", {}};
  slice.compressor = {"fp32", {}};
  engine::TableConfig config;
  config.name = name;
  config.slices = {slice};
  config.max_bytes = max_bytes;
  return std::make_shared<engine::Table>(config, std::move(pool));
}

// Tables "item" (dim 2) and "user" (dim 3).
inline std::shared_ptr<Shard> small_shard(std::uint32_t index = 0, std::uint32_t count = 1,
                                          std::uint64_t max_bytes = 0) {
  const auto pool = std::make_shared<engine::Pool>(2);
  return std::make_shared<Shard>(
      index, count, std::vector{small_table("item", 2, pool, max_bytes), small_table("user", 3, pool, max_bytes)},
      std::vector<std::string>{"item", "user"});
}

inline constexpr TableShape kSmallShapes[] = {{2, 1}, {3, 1}};

// A request in memory that the parser may point into.
class Payload {
 public:
  void put(const void* data, std::size_t bytes) {
    const std::size_t at = size_;
    size_ += bytes;
    words_.resize((size_ + 7) / 8);
    if (bytes > 0) std::memcpy(reinterpret_cast<std::byte*>(words_.data()) + at, data, bytes);
  }
  template <class Value>
  void put_array(const std::vector<Value>& values) {
    put(values.data(), values.size() * sizeof(Value));
    pad();
  }
  void pad() {
    size_ = padded(size_);
    words_.resize(size_ / 8);
  }
  [[nodiscard]] Bytes bytes() const noexcept { return {reinterpret_cast<const std::byte*>(words_.data()), size_}; }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t size_ = 0;
};

inline Payload pull_of(const std::vector<std::pair<std::uint32_t, std::vector<std::int64_t>>>& tables) {
  std::vector<PullTable> list;
  for (const auto& [number, ids] : tables) list.push_back({number, ids});
  const auto head = encode_pull_list(list);
  Payload payload;
  payload.put(head.data(), head.size());
  for (const auto& [number, ids] : tables) payload.put_array(ids);
  return payload;
}

// The same gradient for every number of every row.
inline Payload push_of(std::uint64_t client, std::uint64_t sequence,
                       const std::vector<std::pair<std::uint32_t, std::vector<std::int64_t>>>& tables, float gradient,
                       std::int64_t time_s = 1, float rate = 1.0F) {
  PushRequest request{.client = client, .sequence = sequence, .time_s = time_s, .step = 1, .tables = {}};
  const std::vector<float> rates{rate};
  for (const auto& [number, ids] : tables) request.tables.push_back({number, ids, {}, rates, nullptr});
  const auto head = encode_push_list(request);
  Payload payload;
  payload.put(head.data(), head.size());
  for (const auto& [number, ids] : tables) {
    payload.put_array(ids);
    payload.put_array(std::vector<std::uint32_t>(ids.size(), 1));
    payload.put_array(rates);
    payload.put_array(std::vector<float>(ids.size() * kSmallShapes[number].dim, gradient));
  }
  return payload;
}

// Rows in memory.
class VectorSink final : public RowSink {
 public:
  std::byte* room(std::size_t bytes) override {
    rows.resize(filled_ + bytes);
    return rows.data() + filled_;
  }
  void filled(std::size_t bytes) override { filled_ += bytes; }

  std::vector<std::byte> rows;

 private:
  std::size_t filled_ = 0;
};

inline std::vector<float> pull_rows(Shard& shard, const Payload& payload) {
  VectorSink sink;
  shard.pull(shard.read_pull(payload.bytes()), false, Deadline::max(), sink);
  std::vector<float> rows(sink.rows.size() / sizeof(float));
  if (!rows.empty()) std::memcpy(rows.data(), sink.rows.data(), sink.rows.size());
  return rows;
}

}  // namespace dataplane
