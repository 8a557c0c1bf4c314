// filter.cc: the two admission filters, and the bytes they are kept as.
#include "engine/filter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/crc32c.h"
#include "engine/error.h"
#include "engine/hash.h"
#include "engine/sliding_counter.h"

namespace engine {
namespace {

constexpr std::uint32_t kVersion = 2;
constexpr std::uint32_t kVersionBeforeGrowth = 1;  // the splits of a sliding filter all had one capacity

// Saved bytes: this header, the filter's own, and a CRC-32C of both.
struct SavedHeader {
  std::uint64_t magic = 0x3130544c49464c4dULL;  // "MLFILT01"
  std::uint32_t version = kVersion;
  std::uint32_t kind = 0;
  std::uint64_t capacity = 0;
  std::uint32_t split_num = 0;
  std::uint32_t equal_probability = 0;
};
static_assert(sizeof(SavedHeader) == 32);

constexpr std::uint32_t kSliding = 1;
constexpr std::uint32_t kProbabilistic = 2;

std::vector<std::byte> begin_save(const SavedHeader& header) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  return {bytes, bytes + sizeof header};
}

void finish_save(std::vector<std::byte>& out) {
  const std::uint32_t crc = crc32c(0, out.data(), out.size());
  const auto* bytes = reinterpret_cast<const std::byte*>(&crc);
  out.insert(out.end(), bytes, bytes + sizeof crc);
}

void require_same(std::string_view setting, std::uint64_t saved, std::uint64_t ours) {
  if (saved == ours) return;
  throw ConfigError("the saved filter has " + std::string(setting) + " " + std::to_string(saved) + ", this one has " +
                    std::to_string(ours) + "; use the saved value, or start with an empty filter");
}

// Checks everything that all filters share and returns the filter's own bytes.
std::span<const std::byte> open_saved(const std::byte* data, std::size_t size, const SavedHeader& ours,
                                      std::uint32_t& version) {
  SavedHeader saved;
  std::uint32_t crc = 0;
  if (size < sizeof saved + sizeof crc) {
    throw SnapshotCorrupt("saved filter: " + std::to_string(size) + " bytes are too few for one");
  }
  std::memcpy(&saved, data, sizeof saved);
  if (saved.magic != ours.magic) throw SnapshotCorrupt("saved filter: byte 0: these bytes are not a saved filter");
  const std::size_t body = size - sizeof crc;
  std::memcpy(&crc, data + body, sizeof crc);
  if (crc != crc32c(0, data, body)) {
    throw SnapshotCorrupt("saved filter: byte " + std::to_string(body) + ": the checksum does not match");
  }
  if (saved.version != kVersionBeforeGrowth) require_same("format version", saved.version, ours.version);
  version = saved.version;
  require_same("kind", saved.kind, ours.kind);
  require_same("capacity", saved.capacity, ours.capacity);
  require_same("split_num", saved.split_num, ours.split_num);
  require_same("equal_probability", saved.equal_probability, ours.equal_probability);
  return {data + sizeof saved, body - sizeof saved};
}

// Stripes of independent counters, each behind its own lock, so that threads seldom meet. A stripe forgets by its own
// fill; with at least 65,536 ids in each, they fill alike. A small filter has one stripe and is exactly one counter.
class SlidingHashFilter final : public AdmissionFilter {
 public:
  SlidingHashFilter(std::uint64_t capacity, std::uint32_t split_num)
      : header_{.kind = kSliding, .capacity = capacity, .split_num = split_num},
        stripe_bits_(static_cast<int>(std::min<std::uint64_t>(6, std::bit_width(capacity / 65536 | 1) - 1))) {
    stripes_ = empty_stripes();
  }

  // The count before this call decides, so the id enters at its sighting number threshold + 1. A threshold above the
  // largest count works as the largest count.
  void admit(std::span<const Sighting> sightings, std::uint64_t /*turn*/, bool* admitted) override {
    for (std::size_t begin = 0, end = 0; begin < sightings.size(); begin = end) {
      Stripe& stripe = stripe_of(sightings[begin].id);
      const std::scoped_lock lock(stripe.mutex);
      // The ids of one part of a table share a stripe.
      for (; end < std::min(sightings.size(), begin + kTogether) && &stripe_of(sightings[end].id) == &stripe; ++end) {
        stripe.counter.fetch(sightings[end].id);
      }
      for (std::size_t i = begin; i < end; ++i) {
        const Sighting& sighting = sightings[i];
        admitted[i] =
            stripe.counter.add(sighting.id, sighting.count) >= std::min(sighting.threshold, SlidingCounter::kMaxCount);
      }
    }
  }

