// bind_pairs.cc: exposes sums over pairs of vectors; checks shapes, releases the GIL and forwards.
#include <nanobind/stl/optional.h>

#include <optional>
#include <string>
#include <tuple>

#include "arrays.h"
#include "engine/error.h"
#include "engine/pairs.h"
#include "module.h"

namespace bindings {

using namespace nb::literals;

namespace {

template <class T>
using Cube = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

engine::Vectors vectors_of(const Cube<const float>& array) {
  return {array.data(), array.shape(0), array.shape(1), array.shape(2)};
}

// Throws DimensionMismatch unless the array is (examples, width).
template <class T>
void check_shape(const Matrix<T>& array, const engine::Vectors& vectors, const char* name) {
  if (array.shape(0) == vectors.examples && array.shape(1) == vectors.width) return;
  throw engine::DimensionMismatch(std::string(name) + " has shape (" + std::to_string(array.shape(0)) + ", " +
                                  std::to_string(array.shape(1)) + "), expected (" + std::to_string(vectors.examples) +
                                  ", " + std::to_string(vectors.width) + ")");
}

template <class T>
void check_shape(const Cube<T>& array, const engine::Vectors& vectors, const char* name) {
  if (std::tuple(array.shape(0), array.shape(1), array.shape(2)) ==
      std::tuple(vectors.examples, vectors.count, vectors.width)) {
    return;
  }
  throw engine::DimensionMismatch(std::string(name) + " and the vectors differ in shape; give arrays of one shape");
}

void sum_pairs(const Cube<const float>& array, const Matrix<float>& together, const Matrix<float>& pairs) {
  const engine::Vectors vectors = vectors_of(array);
  check_shape(together, vectors, "together");
  check_shape(pairs, vectors, "pairs");
  ReleasedGil unlocked;
  engine::sum_pairs(vectors, together.data(), pairs.data(), *shared_pool());
}

void pair_gradients(const Cube<const float>& array, const Matrix<const float>& together,
                    const Matrix<const float>& grads, const std::optional<Cube<const float>>& others,
                    const Cube<float>& out) {
  const engine::Vectors vectors = vectors_of(array);
  check_shape(together, vectors, "together");
  check_shape(grads, vectors, "grads");
  if (others) check_shape(*others, vectors, "others");
  check_shape(out, vectors, "out");
  ReleasedGil unlocked;
  engine::pair_gradients(vectors, together.data(), grads.data(), others ? others->data() : nullptr, out.data(),
                         *shared_pool());
}

}  // namespace

void bind_pairs(nb::module_& m) {
  m.def("sum_pairs", &sum_pairs, "vectors"_a.noconvert(), "together"_a.noconvert(), "pairs"_a.noconvert(),
        "Fill ``together`` with the sum of the vectors of each example, and ``pairs`` with that of the products of all "
        "pairs.");
  m.def("pair_gradients", &pair_gradients, "vectors"_a.noconvert(), "together"_a.noconvert(), "grads"_a.noconvert(),
        "others"_a.noconvert().none(), "out"_a.noconvert(),
        "Fill ``out`` with the gradient of the vectors, from that of the pairs and the sum of all other gradients.");
}

}  // namespace bindings
