// pairs.cc: shares the examples out to threads; kernels/pairs.h has the loops.
#include "engine/pairs.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace engine {

namespace {

// Vectors of a piece of work: enough to pay for its handing out.
constexpr std::size_t kPieceFloats = 1 << 14;

// Calls work(begin, end) for ranges of examples.
template <class Work>
void share_out(const Vectors& vectors, Pool& pool, Work&& work) {
  const std::size_t examples =
      std::max<std::size_t>(kPieceFloats / std::max<std::size_t>(vectors.count * vectors.width, 1), 1);
  pool.run((vectors.examples + examples - 1) / examples,
           [&](std::size_t piece) { work(piece * examples, std::min(vectors.examples, (piece + 1) * examples)); });
}

}  // namespace

void sum_pairs(const Vectors& vectors, float* together, float* pairs, Pool& pool) {
  const Kernels& loops = kernels();
  share_out(vectors, pool,
            [&](std::size_t begin, std::size_t end) { loops.sum_pairs({vectors, begin, end, together, pairs}); });
}

void pair_gradients(const Vectors& vectors, const float* together, const float* grads, const float* others, float* out,
                    Pool& pool) {
  const Kernels& loops = kernels();
  share_out(vectors, pool, [&](std::size_t begin, std::size_t end) {
    loops.pair_gradients({vectors, begin, end, together, grads, others, out});
  });
}

}  // namespace engine
