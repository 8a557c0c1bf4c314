// features.cc: rules that make ids.
#include "engine/data/transforms/features.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "data/cell_values.h"
#include "engine/city_hash.h"
#include "engine/data/transforms/ragged.h"
#include "engine/data/value_ids.h"
#include "engine/error.h"
#include "engine/fid.h"

namespace engine::data {

namespace {

constexpr std::size_t kMostIds = std::size_t{1} << 20;  // per cell

void check_slot(std::uint32_t slot) {
  if (slot >= kFidV2Slots) {
    throw ConfigError("slot " + std::to_string(slot) + " is outside 0 to " + std::to_string(kFidV2Slots - 1));
  }
}

// The feature's cell. Flat ids of the slot are gathered in the block's arena.
Cell cell_of(RowView row, const FeatureRef& feature) {
  const Cell cell = row.cell(feature.column);
  const Bytes flat = row.info().flat_fids;
  if (cell.arm != Arm::kNone || feature.flat_slot < 0 || flat.empty()) return cell;
  const auto slot = static_cast<std::uint32_t>(feature.flat_slot);
  std::size_t count = 0;
  each_packed<std::int64_t>(flat, [&](std::int64_t id) { return count += slot_v1(id) == slot ? 1 : 0, true; });
  if (count == 0) return cell;
  auto* ids = row.block.arena().take_array<std::int64_t>(count);
  std::size_t at = 0;
  each_packed<std::int64_t>(flat, [&](std::int64_t id) {
    if (slot_v1(id) == slot) ids[at++] = id;
    return true;
  });
  return {reinterpret_cast<const std::byte*>(ids), static_cast<std::uint32_t>(count * 8), Arm::kFidV1, 0};
}

void check_holds_fids(const FeatureRef& feature, const Cell& cell) {
  if (cell.arm == Arm::kNone || is_fid(cell.arm)) return;
  throw SchemaMismatch("feature '" + feature.name + "' holds " + name_of(cell.arm) +
                       ", not fids; turn its values into fids first (StringToFid)");
}

class SwitchSlot : public RowRule {
 public:
  explicit SwitchSlot(std::vector<SlotSwitch> switches) : switches_(std::move(switches)) {
    for (const auto& item : switches_) check_slot(item.slot);
  }

  bool apply(RowView row) override {
    for (const auto& item : switches_) {
      Cell cell = cell_of(row, item.from);
      check_holds_fids(item.from, cell);
      if (cell.arm != Arm::kNone) switch_to(row, cell, item.slot);
      row.block.set_cell(row.row, item.to_column, cell);
    }
    return true;
  }

 private:
  // The new ids are as wide as the old ones, so a copy of the cell is patched where it stands, lists of lists included.
  static void switch_to(RowView row, Cell& cell, std::uint32_t slot) {
    const Bytes copy = row.block.arena().copy(cell.bytes());
    cell.data = copy.data();
    const bool was_v1 = is_fid_v1(cell.arm);
    const bool is_v1 = was_v1 && slot < kFidV1Slots;
    each_fid_run(cell, [&](Bytes run) {
      auto* at = const_cast<std::byte*>(run.data());  // our own copy
      return each_packed<std::int64_t>(run, [&](std::int64_t id) {
        const auto signature = static_cast<std::uint64_t>(id);
        const std::int64_t other = is_v1 ? make_fid_v1(slot, signature) : make_fid_v2(slot, signature);
        std::memcpy(at, &other, sizeof other);
        at += sizeof other;
        return true;
      });
    });
    if (was_v1 && !is_v1) cell.arm = cell.arm == Arm::kFidV1 ? Arm::kFidV2 : Arm::kFidV2Lists;
  }

  std::vector<SlotSwitch> switches_;
};

class FeatureCombine : public RowRule {
 public:
  FeatureCombine(FeatureRef a, FeatureRef b, std::uint32_t slot, std::uint32_t to_column)
      : a_(std::move(a)), b_(std::move(b)), slot_(slot), to_column_(to_column) {
    check_slot(slot);
  }

  bool apply(RowView row) override {
    const Cell a = cell_of(row, a_);
    const Cell b = cell_of(row, b_);
    check_holds_fids(a_, a);
    check_holds_fids(b_, b);
    const bool are_both_v1 = is_fid_v1(a.arm) && is_fid_v1(b.arm);
    const bool is_v1 = are_both_v1 && slot_ < kFidV1Slots;
    read(a, are_both_v1, ids_a_);
    read(b, are_both_v1, ids_b_);
    const std::size_t count = ids_a_.size() * ids_b_.size();
    if (count > kMostIds) {
      throw SchemaMismatch("features '" + a_.name + "' and '" + b_.name + "' of one row have " +
                           std::to_string(ids_a_.size()) + " and " + std::to_string(ids_b_.size()) +
                           " ids: too many to cross");
    }
    auto* ids = row.block.arena().take_array<std::int64_t>(count);
    std::size_t at = 0;
    for (const std::int64_t outer : ids_a_) {
      for (const std::int64_t inner : ids_b_) ids[at++] = cross_fid(outer, inner, slot_, is_v1 ? 1 : 2);
    }
    const Arm arm = count == 0 ? Arm::kNone : is_v1 ? Arm::kFidV1 : Arm::kFidV2;
    row.block.set_cell(row.row, to_column_,
                       {reinterpret_cast<const std::byte*>(ids), static_cast<std::uint32_t>(count * 8), arm, 0});
    return true;
  }