  std::uint32_t seen(std::int64_t id) const override {
    Stripe& stripe = stripe_of(id);
    const std::scoped_lock lock(stripe.mutex);
    return stripe.counter.seen(id);
  }

  std::size_t memory_bytes() const noexcept override {
    std::size_t bytes = sizeof *this;
    for (const auto& stripe : stripes_) {
      const std::scoped_lock lock(stripe->mutex);
      bytes += sizeof(std::mutex) + stripe->counter.memory_bytes();
    }
    return bytes;
  }

  std::vector<std::byte> save() const override {
    auto out = begin_save(header_);
    for (const auto& stripe : stripes_) {
      const std::scoped_lock lock(stripe->mutex);
      stripe->counter.save(out);
    }
    finish_save(out);
    return out;
  }

  void load(const std::byte* data, std::size_t size) override {
    const auto saved = read_stripes(data, size);
    for (std::size_t i = 0; i < stripes_.size(); ++i) {
      const std::scoped_lock lock(stripes_[i]->mutex);
      stripes_[i]->counter = std::move(saved[i]->counter);
    }
  }

  void merge(const std::byte* data, std::size_t size) override {
    const auto others = read_stripes(data, size);
    for (std::size_t i = 0; i < stripes_.size(); ++i) {
      const std::scoped_lock lock(stripes_[i]->mutex);
      stripes_[i]->counter.merge(std::move(others[i]->counter));
    }
  }

  void clear() override {
    for (const auto& stripe : stripes_) {
      const std::scoped_lock lock(stripe->mutex);
      stripe->counter.clear();
    }
  }

 private:
  static constexpr std::size_t kTogether = 32;  // ids whose cells are fetched together

  struct Stripe {
    Stripe(std::uint64_t capacity, std::uint32_t split_num) : counter(capacity, split_num) {}
    std::mutex mutex;
    SlidingCounter counter;
  };

  std::vector<std::unique_ptr<Stripe>> read_stripes(const std::byte* data, std::size_t size) const {
    std::uint32_t version = 0;
    auto in = open_saved(data, size, header_, version);
    auto stripes = empty_stripes();
    for (const auto& stripe : stripes) {
      const std::size_t offset = size - sizeof(std::uint32_t) - in.size();
      if (!stripe->counter.load(in, version != kVersionBeforeGrowth)) {
        throw SnapshotCorrupt("saved filter: byte " + std::to_string(offset) + ": the counts make no sense");
      }
    }
    if (!in.empty()) throw SnapshotCorrupt("saved filter: " + std::to_string(in.size()) + " bytes too many");
    return stripes;
  }

  std::vector<std::unique_ptr<Stripe>> empty_stripes() const {
    const std::size_t count = std::size_t{1} << stripe_bits_;
    // Ids do not spread quite evenly; 2 % more room is five times the usual deviation.
    const std::uint64_t capacity = count == 1 ? header_.capacity : header_.capacity / count * 51 / 50;
    std::vector<std::unique_ptr<Stripe>> stripes;
    for (std::size_t i = 0; i < count; ++i) stripes.push_back(std::make_unique<Stripe>(capacity, header_.split_num));
    return stripes;
  }

  // `mix` here, because the counters take their places and signatures from `scramble`.
  Stripe& stripe_of(std::int64_t id) const noexcept {
    return stripe_bits_ == 0 ? *stripes_[0] : *stripes_[mix(static_cast<std::uint64_t>(id)) >> (64 - stripe_bits_)];
  }

