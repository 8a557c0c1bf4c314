// layouts.cc: checks a model's layouts and wires them up.
#include "engine/layout/layouts.h"

#include <algorithm>
#include <bit>
#include <string>

#include "engine/error.h"
#include "wiring.h"

namespace engine::layout {

namespace {

std::string text(std::uint64_t number) { return std::to_string(number); }

void check_feature(std::size_t number, const Feature& feature, std::size_t tables) {
  const std::string name = "feature " + text(number);
  if (feature.table >= tables) {
    throw ConfigError(name + " uses table " + text(feature.table) + ", and there are " + text(tables) +
                      " tables; tables count from 0");
  }
  if (feature.pooling == Pooling::kNone) throw ConfigError(name + " has no pooling; use sum, mean or first");
  if ((feature.pooling == Pooling::kFirst) != (feature.first_n > 0)) {
    throw ConfigError(name + " has n = " + text(feature.first_n) + "; n is positive for first and 0 otherwise");
  }
  if (!feature.transform) return;
  const IdTransform& transform = *feature.transform;
  if (transform.size > IdTransform::kLargest || transform.divisor > IdTransform::kLargest) {
    throw ConfigError(name + " has an id transform of size " + text(transform.size) + " and divisor " +
                      text(transform.divisor) + ", expected at most 2^47; use a smaller vocabulary");
  }
  if (transform.is_quotient && transform.divisor == 0) {
    throw ConfigError(name + " takes a quotient with divisor 0, expected 1 or more; give a divisor");
  }
}

// Floats of an output, from a part's first to the end of its last.
std::uint64_t extent(const Part& part, const Feature& feature) {
  const std::uint64_t steps = feature.pooling == Pooling::kFirst ? feature.first_n - 1 : 0;
  return steps * part.stride + part.width;
}

void check_part(std::size_t number, const Part& part, const Wiring& wiring) {
  const std::string name = "part " + text(number);
  if (part.feature >= wiring.features.size()) {
    throw ConfigError(name + " uses feature " + text(part.feature) + ", and there are " + text(wiring.features.size()) +
                      " features; features count from 0");
  }
  if (part.output >= wiring.output_widths.size()) {
    throw ConfigError(name + " writes output " + text(part.output) + ", and there are " +
                      text(wiring.output_widths.size()) + " outputs; outputs count from 0");
  }
  const Feature& feature = wiring.features[part.feature];
  const std::size_t dim = wiring.table_dims[feature.table];
  if (part.width == 0) throw ConfigError(name + " has width 0; a part has at least one float");
  if (std::uint64_t{part.column} + part.width > dim) {
    throw ConfigError(name + " reads columns " + text(part.column) + " to " +
                      text(std::uint64_t{part.column} + part.width) + " of feature " + text(part.feature) +
                      ", and the rows of its table " + text(feature.table) + " have " + text(dim) + " floats");
  }
  if (feature.pooling == Pooling::kFirst && feature.first_n > 1 && part.stride < part.width) {
    throw ConfigError(name + " has stride " + text(part.stride) + ", less than its width " + text(part.width) +
                      ": the ids of feature " + text(part.feature) + " would overwrite each other");
  }
  const std::size_t width = wiring.output_widths[part.output];
  if (part.offset + extent(part, feature) > width) {
    throw ConfigError(name + " writes floats " + text(part.offset) + " to " +
                      text(part.offset + extent(part, feature)) + " of output " + text(part.output) + ", which has " +
                      text(width) + " per example");
  }
}

// Calls visit(begin, end) for the floats of an output that a part writes.
template <class Visit>
void for_each_stretch(const Part& part, const Feature& feature, Visit&& visit) {
  const std::uint32_t steps = feature.pooling == Pooling::kFirst ? feature.first_n : 1;
  for (std::uint32_t i = 0; i < steps; ++i) {
    const std::size_t begin = part.offset + std::size_t{i} * part.stride;
    visit(begin, begin + part.width);
  }
}

// Decides for every part, in the order in which they are written, whether it stores or adds, and which outputs must be
// zeroed: those with floats that no wire writes, or with a part that overlaps an earlier one only partly.
std::vector<bool> parts_that_store(const std::vector<Part>& ordered, Wiring& wiring) {
  std::vector<std::vector<bool>> written;
  for (const std::size_t width : wiring.output_widths) written.emplace_back(width, false);
  std::vector<bool> stores(ordered.size(), false);
  std::vector<bool> has_gaps(wiring.output_widths.size(), false);
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    auto& floats = written[ordered[i].output];
    std::size_t total = 0;
    std::size_t before = 0;
    for_each_stretch(ordered[i], wiring.features[ordered[i].feature], [&](std::size_t begin, std::size_t end) {
      for (std::size_t at = begin; at < end; ++at) {
        before += floats[at] ? 1 : 0;
        floats[at] = true;
      }
      total += end - begin;
    });
    stores[i] = before == 0;
    if (before != 0 && before != total) has_gaps[ordered[i].output] = true;
  }
  for (std::uint32_t output = 0; output < written.size(); ++output) {
    const bool is_full = std::find(written[output].begin(), written[output].end(), false) == written[output].end();
    if (has_gaps[output] || !is_full) {
      has_gaps[output] = true;
      wiring.outputs_with_gaps.push_back(output);
    }
  }
  for (std::size_t i = 0; i < ordered.size(); ++i) stores[i] = stores[i] && !has_gaps[ordered[i].output];
  return stores;
}

void wire_up(const Part& part, bool stores, std::vector<Wire>& wires) {
  for (std::uint32_t done = 0; done < part.width;) {
    const std::uint32_t width = std::min(kWidest, std::bit_floor(part.width - done));
    wires.push_back({part.output, part.column + done, width, part.offset + done, part.stride, stores});
    done += width;
  }
}

}  // namespace

Layouts::Layouts(std::vector<std::size_t> table_dims, std::vector<Feature> features, const std::vector<Part>& parts,
                 std::vector<std::size_t> output_widths) {
  auto wiring = std::make_shared<Wiring>();
  wiring->table_dims = std::move(table_dims);
  wiring->features = std::move(features);
  wiring->output_widths = std::move(output_widths);
  for (std::size_t table = 0; table < wiring->table_dims.size(); ++table) {
    if (wiring->table_dims[table] == 0) {
      throw ConfigError("table " + text(table) + " has dim 0; a row has at least one float");
    }
  }
  for (std::size_t output = 0; output < wiring->output_widths.size(); ++output) {
    if (wiring->output_widths[output] == 0) {
      throw ConfigError("output " + text(output) + " has width 0; an output has at least one float per example");
    }
  }
  wiring->table_features.resize(wiring->table_dims.size());
  for (std::size_t i = 0; i < wiring->features.size(); ++i) {
    check_feature(i, wiring->features[i], wiring->table_dims.size());
    wiring->table_features[wiring->features[i].table].push_back(static_cast<std::uint32_t>(i));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) check_part(i, parts[i], *wiring);

  std::vector<Part> ordered = parts;
  std::stable_sort(ordered.begin(), ordered.end(), [](const Part& a, const Part& b) { return a.feature < b.feature; });
  const std::vector<bool> stores = parts_that_store(ordered, *wiring);
  wiring->wires.resize(wiring->features.size());
  for (std::size_t i = 0; i < ordered.size(); ++i) wire_up(ordered[i], stores[i], wiring->wires[ordered[i].feature]);
  wiring->usual_sizes = std::make_unique<std::atomic<std::uint32_t>[]>(wiring->table_dims.size());
  wiring_ = std::move(wiring);
}

}  // namespace engine::layout
