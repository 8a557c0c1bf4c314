// item_pool_fuzz.cc: the saved state of item pools and of sequences of transforms.
#include <memory>
#include <vector>

#include "engine/data/row_op.h"
#include "engine/data/transforms/item_pool.h"
#include "engine/data/transforms/negatives.h"
#include "engine/data/transforms/sampling.h"
#include "target.h"

namespace {

using namespace engine::data;

using State = std::vector<std::byte>;

void check_pool(const ItemPool& pool, std::size_t max_items) {
  std::size_t total = 0;
  for (const std::int64_t channel : pool.channel_ids()) {
    const std::size_t size = pool.channel_size(channel);
    fuzz::expect(size > 0 && size <= max_items, "a channel is empty or too long");
    fuzz::expect(pool.items(channel).size() == size, "items are miscounted");
    for (const PooledItem& item : pool.items(channel)) {
      fuzz::expect(item.features != nullptr, "an item has no features");
      fuzz::expect(item.features->cells.size() == pool.feature_names().size(), "an item lacks cells");
    }
    total += size;
  }
  fuzz::expect(total == pool.size(), "channels are miscounted");
}

// Some use of the pool, chosen by `word`.
void work_on(ItemPool& pool, std::uint64_t word) {
  for (std::uint64_t step = 0; step < word % 16; ++step) {
    const std::uint64_t random = mix(word, step);
    const auto channel = static_cast<std::int64_t>(random % 3);
    const auto item = static_cast<std::int64_t>(random >> 8 & 7);
    if (pool.size() > 0 && random >> 16 & 1) {
      const std::int64_t drawn = pool.channel_at(random % pool.size());
      (void)pool.sample(drawn, (random >> 20) % pool.channel_size(drawn));
    } else if (!pool.count(channel, item)) {
      pool.insert(channel, item, ItemFeatures::copy(std::vector<Cell>(pool.feature_names().size()), {item}));
    }
  }
}

void run_pool(const std::vector<Bytes>& streams, std::size_t max_items, std::uint64_t word) {
  const std::vector<std::string> names{"a", "t"};
  ItemPool pool(names, max_items);
  work_on(pool, ~word);
  const State before = pool.state();
  if (!fuzz::accepts([&] { pool.restore(streams, "pool"); })) {
    fuzz::expect(pool.state() == before, "a refused state changed the pool");
    check_pool(pool, max_items);
    return;
  }
  check_pool(pool, max_items);
  const State saved = pool.state();
  ItemPool copy(names, max_items);
  fuzz::expect(fuzz::accepts([&] { copy.restore({Bytes(saved)}, "copy"); }), "a state that was written is refused");
  fuzz::expect(copy.state() == saved, "another state comes back");

  const std::uint64_t mark = pool.mark();
  work_on(pool, word);
  check_pool(pool, max_items);
  fuzz::expect(pool.state_at(mark) == saved, "the state at a mark is another one");
  pool.release(mark);
}

void run_sequence(Bytes state, std::uint64_t word) {
  NegativeGenConfig config;
  config.rows.item_features = {{"a", 0, 7}, {"t", 1, -1}};
  config.max_items = 4;
  std::vector<std::shared_ptr<RowOp>> ops;
  ops.push_back(make_reweight({{1, 2}, {{1, 2, {}}, {2, 0, {}}}, false}, word));
  ops.push_back(make_negative_gen(config, word));
  const std::unique_ptr<RowOp> op = make_sequence_op(ops);
  if (!fuzz::accepts([&] { op->restore(state); })) return;
  const State saved = op->state();
  fuzz::expect(fuzz::accepts([&] { op->restore(saved); }), "a state that was written is refused");
  fuzz::expect(op->state() == saved, "another state comes back");
}

// Input: most items of a channel, mode, a word that chooses operations on the pool, pieces or a raw state.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const std::size_t max_items = std::size_t{1} + input.byte() % 8;
  const std::uint8_t mode = input.byte() % 4;
  const std::uint64_t word = input.word();
  if (mode == 0) return run_pool({input.rest()}, max_items, word);
  if (mode == 1) return run_sequence(input.rest(), word);
  const State framed = fuzz::frame_pieces(input.pieces(64));
  if (mode == 2) return run_pool({Bytes(framed), Bytes(framed)}, max_items, word);
  State parts{std::byte{0}};
  for (std::size_t size = framed.size(); parts.size() < 2 || size > 0; size >>= 7) {
    parts.push_back(static_cast<std::byte>((size & 0x7f) | (size >= 0x80 ? 0x80 : 0)));
  }
  parts.insert(parts.end(), framed.begin(), framed.end());
  run_sequence(parts, word);
}

const fuzz::Target target("item_pool", run, fuzz::Layout::kPieces, 10);

}  // namespace
