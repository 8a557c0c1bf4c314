// bind_image.cc: exposes table images to Python; converts and forwards.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <tuple>

#include "engine/table_image.h"
#include "module.h"
#include "path.h"

namespace bindings {

using namespace nb::literals;

void bind_image(nb::module_& m) {
  m.def(
      "write_image",
      [](engine::Table& table, const Path& path) {
        const engine::ImageFile file = engine::write_image(table, path);
        return std::tuple(file.bytes, file.rows);
      },
      "table"_a, "path"_a, nb::call_guard<ReleasedGil>(), "Write a serving table; return (bytes, rows).");
  m.def(
      "load_image",
      [](engine::Table& table, const Path& path, std::uint64_t bytes, bool is_read) {
        using Memory = engine::TableImage::Memory;
        auto image =
            std::make_unique<engine::TableImage>(path, bytes, table, is_read ? Memory::kRead : Memory::kMapped);
        const bool is_mapped = image->is_mapped();
        table.adopt(std::move(image));
        return is_mapped;
      },
      "table"_a, "path"_a, "bytes"_a, "is_read"_a, nb::call_guard<ReleasedGil>(),
      "Let an empty serving table use an image; return whether the file is mapped.");
}

}  // namespace bindings
