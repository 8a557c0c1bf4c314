// framing_probe_fuzz.cc: guesses about bytes. They never throw, and a framing that explains a whole stream reads it.
#include <algorithm>
#include <optional>

#include "engine/data/framing.h"
#include "engine/data/framing_probe.h"
#include "target.h"

namespace {

using namespace engine::data;

std::uint64_t count_records(const Framing& framing, Bytes stream) {
  FrameReader reader(framing, "stream");
  std::uint64_t count = 0;
  const auto take = [&] {
    while (const std::optional<Records> records = reader.take(16, 1 << 20, true)) count += records->size();
  };
  reader.feed(stream);
  take();
  reader.finish();
  take();
  return count;
}

// A fuzzer tries one framing per input, chosen by its first byte: eighteen short runs find more than one long run. The
// replay of the corpus tries all.
#ifdef MONOLITH_FUZZING
constexpr bool kTriesAll = false;
#else
constexpr bool kTriesAll = true;
#endif
constexpr std::uint32_t kFramings = Framing::kTfRecord + 2;

// Input: most records, stream.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const std::uint8_t first = input.byte();
  const std::size_t most_records = std::size_t{1} + first;
  const Bytes stream = input.rest();
  fuzz::expect(fuzz::accepts([&] { (void)fit_messages(stream); }), "comparing with messages failed");
  for (std::uint32_t bits = 0; bits <= Framing::kBare; ++bits) {
    if (bits > Framing::kTfRecord && bits < Framing::kBare) continue;
    if (!kTriesAll && std::min(bits, kFramings - 1) != first % kFramings) continue;
    const Framing framing = Framing::of(bits);
    for (const bool is_whole : {false, true}) {
      FramingProbe probe;
      fuzz::expect(fuzz::accepts([&] { probe = probe_framing(framing, stream, most_records, is_whole); }),
                   "probing failed");
      fuzz::expect(probe.records <= most_records && probe.empty <= probe.records, "records are miscounted");
      fuzz::expect(probe.bytes <= stream.size(), "records take more bytes than there are");
      for (const MessageFit& fit : probe.fit) fuzz::expect(fit.misfits <= probe.records, "misfits are miscounted");
      if (!is_whole || !probe.damage.empty() || probe.records == most_records) continue;
      std::uint64_t count = 0;
      fuzz::expect(fuzz::accepts([&] { count = count_records(framing, stream); }),
                   "a framing was found good and does not read the stream");
      fuzz::expect(count == probe.records, "the reader finds another number of records");
    }
  }
}

const fuzz::Target target("framing_probe", run, fuzz::Layout::kMessage, 1);

}  // namespace