 private:
  static void read(const Cell& cell, bool are_both_v1, std::vector<std::int64_t>& out) {
    out.clear();
    if (cell.arm == Arm::kNone) return;
    const bool converts = is_fid_v1(cell.arm) && !are_both_v1;
    each_fid(cell, [&](std::int64_t id) { return out.push_back(converts ? fid_v1_to_v2(id) : id), true; });
  }

  FeatureRef a_;
  FeatureRef b_;
  std::uint32_t slot_;
  std::uint32_t to_column_;
  std::vector<std::int64_t> ids_a_;
  std::vector<std::int64_t> ids_b_;
};

class ExtractFid : public RowRule {
 public:
  ExtractFid(std::string name, std::uint32_t from_column, std::uint32_t to_column, std::uint32_t slot,
             Extraction method, double scale)
      : name_(std::move(name)),
        from_column_(from_column),
        to_column_(to_column),
        slot_(slot),
        method_(method),
        scale_(scale) {
    check_slot(slot);
  }

  bool apply(RowView row) override {
    const Cell cell = row.cell(from_column_);
    ids_.clear();
    switch (cell.arm) {
      case Arm::kNone:
        break;
      case Arm::kBytes:
        if (method_ != Extraction::kHash) throw_wrong(cell);
        each_text(cell, [&](std::string_view text) { return put(city_hash64(text.data(), text.size())), true; });
        break;
      case Arm::kInt64:
      case Arm::kFixedInt64:
        each_int(cell, [&](std::int64_t value) { return put_int(value), true; });
        break;
      case Arm::kFloat:
        if (!takes_reals()) throw_wrong(cell);
        each_packed<float>(cell.bytes(), [&](float value) { return put_real(static_cast<double>(value)), true; });
        break;
      case Arm::kDouble:
        if (!takes_reals()) throw_wrong(cell);
        each_packed<double>(cell.bytes(), [&](double value) { return put_real(value), true; });
        break;
      default:
        throw_wrong(cell);
    }
    const auto bytes = row.block.arena().copy(std::as_bytes(std::span(ids_)));
    const Arm arm = ids_.empty() ? Arm::kNone : Arm::kFidV2;
    row.block.set_cell(row.row, to_column_, {bytes.data(), static_cast<std::uint32_t>(bytes.size()), arm, 0});
    return true;
  }

 private:
  [[nodiscard]] bool takes_reals() const noexcept { return method_ >= Extraction::kLog2; }

  [[noreturn]] void throw_wrong(const Cell& cell) const {
    throw SchemaMismatch("feature '" + name_ + "' holds " + name_of(cell.arm) +
                         ", which this method cannot turn into " +
                         "fids; bytes take hash, integers any method, floats log2, ln or ratio");
  }

  void put(std::uint64_t signature) { ids_.push_back(make_fid_v2(slot_, signature)); }

  void put_text_of(std::int64_t value) {
    char text[24];
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    put(city_hash64(text, static_cast<std::size_t>(end - text)));
  }

  void put_int(std::int64_t value) {
    switch (method_) {
      case Extraction::kHash:
        return put_text_of(value);
      case Extraction::kInt:
        if (!fits_slot(value)) {
          throw SchemaMismatch("feature '" + name_ + "' has the integer " + std::to_string(value) +
                               ", expected 0 to 2^48 - 1 beside slot " + std::to_string(slot_) +
                               "; use the method int64_hash, or a feature of value_type 'integer'");
        }
        return put(static_cast<std::uint64_t>(value));
      case Extraction::kInt64Hash:
        return put(city_hash64(&value, sizeof value));
      default:
        return put_real(static_cast<double>(value));
    }
  }

  void put_real(double value) {
    if (std::isnan(value)) return;
    if (method_ == Extraction::kLog2)
      return put(static_cast<std::uint64_t>(std::log2(std::min(std::abs(value), kHuge) + 1)));
    const double bucket = method_ == Extraction::kLn ? scale_ * std::log1p(std::max(value, 0.0)) : scale_ * value;
    put_text_of(static_cast<std::int64_t>(std::floor(std::min(std::max(bucket, -kLargest), kLargest))));
  }

  static constexpr double kHuge = 1e300;      // infinity counts as this
  static constexpr double kLargest = 0x1p62;  // of a bucket

  std::string name_;
  std::uint32_t from_column_;
  std::uint32_t to_column_;
  std::uint32_t slot_;
  Extraction method_;
  double scale_;
  std::vector<std::int64_t> ids_;
};

}  // namespace

RulePtr make_switch_slot(std::vector<SlotSwitch> switches) { return std::make_shared<SwitchSlot>(std::move(switches)); }

RulePtr make_feature_combine(FeatureRef a, FeatureRef b, std::uint32_t slot, std::uint32_t to_column) {
  return std::make_shared<FeatureCombine>(std::move(a), std::move(b), slot, to_column);
}

RulePtr make_extract_fid(std::string name, std::uint32_t from_column, std::uint32_t to_column, std::uint32_t slot,
                         Extraction method, double scale) {
  return std::make_shared<ExtractFid>(std::move(name), from_column, to_column, slot, method, scale);
}

}  // namespace engine::data
