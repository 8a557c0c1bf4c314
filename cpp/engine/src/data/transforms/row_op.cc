// row_op.cc: how rules make operations, and operations a sequence.
#include "engine/data/row_op.h"

#include <map>
#include <utility>

#include "data/transforms/row_fault.h"
#include "engine/data/transforms/released_marks.h"
#include "engine/error.h"
#include "wire.h"

namespace engine::data {

namespace {

class RuleOp : public RowOp {
 public:
  explicit RuleOp(std::vector<RulePtr> rules) : rules_(std::move(rules)) {}

  void run(Rows& rows) override {
    rows_in += rows.size();
    keeps_.assign(rows.size(), 1);
    for (const auto& rule : rules_) rule->apply_all(rows, keeps_);
    std::size_t kept = 0;
    for (std::size_t index = 0; index < keeps_.size(); ++index) {
      if (keeps_[index] != 0) rows.refs[kept++] = rows.refs[index];
    }
    rows.refs.resize(kept);
    rows_out += kept;
  }

 private:
  std::vector<RulePtr> rules_;
  std::vector<std::uint8_t> keeps_;
};

class AllRule : public RowRule {
 public:
  explicit AllRule(std::vector<RulePtr> rules) : rules_(std::move(rules)) {}

  bool apply(RowView row) override {
    for (const auto& rule : rules_) {
      if (!rule->apply(row)) return false;
    }
    return true;
  }

 private:
  std::vector<RulePtr> rules_;
};

class AnyRule : public RowRule {
 public:
  explicit AnyRule(std::vector<RulePtr> rules) : rules_(std::move(rules)) {}

  bool apply(RowView row) override {
    bool keep = false;
    for (const auto& rule : rules_) keep |= rule->apply(row);
    return keep;
  }

 private:
  std::vector<RulePtr> rules_;
};

// The state is, for each operation in turn, the size of its state (a varint) and the state.
class SequenceOp : public RowOp {
 public:
  explicit SequenceOp(std::vector<std::shared_ptr<RowOp>> ops) : ops_(std::move(ops)) {}

  void run(Rows& rows) override {
    drop_released();
    rows_in += rows.size();
    for (const auto& op : ops_) op->run(rows);
    rows_out += rows.size();
  }

  bool has_state() const override {
    for (const auto& op : ops_) {
      if (op->has_state()) return true;
    }
    return false;
  }

  std::vector<std::byte> state() const override {
    return joined([](const RowOp& op, std::size_t) { return op.state(); });
  }

  void restore(Bytes state) override {
    if (!has_state()) return RowOp::restore(state);
    std::vector<Bytes> parts;
    try {
      wire::Reader reader(state);
      while (!reader.done()) parts.push_back(reader.block());
    } catch (const wire::Malformed& fault) {
      throw RecordCorrupt("state of a sequence of transforms: " + fault.reason);
    }
    if (parts.size() != ops_.size()) {
      throw RecordCorrupt("the state is of " + std::to_string(parts.size()) + " transforms, there are " +
                          std::to_string(ops_.size()) + "; restore with the transforms that saved it");
    }
    for (std::size_t i = 0; i < ops_.size(); ++i) ops_[i]->restore(parts[i]);
    marks_.clear();
  }

  std::uint64_t mark() override {
    drop_released();
    std::vector<std::uint64_t> marks;
    marks.reserve(ops_.size());
    for (const auto& op : ops_) marks.push_back(op->mark());
    marks_.emplace(++last_mark_, std::move(marks));
    return last_mark_;
  }

  std::vector<std::byte> state_at(std::uint64_t mark) const override {
    const auto found = marks_.find(mark);
    if (found == marks_.end()) throw_no_mark(mark);
    return joined([&](const RowOp& op, std::size_t i) { return op.state_at(found->second[i]); });
  }

  void release(std::uint64_t mark) override { released_.add(mark); }

  std::vector<ItemPool*> pools() override {
    std::vector<ItemPool*> all;
    for (const auto& op : ops_) {
      const auto own = op->pools();
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

 private:
  void drop_released() {
    for (const std::uint64_t mark : released_.take()) {
      const auto found = marks_.find(mark);
      if (found == marks_.end()) continue;
      for (std::size_t i = 0; i < ops_.size(); ++i) ops_[i]->release(found->second[i]);
      marks_.erase(found);
    }
  }

  template <typename Get>
  std::vector<std::byte> joined(Get&& get) const {
    std::vector<std::byte> all;
    if (!has_state()) return all;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const auto part = get(*ops_[i], i);
      std::byte size[10];
      wire::Writer writer(size);
      writer.varint(part.size());
      all.insert(all.end(), size, writer.at());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  std::vector<std::shared_ptr<RowOp>> ops_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> marks_;
  std::uint64_t last_mark_ = 0;
  ReleasedMarks released_;
};

}  // namespace

void RowRule::apply_all(const Rows& rows, std::span<std::uint8_t> keeps) {
  for (std::size_t index = 0; index < keeps.size(); ++index) {
    if (keeps[index] == 0) continue;
    const RowView row{rows.block_of(index), rows.refs[index].row};
    try {
      keeps[index] = apply(row) ? 1 : 0;
    } catch (const wire::Malformed& fault) {
      throw_row_fault(row, index, fault);
    }
  }
}

void RowOp::restore(Bytes state) {
  if (!state.empty()) {
    throw RecordCorrupt("a transform without state was given " + std::to_string(state.size()) +
                        " bytes of state; restore with the transforms that saved it");
  }
}

void throw_row_fault(const RowView& row, std::size_t index, const wire::Malformed& fault) {
  const Bytes line = row.info().line;
  std::string place;
  if (fault.at != nullptr && fault.at >= line.data() && fault.at <= line.data() + line.size() && !line.empty()) {
    place = " at byte " + std::to_string(fault.at - line.data()) + " of its LineId";
  }
  throw RecordCorrupt("row " + std::to_string(index) + " of the lot cannot be read" + place + ": " + fault.reason);
}

void throw_no_mark(std::uint64_t mark) {
  throw ConfigError("mark " + std::to_string(mark) + " is not live: it was released, or taken before a restore");
}

std::unique_ptr<RowOp> make_rule_op(std::vector<RulePtr> rules) { return std::make_unique<RuleOp>(std::move(rules)); }

std::unique_ptr<RowOp> make_sequence_op(std::vector<std::shared_ptr<RowOp>> ops) {
  return std::make_unique<SequenceOp>(std::move(ops));
}

RulePtr make_all_rule(std::vector<RulePtr> rules) { return std::make_shared<AllRule>(std::move(rules)); }

RulePtr make_any_rule(std::vector<RulePtr> rules) { return std::make_shared<AnyRule>(std::move(rules)); }

}  // namespace engine::data
