// module.h: the pieces that make up monolith._native.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "engine/pool.h"
#include "gil.h"

void bind_codec(nanobind::module_& m);

namespace bindings {

namespace nb = nanobind;

// The pool of this process. All share it, so that many tables do not mean many threads.
const std::shared_ptr<engine::Pool>& shared_pool();

// The text of an error; bytes that are not UTF-8 become escapes.
nb::object message(const char* text);

void bind_errors(nb::module_& m);
void bind_table(nb::module_& m);
void bind_snapshot(nb::module_& m);
void bind_delta(nb::module_& m);
void bind_image(nb::module_& m);
void bind_records(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_transforms(nb::module_& m);
void bind_framing(nb::module_& m);
void bind_columns(nb::module_& m);
void bind_text(nb::module_& m);
void bind_layouts(nb::module_& m);
void bind_pairs(nb::module_& m);
void bind_dataplane(nb::module_& m);
void bind_eventlog(nb::module_& m);
void bind_joiner(nb::module_& m);
void bind_serving(nb::module_& m);

}  // namespace bindings
