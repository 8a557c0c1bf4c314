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

template <class T>
using NewVector = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <class T>
using NewMatrix = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

// Python's reference to a vector that arrays show.
template <class T>
nb::capsule own(std::unique_ptr<std::vector<T>> values) {
  return {values.release(), [](void* vector) noexcept { delete static_cast<std::vector<T>*>(vector); }};
}

template <class T>
NewVector<T> as_vector(std::vector<T>&& values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  auto* data = owned->data();
  const std::size_t size = owned->size();
  return NewVector<T>(data, {size}, own(std::move(owned)));
}

template <class T>
NewMatrix<T> as_matrix(std::vector<T>&& values, std::size_t columns) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  auto* data = owned->data();
  const std::size_t rows = owned->size() / columns;
  return NewMatrix<T>(data, {rows, columns}, own(std::move(owned)));
}

inline nb::bytes as_bytes(const std::vector<std::byte>& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

// The memory of any object with a buffer: bytes, bytearray, memoryview. Held until the end of the call, with the GIL.
class Buffer {
 public:
  explicit Buffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

}  // namespace bindings
