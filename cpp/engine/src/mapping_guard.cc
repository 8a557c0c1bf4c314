// mapping_guard.cc: the guarded ranges, and the handler of SIGBUS. The handler takes no lock: slots are atomics.
#include "mapping_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>

namespace engine {
namespace {

struct Slot {
  std::atomic<bool> is_taken{false};
  std::atomic<bool> is_damaged{false};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};  // 0 while the slot guards nothing
};

std::array<Slot, MappingGuard::kMostGuards> slots;
std::atomic<std::size_t> used_slots{0};  // no slot from here on was ever taken
struct sigaction before;
std::uintptr_t page_bytes = 4096;

bool put_zeros(std::uintptr_t address) noexcept {
  for (std::size_t i = 0; i < used_slots.load(std::memory_order_acquire); ++i) {
    Slot& slot = slots[i];
    const std::uintptr_t end = slot.end.load(std::memory_order_acquire);
    if (address >= end || address < slot.begin.load(std::memory_order_relaxed)) continue;
    slot.is_damaged.store(true, std::memory_order_release);
    void* page = reinterpret_cast<void*>(address / page_bytes * page_bytes);
    return ::mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
  }
  return false;
}

void handle(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  if (info->si_code > 0 && put_zeros(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    errno = saved;
    return;
  }
  errno = saved;
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    ::sigaction(number, &before, nullptr);  // the access is repeated, and ends the process
    if (info->si_code <= 0) ::raise(number);
  }
}

void install() noexcept {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action{};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &before);
  });
}

}  // namespace

MappingGuard::MappingGuard(const std::byte* data, std::size_t bytes) noexcept {
  install();
  for (std::size_t i = 0; i < kMostGuards; ++i) {
    Slot& slot = slots[i];
    if (slot.is_taken.exchange(true, std::memory_order_acq_rel)) continue;
    std::size_t used = used_slots.load(std::memory_order_relaxed);
    while (used <= i && !used_slots.compare_exchange_weak(used, i + 1, std::memory_order_release)) continue;
    slot.is_damaged.store(false, std::memory_order_relaxed);
    slot.begin.store(reinterpret_cast<std::uintptr_t>(data), std::memory_order_relaxed);
    slot.end.store(reinterpret_cast<std::uintptr_t>(data) + bytes, std::memory_order_release);
    slot_ = i;
    return;
  }
}

MappingGuard::~MappingGuard() {
  if (slot_ == kMostGuards) return;
  slots[slot_].end.store(0, std::memory_order_release);
  slots[slot_].is_taken.store(false, std::memory_order_release);
}

bool MappingGuard::is_damaged() const noexcept {
  return slot_ != kMostGuards && slots[slot_].is_damaged.load(std::memory_order_acquire);
}

}  // namespace engine
