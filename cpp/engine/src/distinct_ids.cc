// distinct_ids.cc: the scratch in which duplicates are found.
#include "distinct_ids.h"

#include <cstring>

namespace engine {

namespace {

Reused<std::uint32_t>& thread_numbers() noexcept {
  static thread_local Reused<std::uint32_t> numbers;
  return numbers;
}

}  // namespace

std::size_t distinct_scratch_bytes() noexcept { return thread_numbers().bytes(); }

void release_distinct_scratch() noexcept { thread_numbers() = Reused<std::uint32_t>(); }

template <class Number>
Number* clear_numbers(std::size_t entries) {
  auto* numbers = reinterpret_cast<Number*>(thread_numbers().get(entries * sizeof(Number) / sizeof(std::uint32_t) + 1));
  std::memset(numbers, 0, entries * sizeof(Number));
  return numbers;
}

template std::uint16_t* clear_numbers<std::uint16_t>(std::size_t entries);
template std::uint32_t* clear_numbers<std::uint32_t>(std::size_t entries);

}  // namespace engine
