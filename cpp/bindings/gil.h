// gil.h: native code without the GIL, on threads that may outlive the interpreter.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace bindings {

// Releases the GIL while it exists. Up to Python 3.13 an interpreter that ends calls pthread_exit in a daemon thread
// that asks for the GIL. Its unwinding may not leave a destructor, so the thread sleeps until the process has ended.
class ReleasedGil {
 public:
  ReleasedGil() noexcept : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) ::pause();
    }
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace bindings
