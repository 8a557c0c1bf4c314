// row_fault.h: the errors of operations on rows. Private to the engine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/data/row_op.h"
#include "wire.h"

namespace engine::data {

// Throws RecordCorrupt that names the row.
[[noreturn]] void throw_row_fault(const RowView& row, std::size_t index, const wire::Malformed& fault);
[[noreturn]] void throw_no_mark(std::uint64_t mark);

}  // namespace engine::data
