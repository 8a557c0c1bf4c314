// arrays.h: NumPy arrays and buffers as the engine's spans and vectors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace bindings {

namespace nb = nanobind;

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> as_span(const Vector<T>& array) {
  return {array.data(), array.size()};
}

// An array that owns the vector it shows; with columns, a matrix.
template <class T>
nb::object as_array(std::vector<T>&& values, std::size_t columns = 0) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  nb::capsule owner(owned.get(), [](void* vector) noexcept { delete static_cast<std::vector<T>*>(vector); });
  auto* vector = owned.release();
  if (columns == 0) return nb::cast(nb::ndarray<nb::numpy, T>(vector->data(), {vector->size()}, owner));
  return nb::cast(nb::ndarray<nb::numpy, T>(vector->data(), {vector->size() / columns, columns}, owner));
}

inline nb::bytes as_bytes(const std::vector<std::byte>& bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

}  // namespace bindings
