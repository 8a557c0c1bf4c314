// onnx.cc: sessions and runs through the function table; a tiny program checks the table first.
#include "serving/onnx.h"

#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <type_traits>

#include "engine/error.h"
#include "ort_table.h"
#include "serving/dynamic_library.h"
#include "wire_writer.h"

namespace serving {

namespace {

void check_status(const OrtTable& table, OrtStatus status, const std::string& verb) {
  if (status == nullptr) return;
  const std::string reason = table.get_error_message(status);
  table.release_status(status);
  throw engine::ConfigError("ONNX Runtime cannot " + verb + ": " + reason);
}

// Values of one run; released together.
class Values {
 public:
  explicit Values(const OrtTable& table) : table_(table) {}
  ~Values() {
    for (void* value : values_) table_.release_value(value);
  }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  void add(const void* memory, const Tensor& tensor) {
    void* value = nullptr;
    check_status(table_,
                 table_.create_tensor(memory, tensor.data, tensor.bytes(), tensor.dims.data(), tensor.dims.size(),
                                      static_cast<int>(tensor.type), &value),
                 "wrap a tensor");
    values_.push_back(value);
  }
  [[nodiscard]] void** data() noexcept { return values_.data(); }

 private:
  const OrtTable& table_;
  std::vector<void*> values_;
};

// The program y = x + w for vectors of two floats, as bytes of ONNX's ModelProto.
std::string addition_program(float first, float second) {
  const auto vector_of_two = [](std::string_view name) {
    WireWriter size, shape, tensor, type, info;
    size.number(1, 2);       // Dimension.dim_value
    shape.block(1, size);    // TensorShapeProto.dim
    tensor.number(1, 1);     // Tensor.elem_type: float
    tensor.block(2, shape);  // Tensor.shape
    type.block(1, tensor);   // TypeProto.tensor_type
    info.block(1, name);     // ValueInfoProto.name
    info.block(2, type);     // ValueInfoProto.type
    return info;
  };
  WireWriter node, weights, graph, opset, model;
  node.block(1, "x");  // NodeProto.input
  node.block(1, "w");
  node.block(2, "y");    // NodeProto.output
  node.block(4, "Add");  // NodeProto.op_type
  weights.number(1, 2);  // TensorProto.dims
  weights.number(2, 1);  // TensorProto.data_type: float
  weights.block(8, "w");
  std::string raw(2 * sizeof(float), '\0');
  std::memcpy(raw.data(), &first, sizeof first);
  std::memcpy(raw.data() + sizeof first, &second, sizeof second);
  weights.block(9, raw);
  graph.block(1, node);
  graph.block(2, "check");
  graph.block(5, weights);
  graph.block(11, vector_of_two("x"));
  graph.block(12, vector_of_two("y"));
  opset.number(2, 13);  // OperatorSetIdProto.version
  model.number(1, 8);   // ModelProto.ir_version
  model.block(7, graph);
  model.block(8, opset);
  return model.take();
}

}  // namespace

std::size_t size_of(ElementType type) noexcept {
  switch (type) {
    case ElementType::kInt64:
      return 8;
    case ElementType::kBool:
      return 1;
    default:
      return 4;
  }
}

std::size_t Tensor::elements() const noexcept {
  std::size_t count = 1;
  for (const std::int64_t dim : dims) count *= static_cast<std::size_t>(dim);
  return count;
}

std::shared_ptr<const OnnxRuntime> OnnxRuntime::open(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const OnnxRuntime>> opened;
  const std::lock_guard lock(mutex);
  auto& runtime = opened[path];
  if (runtime == nullptr) {
    // The check makes a session, which needs a shared runtime; this one is not released by it.
    std::shared_ptr<const OnnxRuntime> made(new OnnxRuntime(path));
    made->check();
    runtime = std::move(made);
  }
  return runtime;
}

OnnxRuntime::OnnxRuntime(const std::string& path) {
  const DynamicLibrary library(path);
  const OrtBase* (*get_base)() = nullptr;
  library.bind(get_base, "OrtGetApiBase");
  const OrtBase* base = get_base();
  version_ = base->get_version();
  void* const* entries = base->get_api(kOrtApiVersion);
  if (entries == nullptr) {
    throw engine::ConfigError("ONNX Runtime is version " + version_ + ", expected 1." + std::to_string(kOrtApiVersion) +
                              " or later; install a newer onnxruntime");
  }
  table_ = std::make_unique<OrtTable>(entries);
  check_status(*table_, table_->create_env(kOrtErrorsOnly, "monolith", &env_), "start");
  check_status(*table_, table_->create_cpu_memory(kOrtDeviceAllocator, kOrtDefaultMemory, &memory_), "use memory");
}

OnnxRuntime::~OnnxRuntime() {
  if (memory_ != nullptr) table_->release_memory(memory_);
  if (env_ != nullptr) table_->release_env(env_);
}

void OnnxRuntime::check() const {
  const std::string program = addition_program(1.5F, -2.0F);
  const std::shared_ptr<const OnnxRuntime> self(this, [](const OnnxRuntime*) {});
  const OnnxSession session(self, std::as_bytes(std::span(program)));
  float x[2] = {0.25F, 8.0F};
  float y[2] = {0.0F, 0.0F};
  const char* const input = "x";
  const char* const output = "y";
  const Tensor given{ElementType::kFloat, {2}, x};
  const Tensor filled{ElementType::kFloat, {2}, y};
  session.run({&input, 1}, {&given, 1}, {&output, 1}, {&filled, 1});
  if (y[0] != 1.75F || y[1] != 6.0F) {
    throw engine::ConfigError("ONNX Runtime " + version_ + " computes " + std::to_string(y[0]) + " and " +
                              std::to_string(y[1]) + ", expected 1.75 and 6; install another onnxruntime");
  }
}

OnnxSession::OnnxSession(std::shared_ptr<const OnnxRuntime> runtime, const std::string& path,
                         std::vector<Initializer> initializers)
    : runtime_(std::move(runtime)), initializers_(std::move(initializers)) {
  const OrtTable& table = *runtime_->table_;
  void* options = nullptr;
  make_options(&options);
  const OrtStatus status = table.create_session(runtime_->env_, path.c_str(), options, &session_);
  table.release_session_options(options);
  check_status(table, status, "read '" + path + "'");
}

OnnxSession::OnnxSession(std::shared_ptr<const OnnxRuntime> runtime, std::span<const std::byte> program)
    : runtime_(std::move(runtime)) {
  const OrtTable& table = *runtime_->table_;
  void* options = nullptr;
  make_options(&options);
  const OrtStatus status =
      table.create_session_from_array(runtime_->env_, program.data(), program.size(), options, &session_);
  table.release_session_options(options);
  check_status(table, status, "read a program");
}

OnnxSession::~OnnxSession() {
  const OrtTable& table = *runtime_->table_;
  if (session_ != nullptr) table.release_session(session_);
  for (void* value : values_) table.release_value(value);
}

void OnnxSession::make_options(void** options) {
  const OrtTable& table = *runtime_->table_;
  check_status(table, table.create_session_options(options), "make options");
  try {
    check_status(table, table.set_log_severity(*options, kOrtErrorsOnly), "set the log level");
    check_status(table, table.set_optimization_level(*options, kOrtAllOptimizations), "set the optimization level");
    check_status(table, table.set_intra_op_threads(*options, 1), "set threads");
    check_status(table, table.set_inter_op_threads(*options, 1), "set threads");
    // Decode 8-bit weights once, when the session is made.
    check_status(table, table.add_config_entry(*options, "session.disable_quant_qdq", "1"), "set an option");
    std::vector<const char*> names;
    for (Initializer& each : initializers_) {
      void* value = nullptr;
      check_status(table,
                   table.create_tensor(runtime_->memory_, each.bytes.data(), each.bytes.size(), each.dims.data(),
                                       each.dims.size(), each.type, &value),
                   "wrap weight '" + each.name + "'");
      values_.push_back(value);
      names.push_back(each.name.c_str());
    }
    if (!names.empty()) {
      check_status(table, table.add_external_initializers(*options, names.data(), values_.data(), names.size()),
                   "replace weights");
    }
  } catch (...) {
    table.release_session_options(*options);
    for (void* value : values_) table.release_value(value);
    values_.clear();
    throw;
  }
}

void OnnxSession::run(std::span<const char* const> input_names, std::span<const Tensor> inputs,
                      std::span<const char* const> output_names, std::span<const Tensor> outputs) const {
  const OrtTable& table = *runtime_->table_;
  Values given(table);
  for (const Tensor& tensor : inputs) given.add(runtime_->memory_, tensor);
  Values filled(table);
  for (const Tensor& tensor : outputs) filled.add(runtime_->memory_, tensor);
  const OrtStatus status = table.run(session_, nullptr, input_names.data(), given.data(), input_names.size(),
                                     output_names.data(), output_names.size(), filled.data());
  if (status != nullptr) {
    const std::string reason = table.get_error_message(status);
    table.release_status(status);
    throw engine::Error("dense program failed: " + reason);
  }
}

}  // namespace serving
