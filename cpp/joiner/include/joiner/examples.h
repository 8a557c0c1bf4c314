// examples.h: Examples as input events and output rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "joiner/events.h"

namespace joiner {

// An event of an Example. Views refer to the record or to `line_id`.
struct ExampleEvent {
  bool is_action;
  std::int64_t time;
  std::string_view key;
  std::uint64_t item;
  std::uint64_t event_id;
  std::vector<std::int32_t> codes;  // of an action, sorted, without repetitions
  std::string payload;              // of an impression: the Example without key, item and time
};

// Reads well-formed records of the common form. Refuses the rest, which monolith.stream.EventParser judges: it accepts
// rare forms, and names the reason of a dead letter. One thread uses a reader.
class ExampleReader {
 public:
  // Returns false if the record is malformed, incomplete or rare.
  bool read(std::string_view record, std::string_view record_key, std::optional<std::int64_t> record_time,
            ExampleEvent& event);

 private:
  std::string line_id_;
};

// Appends the Example of a row to `out`: features as served, labels, weight and LineId. Writes the bytes that
// monolith.stream.RowAssembler writes for a canonical payload.
void assemble(const Rows& rows, std::size_t index, std::size_t tasks, std::string_view payload,
              std::int64_t join_time, std::string& out);

}  // namespace joiner
