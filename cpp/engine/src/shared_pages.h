// shared_pages.h: huge pages that blocks of a process share. A part of a medium table has blocks smaller than a huge
// page, and the end of a larger block fills no huge page; in small pages, most reads of them would walk the page table.
//
// Blocks of one size share pages. The parts of a table are about equally large, so they leave a size at the same time,
// and whole pages come free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace engine {

class SharedPages {
 public:
  static SharedPages& instance();

  // Eight sizes from each power of two to the next, so that blocks of about one size have the same.
  [[nodiscard]] static std::size_t size_for(std::size_t bytes) noexcept;

  // Zeroed memory of one of these sizes. Throws std::bad_alloc. Concurrent.
  std::byte* take(std::size_t size);
  // The end of a block. A huge page without blocks returns to the system. Concurrent.
  void give(std::byte* data, std::size_t size) noexcept;

 private:
  class Region;

  SharedPages();

  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::unique_ptr<Region>>> regions_;  // by size of their blocks
};

}  // namespace engine
