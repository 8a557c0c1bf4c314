// errors.cc: engine exceptions -> the classes of monolith.core.errors.
#include <nanobind/stl/string.h>

#include <cstring>
#include <new>
#include <string>
#include <system_error>

#include "module.h"

#include "engine/error.h"
#include "path.h"

namespace bindings {

namespace {

// Raised as the class of that name; the module is imported on first use, so importing the engine stays cheap.
void raise_as(const char* module, const char* name, const char* text) {
  const nb::object type = nb::module_::import_(module).attr(name);
  PyErr_SetObject(type.ptr(), message(text).ptr());
}

// OSError itself picks the subclass by errno: FileNotFoundError, PermissionError and so on.
void raise_os_error(const engine::IoError& error) {
  const nb::object raised = nb::borrow(PyExc_OSError)(error.code(), error.reason(), Path(error.path()));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
}

}  // namespace

nb::object message(const char* text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "backslashreplace");
  if (decoded == nullptr) throw nb::python_error();
  return nb::steal(decoded);
}

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    constexpr const char* kErrors = "monolith.core.errors";
    try {
      std::rethrow_exception(pointer);
    } catch (const std::bad_alloc&) {
      PyErr_SetString(PyExc_MemoryError,
                      "out of memory: the system refused an allocation of the native engine; the call was not "
                      "completed, free memory or lower the memory limits and call again");
    } catch (const engine::ConfigError& error) {
      raise_as(kErrors, "ConfigError", error.what());
    } catch (const engine::DimensionMismatch& error) {
      raise_as(kErrors, "DimensionMismatch", error.what());
    } catch (const engine::CapacityExceeded& error) {
      raise_as(kErrors, "CapacityExceeded", error.what());
    } catch (const engine::SnapshotCorrupt& error) {
      raise_as(kErrors, "SnapshotCorrupt", error.what());
    } catch (const engine::RecordCorrupt& error) {
      raise_as(kErrors, "RecordCorrupt", error.what());
    } catch (const engine::SchemaMismatch& error) {
      raise_as(kErrors, "SchemaMismatch", error.what());
    } catch (const engine::ExpiryRefused& error) {
      raise_as(kErrors, "ExpiryRefused", error.what());
    } catch (const engine::IoError& error) {
      raise_os_error(error);
    } catch (const engine::Error& error) {
      raise_as(kErrors, "EngineError", error.what());
    } catch (const std::system_error& error) {
      const std::string text = std::string("the system refused a request of the native engine: ") + error.what() +
                               "; raise its limits of threads and memory, and call again";
      raise_as(kErrors, "EngineError", text.c_str());
    }
  });
}

}  // namespace bindings
