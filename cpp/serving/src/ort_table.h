// ort_table.h: the part of ONNX Runtime's function table that is used here.
//
// The table is an array of function pointers. Its order belongs to the library's ABI and only grows, so an entry is
// named by its place. Every function returns a status, null on success, except those that release or describe one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace serving {

// The lowest version of the table that has all entries below.
inline constexpr std::uint32_t kOrtApiVersion = 12;

inline constexpr int kOrtErrorsOnly = 3;
inline constexpr int kOrtAllOptimizations = 99;
inline constexpr int kOrtDeviceAllocator = 0;
inline constexpr int kOrtDefaultMemory = 0;

struct OrtBase {
  void* const* (*get_api)(std::uint32_t version);
  const char* (*get_version)();
};

using OrtStatus = void*;

struct OrtTable {
  const char* (*get_error_message)(OrtStatus);
  OrtStatus (*create_env)(int severity, const char* name, void** env);
  OrtStatus (*create_session)(const void* env, const char* path, const void* options, void** session);
  OrtStatus (*create_session_from_array)(const void* env, const void* bytes, std::size_t size, const void* options,
                                         void** session);
  OrtStatus (*run)(void* session, const void* run_options, const char* const* input_names, const void* const* inputs,
                   std::size_t input_count, const char* const* output_names, std::size_t output_count, void** outputs);
  OrtStatus (*create_session_options)(void** options);
  OrtStatus (*set_log_severity)(void* options, int severity);
  OrtStatus (*set_optimization_level)(void* options, int level);
  OrtStatus (*set_intra_op_threads)(void* options, int threads);
  OrtStatus (*set_inter_op_threads)(void* options, int threads);
  OrtStatus (*create_tensor)(const void* memory, void* data, std::size_t bytes, const std::int64_t* dims,
                             std::size_t rank, int type, void** value);
  OrtStatus (*create_cpu_memory)(int allocator, int kind, void** memory);
  void (*release_env)(void*);
  void (*release_status)(OrtStatus);
  void (*release_memory)(void*);
  void (*release_session)(void*);
  void (*release_value)(void*);
  void (*release_session_options)(void*);
  OrtStatus (*add_config_entry)(void* options, const char* key, const char* value);
  OrtStatus (*add_external_initializers)(void* options, const char* const* names, const void* const* values,
                                         std::size_t count);

  explicit OrtTable(void* const* entries) {
    const auto bind = [entries](auto& function, std::size_t place) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(entries[place]);
    };
    bind(get_error_message, 2);
    bind(create_env, 3);
    bind(create_session, 7);
    bind(create_session_from_array, 8);
    bind(run, 9);
    bind(create_session_options, 10);
    bind(set_log_severity, 22);
    bind(set_optimization_level, 23);
    bind(set_intra_op_threads, 24);
    bind(set_inter_op_threads, 25);
    bind(create_tensor, 49);
    bind(create_cpu_memory, 69);
    bind(release_env, 92);
    bind(release_status, 93);
    bind(release_memory, 94);
    bind(release_session, 95);
    bind(release_value, 96);
    bind(release_session_options, 100);
    bind(add_config_entry, 130);
    bind(add_external_initializers, 210);
  }
};

}  // namespace serving