  SavedHeader header_;
  int stripe_bits_;
  std::vector<std::unique_ptr<Stripe>> stripes_;
};

// Keeps nothing: throws a coin per call, the same coin for the same (seed, id, turn).
class ProbabilisticFilter final : public AdmissionFilter {
 public:
  ProbabilisticFilter(bool equal_probability, std::uint64_t seed)
      : header_{.kind = kProbabilistic, .equal_probability = equal_probability ? 1U : 0U}, seed_(scramble(seed)) {}

  // Equal: an id is in with 95 % after `threshold` sightings, however they are split into calls. Otherwise each call
  // alone has the chance count / threshold.
  void admit(std::span<const Sighting> sightings, std::uint64_t turn, bool* admitted) override {
    for (const auto& [id, count, threshold] : sightings) {
      const double share = static_cast<double>(count) / threshold;
      const double chance = header_.equal_probability != 0 ? 1.0 - std::pow(0.05, share) : share;
      const std::uint64_t bits = scramble(scramble(static_cast<std::uint64_t>(id) ^ seed_) + turn);
      *admitted++ = static_cast<double>(bits >> 11) * 0x1p-53 < chance;
    }
  }

  std::uint32_t seen(std::int64_t /*id*/) const override { return 0; }
  std::size_t memory_bytes() const noexcept override { return sizeof *this; }

  std::vector<std::byte> save() const override {
    auto out = begin_save(header_);
    finish_save(out);
    return out;
  }

  void load(const std::byte* data, std::size_t size) override {
    std::uint32_t version = 0;
    const auto rest = open_saved(data, size, header_, version);
    if (!rest.empty()) throw SnapshotCorrupt("saved filter: " + std::to_string(rest.size()) + " bytes too many");
  }

  void merge(const std::byte* data, std::size_t size) override { load(data, size); }

  void clear() override {}

 private:
  SavedHeader header_;
  std::uint64_t seed_;
};

double setting(const PartConfig& config, const std::string& name) {
  const auto found = config.settings.find(name);
  if (found == config.settings.end())
    throw ConfigError("filter '" + config.kind + "' needs the setting '" + name + "'");
  return found->second;
}

std::uint64_t whole_setting(const PartConfig& config, const std::string& name, double least, double most) {
  const double value = setting(config, name);
  if (!(value >= least && value <= most) || value != std::floor(value)) {
    throw ConfigError("filter '" + config.kind + "' has " + name + " " + std::to_string(value) +
                      "; it must be a whole number from " + std::to_string(static_cast<std::uint64_t>(least)) + " to " +
                      std::to_string(static_cast<std::uint64_t>(most)));
  }
  return static_cast<std::uint64_t>(value);
}

void refuse_unknown(const PartConfig& config, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : config.settings) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw ConfigError("filter '" + config.kind + "' has no setting '" + name + "'");
    }
  }
}

constexpr std::uint64_t kLeastCapacity = 300;  // as in the original; a smaller wish is raised
constexpr double kMostSplits = 4096;

}  // namespace

std::unique_ptr<AdmissionFilter> make_filter(const PartConfig& config, std::uint64_t seed) {
  if (config.kind == "no_filter") {
    refuse_unknown(config, {});
    return nullptr;
  }
  if (config.kind == "sliding_hash_filter") {
    refuse_unknown(config, {"capacity", "split_num"});
    const auto split_num = static_cast<std::uint32_t>(whole_setting(config, "split_num", 5, kMostSplits));
    const std::uint64_t capacity = std::max(kLeastCapacity, whole_setting(config, "capacity", 1, 0x1p40));
    // A split that holds fewer than two ids would be full before its first.
    if (capacity / (split_num - 1) < 2) {
      throw ConfigError("filter 'sliding_hash_filter' cannot divide capacity " + std::to_string(capacity) + " into " +
                        std::to_string(split_num) + " splits; use at most " + std::to_string(capacity / 2 + 1));
    }
    return std::make_unique<SlidingHashFilter>(capacity, split_num);
  }
  if (config.kind == "probabilistic_filter") {
    refuse_unknown(config, {"equal_probability"});
    return std::make_unique<ProbabilisticFilter>(whole_setting(config, "equal_probability", 0, 1) != 0, seed);
  }
  throw ConfigError("filter kind '" + config.kind +
                    "' is unknown; use sliding_hash_filter, probabilistic_filter or no_filter");
}

}  // namespace engine
