// files.cc: whole files of a partition.
#include "files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "engine/error.h"

namespace eventlog {

MappedFile::MappedFile(const std::string& path, std::uint64_t most_bytes) {
  const Descriptor file = open_file(path, O_RDONLY);
  struct stat info{};
  if (::fstat(file.fd(), &info) != 0) throw engine::IoError("stat", path, errno);
  const auto size = static_cast<std::size_t>(std::min(static_cast<std::uint64_t>(info.st_size), most_bytes));
  if (size == 0) return;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (data == MAP_FAILED) throw engine::IoError("map", path, errno);
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Descriptor open_file(const std::string& path, int flags) {
  Descriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file.is_open()) throw engine::IoError((flags & O_CREAT) != 0 ? "create" : "open", path, errno);
  return file;
}

std::vector<std::byte> read_small(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    if (errno == ENOENT) return {};
    throw engine::IoError("open", path, errno);
  }
  std::vector<std::byte> bytes;
  std::byte piece[4096];
  for (;;) {
    const ssize_t got = ::read(file.fd(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw engine::IoError("read", path, errno);
    if (got == 0) return bytes;
    bytes.insert(bytes.end(), piece, piece + got);
  }
}

void replace_file(const std::string& folder, const std::string& path, Bytes bytes) {
  const std::string aside = path + ".new";
  {
    const Descriptor file = open_file(aside, O_WRONLY | O_CREAT | O_TRUNC);
    if (const int code = write_at(file, bytes, 0); code != 0) throw engine::IoError("write", aside, code);
    if (::fsync(file.fd()) != 0) throw engine::IoError("sync", aside, errno);
  }
  if (::rename(aside.c_str(), path.c_str()) != 0) throw engine::IoError("rename", aside, errno);
  sync_folder(folder);
}

std::vector<std::uint64_t> segment_bases(const std::string& folder) {
  DIR* listed = ::opendir(folder.c_str());
  if (listed == nullptr) throw engine::IoError("list", folder, errno);
  std::vector<std::uint64_t> bases;
  while (const dirent* entry = ::readdir(listed)) {
    unsigned long long base = 0;
    int used = 0;
    if (std::sscanf(entry->d_name, "seg-%20llu.log%n", &base, &used) == 1 && used == 28 && entry->d_name[28] == '\0') {
      bases.push_back(base);
    }
  }
  ::closedir(listed);
  std::sort(bases.begin(), bases.end());
  return bases;
}

std::string segment_path(const std::string& folder, std::uint64_t base, const char* suffix) {
  char name[32];
  std::snprintf(name, sizeof name, "/seg-%020llu", static_cast<unsigned long long>(base));
  return folder + name + suffix;
}

void sync_folder(const std::string& folder) {
  const Descriptor file = open_file(folder, O_RDONLY | O_DIRECTORY);
  if (::fsync(file.fd()) != 0) throw engine::IoError("sync", folder, errno);
}

int write_at(const Descriptor& file, Bytes bytes, std::uint64_t position) noexcept {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(position));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    position += static_cast<std::uint64_t>(written);
  }
  return 0;
}

void refuse_network_folder(const std::string& folder) {
  struct statfs info{};
  if (::statfs(folder.c_str(), &info) != 0) throw engine::IoError("stat", folder, errno);
  constexpr std::uint32_t kNetworks[] = {
      0x6969,      // NFS
      0x517b,      // SMB
      0xfe534d42,  // SMB2
      0xff534d42,  // CIFS
      0x00c36400,  // Ceph
      0x0bd00bd0,  // Lustre
      0x5346414f,  // AFS
      0x47504653,  // GPFS
  };
  const auto type = static_cast<std::uint32_t>(info.f_type);
  if (std::find(std::begin(kNetworks), std::end(kNetworks), type) != std::end(kNetworks)) {
    throw engine::ConfigError("folder '" + folder +
                              "' is on a network file system, expected a local one: locks and shared memory do not "
                              "reach other machines there; use a local disk, or Kafka");
  }
}

}  // namespace eventlog
