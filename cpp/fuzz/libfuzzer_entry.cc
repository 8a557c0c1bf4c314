// libfuzzer_entry.cc: the entry point of libFuzzer.
#include <cstddef>
#include <cstdint>

#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Target::all().front()->run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
