// host_cuda.h: the part of CUDA C++ that the kernels of GPU tables use, on the processor.
//
// Blocks run one after the other. The threads of a block are contexts that take turns: a thread runs until it waits for
// others at a barrier or a warp operation. Atomics are plain, because one thread of the system runs everything.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

using std::isfinite;

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace host_cuda {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

struct Group {  // lanes of a warp that wait for each other
  unsigned arrived = 0;
  unsigned generation = 0;
  std::uint64_t values[2][32];
};

struct Thread {
  ucontext_t context;
  char* stack = nullptr;
  bool is_started = false;
  Index3 index;
  bool is_done = false;
};

constexpr std::size_t kStack = 64 << 10;
constexpr unsigned kMostThreads = 1024;

struct Machine {
  Index3 grid, block, block_index;
  Thread* current = nullptr;
  ucontext_t scheduler;
  Thread threads[kMostThreads];
  Group groups[kMostThreads];  // 32 per warp, by the first lane
  char* stacks[kMostThreads];  // free ones
  unsigned free_stacks = 0;
  unsigned waiting = 0, live = 0, barrier = 0;
  unsigned events = 0;  // ends of threads, barriers and warp operations
  void (*body)(void**) = nullptr;
  void** arguments = nullptr;
};
inline Machine machine;

inline void yield() { swapcontext(&machine.current->context, &machine.scheduler); }

inline void enter() {
  machine.body(machine.arguments);
  machine.current->is_done = true;
  --machine.live;
  ++machine.events;
}

// Returns the values of all lanes of the mask, once each of them has given its own.
inline const std::uint64_t* exchange(unsigned mask, std::uint64_t value) {
  const unsigned thread = machine.current->index.x, lane = thread % 32;
  Group& group = machine.groups[thread / 32 * 32 + __builtin_ctz(mask)];
  const unsigned generation = group.generation;
  std::uint64_t* values = group.values[generation & 1];
  values[lane] = value;
  group.arrived |= 1u << lane;
  if (group.arrived == mask) {
    group.arrived = 0;
    ++group.generation;
    ++machine.events;
  }
  while (group.generation == generation) yield();
  return values;
}

// Returns false where all threads wait for each other.
inline bool run_block() {
  Machine& m = machine;
  const unsigned count = m.block.x;
  for (unsigned number = 0; number < count; ++number) m.threads[number].is_started = m.threads[number].is_done = false;
  for (unsigned number = 0; number < (count + 31) / 32 * 32; ++number) m.groups[number].arrived = 0;
  m.live = count;
  m.waiting = 0;
  while (m.live) {
    const unsigned events = m.events;
    for (unsigned number = 0; number < count; ++number) {
      Thread& thread = m.threads[number];
      if (thread.is_done) continue;
      m.current = &thread;
      if (!thread.is_started) {
        thread.is_started = true;
        thread.stack = m.free_stacks ? m.stacks[--m.free_stacks] : static_cast<char*>(std::malloc(kStack));
        thread.index.x = number;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack;
        thread.context.uc_stack.ss_size = kStack;
        thread.context.uc_link = &m.scheduler;
        makecontext(&thread.context, enter, 0);
      }
      swapcontext(&m.scheduler, &thread.context);
      if (thread.is_done) m.stacks[m.free_stacks++] = thread.stack;
    }
    if (m.events == events) return false;
  }
  return true;
}

template <auto kernel>
struct Launcher;
template <class... Arguments, void (*kernel)(Arguments...)>
struct Launcher<kernel> {
  static void call(void** arguments) { call(arguments, std::index_sequence_for<Arguments...>{}); }
  template <std::size_t... I>
  static void call(void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<Arguments>*>(arguments[I])...);
  }
};

inline bool launch(void (*body)(void**), unsigned blocks, unsigned threads, void** arguments) {
  machine.body = body;
  machine.arguments = arguments;
  machine.grid.x = blocks;
  machine.block.x = threads;
  for (unsigned number = 0; number < blocks; ++number) {
    machine.block_index.x = number;
    if (!run_block()) return false;
  }
  return true;
}

}  // namespace host_cuda

#define blockIdx (host_cuda::machine.block_index)
#define blockDim (host_cuda::machine.block)
#define gridDim (host_cuda::machine.grid)
#define threadIdx (host_cuda::machine.current->index)

inline void __syncthreads() {
  host_cuda::Machine& m = host_cuda::machine;
  const unsigned generation = m.barrier;
  if (++m.waiting == m.live) {
    m.waiting = 0;
    ++m.barrier;
    ++m.events;
  }
  while (m.barrier == generation) host_cuda::yield();
}
inline void __syncwarp(unsigned mask) { host_cuda::exchange(mask, 0); }
inline unsigned __ballot_sync(unsigned mask, bool flag) {
  const std::uint64_t* flags = host_cuda::exchange(mask, flag);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u && flags[lane]) votes |= 1u << lane;
  }
  return votes;
}
inline bool __all_sync(unsigned mask, bool flag) { return __ballot_sync(mask, flag) == mask; }
template <class T>
T __shfl_sync(unsigned mask, T value, unsigned source, unsigned width = 32) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const unsigned lane = threadIdx.x % 32;
  bits = host_cuda::exchange(mask, bits)[lane / width * width + source % width];
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T, class U>
T atomicAdd(T* at, U value) {
  const T before = *at;
  *at += static_cast<T>(value);
  return before;
}
template <class T>
T atomicOr(T* at, T value) {
  const T before = *at;
  *at |= value;
  return before;
}
template <class T, class U, class V>
T atomicCAS(T* at, U expected, V value) {
  const T before = *at;
  if (before == static_cast<T>(expected)) *at = static_cast<T>(value);
  return before;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
void __stcg(T* at, T value) {
  *at = value;
}
template <class T>
void __stcs(T* at, T value) {
  *at = value;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((std::uint64_t{a} * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
