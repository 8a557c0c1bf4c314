#include "memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include "target.h"

namespace fuzz {

MemoryFile::MemoryFile()
    : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(descriptor_)) {
  expect(descriptor_ >= 0, "no file in memory is to be had");
}

void MemoryFile::write(std::span<const std::byte> bytes) {
  expect(::ftruncate(descriptor_, static_cast<off_t>(bytes.size())) == 0, "the file in memory cannot be cut");
  const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), 0);
  expect(written == static_cast<ssize_t>(bytes.size()), "the file in memory cannot be written");
}

}  // namespace fuzz
