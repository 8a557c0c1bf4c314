// framing_probe.h: guesses: which message bytes could be, and how well a framing explains the start of a stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/data/framing.h"
#include "engine/data/records.h"

namespace engine::data {

// The messages that a record can be, in the order of `RecordFit` arrays.
enum class Message : std::uint8_t { kInstance, kExample, kExampleBatch, kExampleBatchRowMajor, kTfExample };
inline constexpr std::size_t kMessages = 5;

// How records compare with one message type, over all its levels.
struct MessageFit {
  std::uint64_t known = 0;    // fields that the message has, of the right wire type
  std::uint64_t unknown = 0;  // well-formed fields that it does not have, and required ones that are missing
  std::uint64_t misfits = 0;  // records that cannot be this message at all

  void add(const MessageFit& other) noexcept {
    known += other.known;
    unknown += other.unknown;
    misfits += other.misfits;
  }
};
using RecordFit = std::array<MessageFit, kMessages>;

// Compares one payload with every message. Never throws, whatever the bytes; time is linear in them. Concurrent.
[[nodiscard]] RecordFit fit_messages(Bytes payload);

// Result of reading the start of a stream with one framing.
struct FramingProbe {
  std::uint64_t records = 0;    // complete ones seen
  std::uint64_t empty = 0;      // of them, without payload
  std::uint64_t bytes = 0;      // that they take, frames included
  bool has_zero_words = true;   // every word before the size was 0 (and every sort id empty)
  bool has_high_words = false;  // a lagrangex word had bits that no writer sets
  bool is_cut = false;          // the bytes end inside a record: not damage when more follow
  std::string damage;           // why it cannot be this framing, or empty
  RecordFit fit;
};

// Reads at most `most_records` records of `bytes`. `is_whole`: the stream ends with them. Concurrent.
[[nodiscard]] FramingProbe probe_framing(const Framing& framing, Bytes bytes, std::size_t most_records, bool is_whole);

}  // namespace engine::data
