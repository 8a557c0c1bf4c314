// avx512.cc: the kernels with AVX-512. MONOLITH_AVX512=ON compiles this file on x86-64.
#include "level.h"

namespace engine {

constinit const Kernels kAvx512Kernels = make_kernels("avx512");

}  // namespace engine
