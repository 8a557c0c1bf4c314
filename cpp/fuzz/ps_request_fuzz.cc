// ps_request_fuzz.cc: bytes that a parameter server reads: requests, greetings and headers of peers, and its marks.
#include <cstring>
#include <vector>

#include "dataplane/client_marks.h"
#include "dataplane/wire.h"
#include "target.h"

namespace {

using fuzz::Bytes;

constexpr dataplane::TableShape kTables[] = {{2, 1}, {5, 2}, {16, 1}};

bool lies_in(Bytes inner, Bytes outer) {
  return inner.empty() || (inner.data() >= outer.data() && inner.data() + inner.size() <= outer.data() + outer.size());
}

void read_pull(Bytes payload) {
  fuzz::accepts([&] {
    const auto request = dataplane::parse_pull(payload, kTables);
    std::size_t bytes = dataplane::encode_pull_list(request.tables).size();
    for (const auto& table : request.tables) {
      fuzz::expect(lies_in(std::as_bytes(table.ids), payload), "ids lie outside the request");
      bytes += table.ids.size_bytes();
    }
    fuzz::expect(bytes == payload.size(), "a pull of another length was taken");
  });
}

void read_push(Bytes payload, bool half) {
  fuzz::accepts([&] {
    const auto request = dataplane::parse_push(payload, kTables, half);
    std::size_t bytes = dataplane::encode_push_list(request).size();
    for (const auto& table : request.tables) {
      const std::size_t floats = table.ids.size() * kTables[table.number].dim;
      const Bytes gradients{table.gradients, floats * dataplane::float_bytes(half)};
      for (const Bytes part :
           {std::as_bytes(table.ids), std::as_bytes(table.counts), std::as_bytes(table.rates), gradients}) {
        fuzz::expect(lies_in(part, payload), "an array lies outside the request");
        bytes += dataplane::padded(part.size());
      }
      fuzz::expect(table.counts.size() == table.ids.size(), "there is another number of counts");
    }
    if (request.record) bytes += dataplane::encode_job_record(*request.record).size();
    fuzz::expect(bytes == payload.size(), "a push of another length was taken");
  });
}

void read_hello(Bytes payload) {
  fuzz::accepts([&] {
    const auto hello = dataplane::parse_hello(payload);
    const auto again = dataplane::encode_hello(hello);
    fuzz::expect(again.size() == payload.size() && std::memcmp(again.data(), payload.data(), again.size()) == 0,
                 "another hello comes back");
  });
}

void read_marks(Bytes payload) {
  fuzz::accepts([&] {
    dataplane::ClientMarks marks;
    marks.load(payload);
    const auto saved = marks.save();
    dataplane::ClientMarks again;
    again.load(saved);
    fuzz::expect(again.save() == saved, "other marks come back");
  });
}

// Input: the kind of message, and its bytes.
void run(Bytes bytes) {
  fuzz::Input input(bytes);
  const std::uint8_t kind = input.byte();
  const Bytes rest = input.rest();
  // As on the server: at a multiple of 8.
  std::vector<std::uint64_t> words((rest.size() + 7) / 8);
  if (!rest.empty()) std::memcpy(words.data(), rest.data(), rest.size());
  const Bytes payload{reinterpret_cast<const std::byte*>(words.data()), rest.size()};
  switch (kind % 5) {
    case 0:
      return read_pull(payload);
    case 1:
      return read_push(payload, false);
    case 2:
      return read_push(payload, true);
    case 3:
      return read_hello(payload);
    default:
      return read_marks(payload);
  }
}

const fuzz::Target target("ps_request", run);

}  // namespace
