// native_peers.cc: what C++ offers without us: bare loops over random lines and of arithmetic, and std::unordered_map.
// Called through ctypes.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kRing = 256;

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <typename Work>
void run_threads(int threads, const Work& work) {
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
}

struct Buffer {
  char* bytes;
  std::size_t size;
};

// Reads `count` random lines, each asked for `distance` lines ahead (0 = only what the core overlaps by itself), and
// writes them if `kWrites`. Threads may meet in a line, hence the atomic accesses, which cost nothing.
template <bool kWrites>
std::uint64_t visit_lines(const Buffer& buffer, std::uint64_t seed, std::size_t count, std::size_t distance) {
  const std::uint64_t lines = buffer.size / kLine;
  std::array<char*, kRing> ring;
  const auto at = [&](std::uint64_t number) {
    const auto line = static_cast<std::uint64_t>((static_cast<unsigned __int128>(mix(seed + number)) * lines) >> 64);
    return buffer.bytes + line * kLine;
  };
  for (std::size_t i = 0; i < distance; ++i) {
    ring[i] = at(i);
    __builtin_prefetch(ring[i], kWrites);
  }
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    char* const next = at(i + distance);
    if (distance > 0) __builtin_prefetch(next, kWrites);
    ring[(i + distance) % kRing] = next;
    const std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(ring[i % kRing]));
    sum += word.load(std::memory_order_relaxed);
    if constexpr (kWrites) word.store(sum, std::memory_order_relaxed);
  }
  return sum;
}

// Independent chains of multiplications and additions, so that the units of the processor are busy.
double multiply_and_add(double start) {
  std::array<double, 16> chains;
  chains.fill(start);
  for (int i = 0; i < 20'000; ++i) {
    for (double& chain : chains) chain = chain * 0.999999 + 0.5;
  }
  double sum = 0;
  for (const double chain : chains) sum += chain;
  return sum;
}

// A row as our table keeps it: 16 values and their 16 squared sums.
struct Row {
  std::array<float, 16> values;
  std::array<float, 16> squares;
};
static_assert(sizeof(Row) == 128);

using Map = std::unordered_map<std::int64_t, Row*>;

}  // namespace

extern "C" {

void* buffer_new(std::size_t size, int threads) {
  size = (size + kHugePage - 1) / kHugePage * kHugePage;
  void* bytes = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (bytes == MAP_FAILED) return nullptr;
  const auto start = (reinterpret_cast<std::uintptr_t>(bytes) + kHugePage - 1) / kHugePage * kHugePage;
  auto* buffer = new Buffer{reinterpret_cast<char*>(start), size};
  madvise(buffer->bytes, size, MADV_HUGEPAGE);
  run_threads(threads, [&](int thread) {
    const std::size_t from = size / threads * thread;
    std::memset(buffer->bytes + from, 1, thread + 1 == threads ? size - from : size / threads);
  });
  return buffer;
}

// Returns the lines per second of all threads together; `writes` = whether they are written too.
double buffer_visit(void* handle, int threads, std::size_t lines_per_thread, std::size_t distance, std::uint64_t seed,
                    bool writes) {
  const Buffer& buffer = *static_cast<Buffer*>(handle);
  std::vector<std::uint64_t> sums(threads * (kLine / sizeof(std::uint64_t)));
  const double start = now();
  run_threads(threads, [&](int thread) {
    const std::uint64_t own = mix(seed * 1000003 + thread);
    const auto visit = writes ? visit_lines<true> : visit_lines<false>;
    sums[thread * (kLine / sizeof(std::uint64_t))] =
        visit(buffer, own, lines_per_thread, std::min(distance, kRing - 1));
  });
  const double seconds = now() - start;
  volatile std::uint64_t sink = 0;
  for (std::uint64_t sum : sums) sink = sink + sum;
  return static_cast<double>(lines_per_thread) * threads / seconds;
}

// Returns the pieces of arithmetic per second. Threads take piece after piece, so that none waits for a slower one.
double arithmetic(int threads, std::size_t pieces) {
  std::atomic<std::size_t> next{0};
  std::atomic<double> sink{0};
  const double start = now();
  run_threads(threads, [&](int thread) {
    double sum = 0;
    while (next.fetch_add(1, std::memory_order_relaxed) < pieces) sum += multiply_and_add(thread);
    sink = sum;
  });
  return static_cast<double>(pieces) / (now() - start);
}

void* map_new() { return new Map; }

// Sets the values of every id, making rows as needed, as a user would write it.
void map_assign(void* handle, const std::int64_t* ids, const float* values, std::size_t count) {
  Map& map = *static_cast<Map*>(handle);
  for (std::size_t i = 0; i < count; ++i) {
    Row*& row = map[ids[i]];
    if (row == nullptr) {
      row = new Row;
      row->squares.fill(0.1F);
    }
    std::copy_n(values + i * row->values.size(), row->values.size(), row->values.begin());
  }
}

std::size_t map_size(void* handle) { return static_cast<Map*>(handle)->size(); }

void map_free(void* handle) {
  Map* map = static_cast<Map*>(handle);
  for (auto& [id, row] : *map) delete row;
  delete map;
}

}  // extern "C"
