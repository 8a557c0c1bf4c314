// examples.h: Examples as input events and output rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "joiner/events.h"
#include "joiner/packer.h"

namespace joiner {

// An event of an Example. Views refer to the record or to `line_id`.
struct ExampleEvent {
  bool is_action;
  std::int64_t time;
  std::string_view key;
  std::uint64_t item;
  std::uint64_t event_id;
  std::vector<std::int32_t> codes;  // of an action, sorted, without repetitions
  std::string payload;              // of an impression, packed: the Example without key, item and time
};

// Reads well-formed records of the common form. Refuses the rest, which monolith.stream.EventParser judges: it accepts
// rare forms, and names the reason of a dead letter. One thread uses a reader.
class ExampleReader {
 public:
  // Returns false if the record is malformed, incomplete or rare.
  bool read(std::string_view record, std::string_view record_key, std::optional<std::int64_t> record_time,
            Packer& packer, ExampleEvent& event);

 private:
  std::string line_id_;
  std::string rest_;
};

// Fields of a message in the order of their numbers; fields of equal numbers stay in the order of `put`.
class SortedFields {
 public:
  void clear();
  void put(std::uint32_t number, std::string_view whole);
  void put_int(std::uint32_t number, std::uint64_t value);
  void put_fixed64(std::uint32_t number, std::uint64_t value);
  void put_float(std::uint32_t number, float value);
  void put_body(std::uint32_t number, std::string_view body);
  [[nodiscard]] std::size_t size() const noexcept { return buffer_.size(); }
  void write(std::string& out);

 private:
  struct Part {
    std::uint32_t number;
    std::uint32_t begin;
    std::uint32_t size;
  };

  void start(std::uint32_t number);
  void finish();

  std::string buffer_;
  std::vector<Part> parts_;
};

// Writes rows as Examples: features as served, labels, weight and LineId. The bytes equal those of
// monolith.stream.RowAssembler for a canonical payload. One thread uses a writer.
class ExampleWriter {
 public:
  // Appends the Example of a row to `out`. Throws engine::RecordCorrupt if the payload is not an Example.
  void write(const Rows& rows, std::size_t index, std::size_t tasks, const Packer& packer, std::int64_t join_time,
             std::string& out);

 private:
  void write_line(const Rows& rows, const Rows::Row& row, std::int64_t join_time, std::string& out);

  SortedFields fields_;
  std::string line_;
  std::string tail_;
  std::string codes_;
};

}  // namespace joiner
