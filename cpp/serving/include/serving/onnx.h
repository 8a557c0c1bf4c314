// onnx.h: runs a dense program with ONNX Runtime, whose library is opened at run time and needs no header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace serving {

// The numbers are those of ONNX.
enum class ElementType : int { kFloat = 1, kInt64 = 7, kBool = 9 };

[[nodiscard]] std::size_t size_of(ElementType type) noexcept;

// A tensor in memory of the caller, row-major.
struct Tensor {
  ElementType type = ElementType::kFloat;
  std::vector<std::int64_t> dims;
  void* data = nullptr;

  [[nodiscard]] std::size_t elements() const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept { return elements() * size_of(type); }
};

// A weight that replaces the one of the same name in the program's file.
struct Initializer {
  std::string name;
  int type = 1;  // an element type of ONNX
  std::vector<std::int64_t> dims;
  std::vector<std::byte> bytes;
};

struct OrtTable;

// The library. One per process and path. Concurrent.
class OnnxRuntime {
 public:
  // Opens the library and runs a tiny known program with it. Throws engine::ConfigError where the library is missing,
  // too old, or answers otherwise than expected.
  [[nodiscard]] static std::shared_ptr<const OnnxRuntime> open(const std::string& path);
  ~OnnxRuntime();
  OnnxRuntime(const OnnxRuntime&) = delete;
  OnnxRuntime& operator=(const OnnxRuntime&) = delete;

  [[nodiscard]] const std::string& version() const noexcept { return version_; }

 private:
  friend class OnnxSession;
  explicit OnnxRuntime(const std::string& path);
  void check() const;

  std::unique_ptr<OrtTable> table_;
  std::string version_;
  void* env_ = nullptr;
  void* memory_ = nullptr;
};

// A program with one set of weights, packed once for the kernels when the session is made. Concurrent.
class OnnxSession {
 public:
  // Reads the program's file; weights beside it are found by their relative path. One thread per run. Throws
  // engine::ConfigError.
  OnnxSession(std::shared_ptr<const OnnxRuntime> runtime, const std::string& path,
              std::vector<Initializer> initializers = {});
  OnnxSession(std::shared_ptr<const OnnxRuntime> runtime, std::span<const std::byte> program);
  ~OnnxSession();
  OnnxSession(const OnnxSession&) = delete;
  OnnxSession& operator=(const OnnxSession&) = delete;

  // Fills the outputs, whose sizes the caller knows. Throws engine::Error.
  void run(std::span<const char* const> input_names, std::span<const Tensor> inputs,
           std::span<const char* const> output_names, std::span<const Tensor> outputs) const;

 private:
  void make_options(void** options);

  std::shared_ptr<const OnnxRuntime> runtime_;
  std::vector<Initializer> initializers_;  // the session may read them where they are
  std::vector<void*> values_;
  void* session_ = nullptr;
};

}  // namespace serving
