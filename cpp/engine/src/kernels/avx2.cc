// avx2.cc: the kernels with AVX2. CMakeLists.txt compiles this file on x86-64 only.
#include "level.h"

namespace engine {

constinit const Kernels kAvx2Kernels = make_kernels("avx2");

}  // namespace engine
