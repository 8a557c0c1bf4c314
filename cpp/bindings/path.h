// path.h: paths and names of streams between Python and C++, with bytes that are not UTF-8.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

namespace bindings {

// A path in the bytes of the system, from str, bytes or os.PathLike.
struct Path : std::string {
  Path() = default;
  Path(std::string text) : std::string(std::move(text)) {}  // NOLINT(google-explicit-constructor)
};

// The name of a stream, often a path. Python's str holds bytes that are not UTF-8 as surrogates.
struct StreamName : std::string {
  StreamName() = default;
  StreamName(std::string text) : std::string(std::move(text)) {}  // NOLINT(google-explicit-constructor)
};

}  // namespace bindings

namespace nanobind::detail {

// Takes a new reference to bytes, or null with an error of Python.
inline bool take_text(PyObject* bytes, std::string& text) noexcept {
  if (bytes == nullptr) {
    PyErr_Clear();
    return false;
  }
  const object owned = steal(bytes);
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes, &data, &size) != 0) {
    PyErr_Clear();
    return false;
  }
  text.assign(data, static_cast<std::size_t>(size));
  return true;
}

template <>
struct type_caster<bindings::Path> {
  NB_TYPE_CASTER(bindings::Path, io_name("str | bytes | os.PathLike[str]", "str"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    PyObject* bytes = nullptr;
    if (PyUnicode_FSConverter(source.ptr(), &bytes) == 0) bytes = nullptr;
    return take_text(bytes, value);
  }
  static handle from_cpp(const bindings::Path& path, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
  }
};

template <>
struct type_caster<bindings::StreamName> {
  NB_TYPE_CASTER(bindings::StreamName, const_name("str"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    if (PyUnicode_Check(source.ptr()) == 0) return false;
    return take_text(PyUnicode_AsEncodedString(source.ptr(), "utf-8", "surrogateescape"), value);
  }
  static handle from_cpp(const bindings::StreamName& name, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "surrogateescape");
  }
};

}  // namespace nanobind::detail
