// filter.h: admission. Decides whether an absent id has been seen often enough to get a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/config.h"

namespace engine {

// An absent id that a call has seen.
struct Sighting {
  std::int64_t id;
  std::uint32_t count;      // occurrences in the call
  std::uint32_t threshold;  // > 0
};

class AdmissionFilter {
 public:
  virtual ~AdmissionFilter() = default;
  // Counts the sightings in their order; admitted[i] becomes whether id i may enter now. Concurrent.
  // `turn` numbers the call that asks, for filters that draw random numbers.
  virtual void admit(std::span<const Sighting> sightings, std::uint64_t turn, bool* admitted) = 0;
  // Sightings remembered of an id; 0 when unknown. Concurrent.
  [[nodiscard]] virtual std::uint32_t seen(std::int64_t id) const = 0;
  [[nodiscard]] virtual std::size_t memory_bytes() const noexcept = 0;
  // The whole state as bytes, and back. `load` throws SnapshotCorrupt or ConfigError; then nothing was changed.
  // Concurrent.
  [[nodiscard]] virtual std::vector<std::byte> save() const = 0;
  virtual void load(const std::byte* data, std::size_t size) = 0;
  // Like `load`, but adds the counts, which are of other ids, to those that are there. Concurrent.
  virtual void merge(const std::byte* data, std::size_t size) = 0;
  virtual void clear() = 0;
};

// Kinds: sliding_hash_filter{capacity, split_num}, probabilistic_filter{equal_probability}; no_filter gives null.
std::unique_ptr<AdmissionFilter> make_filter(const PartConfig& config, std::uint64_t seed);

}  // namespace engine
