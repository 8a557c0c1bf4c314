// pages_test.cc: blocks that share huge pages are apart and zeroed, and free pages return to the system.
#include "engine/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace engine {
namespace {

constexpr std::size_t kUnit = std::size_t{64} << 10;

bool is_all(const Block& block, std::byte value) {
  return std::all_of(block.data(), block.data() + block.bytes(), [=](std::byte each) { return each == value; });
}

// Pages of 4 KiB in the range that have memory behind them.
std::size_t resident_pages(const std::byte* data, std::size_t bytes) {
  std::vector<unsigned char> pages(bytes / 4096);
  if (::mincore(const_cast<std::byte*>(data), bytes, pages.data()) != 0) return 0;  // not even mapped
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

TEST(Pages, SizesRoundUp) {
  EXPECT_EQ(Block::bytes_for(0), 0U);
  EXPECT_EQ(Block::bytes_for(1), kLineBytes);
  EXPECT_EQ(Block::bytes_for(40'000), 10 * 4096U);
  EXPECT_EQ(Block::bytes_for(1 << 20), 1U << 20);
  EXPECT_EQ(Block::bytes_for((1 << 20) + 1), 9U << 17);
  EXPECT_EQ(Block::bytes_for((17 << 20) + 1), 18U << 20);
  EXPECT_EQ(Block((1 << 20) + 1).bytes(), 9U << 17);
  for (std::size_t bytes = 1; bytes < std::size_t{1} << 36; bytes += bytes / 3 + 1) {
    const std::size_t size = Block::bytes_for(bytes);
    EXPECT_EQ(Block::bytes_for(size), size) << bytes;
    EXPECT_LE(bytes, size);
    if (bytes >= 4096) {
      EXPECT_LE(size, bytes + bytes / 8);
    }
  }
}

// Blocks of many sizes come and go. Each is zeroed, and keeps its content.
TEST(Pages, BlocksAreZeroedAndApart) {
  struct Held {
    Block block;
    std::byte mark;
  };
  std::vector<Held> held;
  std::mt19937 draw(5);
  for (int round = 0; round < 600; ++round) {
    if (held.size() > 40 || (!held.empty() && draw() % 3 == 0)) {
      std::swap(held[draw() % held.size()], held.back());
      ASSERT_TRUE(is_all(held.back().block, held.back().mark));
      held.pop_back();
      continue;
    }
    const std::size_t most = draw() % 100 == 0 ? std::size_t{40} << 20 : std::size_t{600} << 10;
    Block block(1 + draw() % most);
    ASSERT_TRUE(is_all(block, std::byte{0}));
    const auto mark = static_cast<std::byte>(1 + round % 255);
    std::memset(block.data(), static_cast<int>(mark), block.bytes());
    held.push_back({std::move(block), mark});
  }
  for (const Held& each : held) EXPECT_TRUE(is_all(each.block, each.mark));
}

TEST(Pages, ABlockOfWholePagesReturnsToTheSystem) {
  auto block = std::make_unique<Block>(std::size_t{48} << 20);
  const std::byte* const data = block->data();
  const std::size_t bytes = block->bytes();
  std::memset(block->data(), 1, bytes);
  EXPECT_EQ(resident_pages(data, bytes), bytes / 4096);
  block.reset();
  EXPECT_EQ(resident_pages(data, bytes), 0U);
}

TEST(Pages, ANeighbourKeepsTheSharedPageOnly) {
  constexpr std::size_t kBytes = std::size_t{13} << 18;  // 3.25 MiB
  // Scratch of earlier tests may hold places of this size: take places until two begin a region.
  std::vector<std::unique_ptr<Block>> blocks;
  const auto is_pair = [&] {
    if (blocks.size() < 2) return false;
    const std::byte* const data = blocks[blocks.size() - 2]->data();
    return reinterpret_cast<std::uintptr_t>(data) % kHugePageBytes == 0 && data + kBytes == blocks.back()->data();
  };
  while (!is_pair()) {
    ASSERT_LT(blocks.size(), 100U);
    blocks.push_back(std::make_unique<Block>(kBytes));
  }
  std::unique_ptr<Block>& first = blocks[blocks.size() - 2];
  const Block& second = *blocks.back();
  std::memset(first->data(), 1, kBytes);
  std::memset(second.data(), 2, kBytes);
  const std::byte* const data = first->data();
  first.reset();
  EXPECT_EQ(resident_pages(data, kHugePageBytes), 0U);
  EXPECT_EQ(resident_pages(second.data(), kBytes), kBytes / 4096);
  EXPECT_TRUE(is_all(second, std::byte{2}));
  // The place of the first block is the next one that is used, and it is zeroed again.
  const Block third(kBytes);
  EXPECT_EQ(third.data(), data);
  EXPECT_TRUE(is_all(third, std::byte{0}));
}

TEST(Pages, ThreadsTakeAndGiveTogether) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const auto mark = static_cast<std::byte>(thread + 1);
      for (int round = 0; round < 100; ++round) {
        const Block block(kUnit * static_cast<std::size_t>(3 + (round + thread * 7) % 20));
        if (!is_all(block, std::byte{0})) ++wrong;
        std::memset(block.data(), static_cast<int>(mark), block.bytes());
        if (!is_all(block, mark)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// A child process of a fork can take blocks while other threads of its parent do the same.
TEST(Pages, AForkedProcessTakesBlocks) {
  std::atomic<bool> is_done{false};
  std::thread busy([&] {
    while (!is_done) const Block block(4 * kUnit);
  });
  for (int round = 0; round < 50; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // a deadlock ends the child
      const Block block(4 * kUnit);
      ::_exit(is_all(block, std::byte{0}) ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  is_done = true;
  busy.join();
}

}  // namespace
}  // namespace engine
