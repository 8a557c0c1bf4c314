// dynamic_library.h: a shared library that is opened at run time, so that the module loads on machines without it.
#pragma once

#include <string>

namespace serving {

// Stays open until the process ends: a library that started threads cannot be closed safely.
class DynamicLibrary {
 public:
  // Throws engine::ConfigError with the loader's reason.
  explicit DynamicLibrary(const std::string& path);

  // The address of a symbol. Throws engine::ConfigError where the library lacks it.
  [[nodiscard]] void* symbol(const char* name) const;

  template <class Function>
  void bind(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(symbol(name));
  }

 private:
  std::string path_;
  void* handle_;
};

}  // namespace serving
