// baseline.cc: the kernels for the instructions that every processor of the family has.
#include "level.h"

namespace engine {

constinit const Kernels kBaselineKernels = make_kernels("baseline");

}  // namespace engine
