// module.cc: assembles monolith._native.
#include "module.h"

NB_MODULE(_native, m) {
#ifndef MONOLITH_LEAK_WARNINGS
  // After an error, frames and threads may outlive the module. The warnings would hide the message of the error.
  nanobind::set_leak_warnings(false);
#endif
  m.doc() = "The native engine. Private: use the public faces in monolith.embedding.";
  bindings::bind_errors(m);
  bind_codec(m);
  bindings::bind_table(m);
  bindings::bind_snapshot(m);
  bindings::bind_delta(m);
  bindings::bind_image(m);
  bindings::bind_records(m);
  bindings::bind_rows(m);
  bindings::bind_transforms(m);
  bindings::bind_framing(m);
  bindings::bind_columns(m);
  bindings::bind_text(m);
  bindings::bind_layouts(m);
  bindings::bind_pairs(m);
  bindings::bind_dataplane(m);
  bindings::bind_eventlog(m);
  bindings::bind_joiner(m);
  bindings::bind_serving(m);
}
