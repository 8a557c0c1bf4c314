// shared_page.cc: mapped pages, file locks and futexes.
#include "eventlog/shared_page.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>
#include <string>

#include "engine/error.h"
#include "eventlog/hash.h"

namespace eventlog {

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileLock::FileLock(const Descriptor& file, const std::string& path) : fd_(file.fd()) {
  while (::flock(fd_, LOCK_EX) != 0) {
    if (errno != EINTR) throw engine::IoError("lock", path, errno);
  }
}

FileLock::~FileLock() { ::flock(fd_, LOCK_UN); }

SharedPage::SharedPage(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (!file_.is_open()) throw engine::IoError("open", path, errno);
  struct stat info{};
  if (::fstat(file_.fd(), &info) != 0) throw engine::IoError("stat", path, errno);
  // Growing keeps the bytes that another process may write meanwhile.
  if (info.st_size < static_cast<off_t>(kBytes) && ::ftruncate(file_.fd(), kBytes) != 0) {
    throw engine::IoError("resize", path, errno);
  }
  // A store into a hole of a full disk would end the process, so the page gets its block now.
  if (const int code = ::posix_fallocate(file_.fd(), 0, kBytes); code != 0 && code != EOPNOTSUPP && code != EINVAL) {
    throw engine::IoError("allocate", path, code);
  }
  data_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd(), 0);
  if (data_ == MAP_FAILED) throw engine::IoError("map", path, errno);
}

SharedPage::~SharedPage() { ::munmap(data_, kBytes); }

bool SharedPage::is_unlinked() const noexcept {
  struct stat info{};
  return ::fstat(file_.fd(), &info) == 0 && info.st_nlink == 0;
}

void Wake::notify() noexcept {
  word().fetch_add(1, std::memory_order_acq_rel);
  ::syscall(SYS_futex, &word(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Wake::wait(std::uint32_t seen, std::int64_t most_ms) const noexcept {
  const timespec timeout{.tv_sec = static_cast<time_t>(most_ms / 1000), .tv_nsec = (most_ms % 1000) * 1'000'000};
  ::syscall(SYS_futex, &word(), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

std::uint64_t boot_hash() {
  const Descriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::byte text[64];
  const ssize_t size = file.is_open() ? ::read(file.fd(), text, sizeof text) : 0;
  return fnv1a64({text, static_cast<std::size_t>(std::max<ssize_t>(size, 0))}) | 1;
}

}  // namespace eventlog
