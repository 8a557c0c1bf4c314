// bind_framing.cc: record framing: readers, writers, headers, and guesses about unknown bytes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "engine/data/column_encoder.h"
#include "engine/data/framing.h"
#include "engine/data/framing_probe.h"
#include "engine/error.h"
#include "module.h"
#include "path.h"

namespace bindings {

using namespace nb::literals;
using engine::data::FrameReader;
using engine::data::Framing;
using engine::data::FramingProbe;
using engine::data::Records;

namespace {

void make_reader(FrameReader* self, std::uint32_t framing, const StreamName& source, std::uint64_t offset,
                 std::uint64_t record) {
  new (self) FrameReader(Framing::of(framing), source, offset, record);
}

void feed(FrameReader& reader, nb::handle piece) {
  const Buffer view(piece);
  ReleasedGil unlocked;
  reader.feed(view.bytes());
}

std::optional<Records> take(FrameReader& reader, std::size_t most_records, std::size_t most_bytes, bool allow_short) {
  ReleasedGil unlocked;
  return reader.take(most_records, most_bytes, allow_short);
}

nb::bytes frame(std::uint32_t framing, nb::handle payload, nb::handle sort_id, std::uint32_t source_key) {
  const Buffer view(payload);
  const Buffer id(sort_id);
  std::vector<std::byte> out;
  engine::data::append_frame(out, Framing::of(framing), view.bytes(), id.bytes(), source_key);
  return as_bytes(out);
}

using Header = std::tuple<std::size_t, std::uint64_t, nb::bytes, std::uint64_t, std::uint64_t, std::uint64_t>;

Header read_frame_header(std::uint32_t framing, nb::handle data) {
  const Buffer view(data);
  const auto scan = engine::data::scan_header(Framing::of(framing), view.bytes());
  if (!scan.damage.empty()) throw engine::RecordCorrupt("record header: " + scan.damage);
  if (!scan.header.has_value()) {
    throw engine::RecordCorrupt("record header: " + std::to_string(view.bytes().size()) +
                                " bytes end inside it; give at least " + std::to_string(scan.needed_bytes));
  }
  const auto& header = *scan.header;
  return {header.bytes,          header.payload_size, nb::bytes(header.sort_id.data(), header.sort_id.size()),
          header.lagrangex_word, header.prefix_word,  header.skipped_word};
}

using Fit = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;

std::vector<Fit> as_fits(const engine::data::RecordFit& fits) {
  std::vector<Fit> out;
  for (const auto& fit : fits) out.emplace_back(fit.known, fit.unknown, fit.misfits);
  return out;
}

FramingProbe probe_framing(std::uint32_t framing, nb::handle data, std::size_t most_records, bool is_whole) {
  const Buffer view(data);
  const Framing parsed = Framing::of(framing);
  ReleasedGil unlocked;
  return engine::data::probe_framing(parsed, view.bytes(), most_records, is_whole);
}

std::vector<Fit> fit_records(const Records& records, std::size_t most_records) {
  engine::data::RecordFit total;
  const Records messages = engine::data::to_messages(records);
  for (std::size_t i = 0; i < messages.size() && i < most_records; ++i) {
    const auto fit = engine::data::fit_messages(messages[i]);
    for (std::size_t k = 0; k < engine::data::kMessages; ++k) total[k].add(fit[k]);
  }
  return as_fits(total);
}

}  // namespace

void bind_framing(nb::module_& m) {
  nb::class_<FrameReader>(m, "FrameReader", "The records of one stream, from pieces as they come.")
      .def("__init__", &make_reader, "framing"_a, "source"_a, "offset"_a = 0, "record"_a = 0)
      .def("feed", &feed, "piece"_a, nb::sig("def feed(self, piece: bytes | bytearray | memoryview) -> None"),
           "Add the next piece of the stream.")
      .def("take", &take, "most_records"_a, "most_bytes"_a, "allow_short"_a = false,
           "Give the next lot, or None when a full one is not here yet (with allow_short: no complete record).")
      .def("finish", &FrameReader::finish, "Say that no piece follows; an unfinished record is an error.")
      .def_prop_ro("offset", &FrameReader::offset, "Where the stream stands after the records taken.")
      .def_prop_ro("records", &FrameReader::records, "Records taken, from the start of the stream.")
      .def_prop_ro(
          "first_sort_id",
          [](const FrameReader& reader) {
            return nb::bytes(reader.first_sort_id().data(), reader.first_sort_id().size());
          },
          "The sort id of the first record that was seen.")
      .def_prop_ro(
          "source", [](const FrameReader& reader) { return StreamName(reader.source()); },
          "Name of the stream in errors.");
  nb::class_<FramingProbe>(m, "FramingProbe", "Result of reading the start of a stream with one framing.")
      .def_ro("records", &FramingProbe::records)
      .def_ro("empty", &FramingProbe::empty)
      .def_ro("bytes", &FramingProbe::bytes)
      .def_ro("has_zero_words", &FramingProbe::has_zero_words)
      .def_ro("has_high_words", &FramingProbe::has_high_words)
      .def_ro("is_cut", &FramingProbe::is_cut)
      .def_ro("damage", &FramingProbe::damage)
      .def_prop_ro(
          "fits", [](const FramingProbe& probe) { return as_fits(probe.fit); },
          "(known fields, unknown fields, records that cannot be it) of each kind of message.");
  m.def("frame", &frame, "framing"_a, "payload"_a, "sort_id"_a = nb::bytes("", 0), "source_key"_a = 0,
        nb::sig("def frame(framing: int, payload: bytes | bytearray | memoryview, "
                "sort_id: bytes | bytearray | memoryview = b'', source_key: int = 0) -> bytes"),
        "One framed record.");
  m.def("read_frame_header", &read_frame_header, "framing"_a, "data"_a,
        nb::sig("def read_frame_header(framing: int, data: bytes | bytearray | memoryview) "
                "-> tuple[int, int, bytes, int, int, int]"),
        "(header bytes, payload size, sort id, lagrangex word, prefix word, skipped word) of the first frame.");
  m.def("probe_framing", &probe_framing, "framing"_a, "data"_a, "most_records"_a, "is_whole"_a,
        nb::sig("def probe_framing(framing: int, data: bytes | bytearray | memoryview, most_records: int, "
                "is_whole: bool) -> FramingProbe"),
        "Read the start of a stream with one framing.");
  m.def("fit_records", &fit_records, "records"_a, "most_records"_a,
        "(known fields, unknown fields, records that cannot be it) of each kind of message, over the first records.");
}

}  // namespace bindings
