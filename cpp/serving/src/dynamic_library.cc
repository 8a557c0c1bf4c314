// dynamic_library.cc: dlopen and dlsym with errors that name the library.
#include "serving/dynamic_library.h"

#include <dlfcn.h>

#include "engine/error.h"

namespace serving {

DynamicLibrary::DynamicLibrary(const std::string& path)
    : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    const char* reason = dlerror();
    throw engine::ConfigError("library '" + path + "' cannot be opened (" + (reason == nullptr ? "no reason" : reason) +
                              "); install it");
  }
}

void* DynamicLibrary::symbol(const char* name) const {
  void* found = dlsym(handle_, name);
  if (found == nullptr) throw engine::ConfigError("library '" + path_ + "' lacks " + name + "; install a newer one");
  return found;
}

}  // namespace serving
