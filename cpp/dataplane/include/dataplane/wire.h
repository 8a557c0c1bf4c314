// wire.h: the bytes of the data plane: frames, handshake, requests and replies. Knows tables by number and width only.
//
//   frame   := u32 payload bytes, u16 kind, u16 flags, u64 request, u32 timeout_ms, u32 zero, payload
//   hello   := u64 magic, u32 version, u32 token bytes, u32 shard, u32 shards, u64 hash of the tables, token
//   welcome := u64 instance of the server, u64 largest payload that it takes
//   pull    := list, per table: i64 ids                             list := u32 tables, per table: u32 number, u32 ids
//   rows    := per table: float rows
//   push    := u64 client, u64 sequence, i64 time_s, i64 step, list, per table: i64 ids, u32 counts, f32 rates, float
//              gradients; then a job record or nothing
//                                                    list := u32 tables, per table: u32 number, u32 ids, u32 rates
//              job record := u64 "jobrecrd", u64 key, u64 revision, u64 bytes, value
//   applied := nothing
//   error   := u32 code, text
//
// Everything is little-endian. A float has 32 bits, or 16 with the flag. Lists and arrays of a request are padded with
// zeros to 8 bytes each. Tables come in rising order of their numbers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dataplane/error.h"
#include "dataplane/job_records.h"

namespace dataplane {

static_assert(std::endian::native == std::endian::little, "the wire and the memory are little-endian");

using Bytes = std::span<const std::byte>;

inline constexpr std::uint64_t kMagic = 0x3176'7370'6f6e'6f6dULL;      // "monopsv1"
inline constexpr std::uint64_t kJobRecord = 0x6472'6365'7262'6f6aULL;  // "jobrecrd"
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kMaxTokenBytes = 1024;
inline constexpr std::size_t kMaxHelloBytes = 40 + kMaxTokenBytes;
inline constexpr std::size_t kMaxErrorBytes = std::size_t{64} << 10;

// --- frames ---

enum class Kind : std::uint16_t {
  kHello = 1,
  kPull = 2,
  kPush = 3,
  kWelcome = 129,
  kRows = 130,
  kApplied = 131,
  kError = 255,
};

inline constexpr std::uint16_t kHalf = 1;        // floats have 16 bits
inline constexpr std::uint16_t kMayRetry = 2;    // of an error: the same request may succeed later
inline constexpr std::uint16_t kNotApplied = 4;  // of an error: nothing was changed
inline constexpr std::uint16_t kKnownFlags = 7;

struct FrameHeader {
  std::uint32_t bytes = 0;
  Kind kind = Kind::kError;
  std::uint16_t flags = 0;
  std::uint64_t request = 0;
  std::uint32_t timeout_ms = 0;  // how long the sender of a request waits for its answer
  std::uint32_t zero = 0;
};
static_assert(sizeof(FrameHeader) == 24);

// Throws Disconnected when no frame can begin so: the stream is of another protocol, or has lost its place.
void check_header(const FrameHeader& header, std::size_t max_bytes);

// --- handshake ---

struct Hello {
  std::uint32_t shard = 0;
  std::uint32_t shards = 1;
  std::uint64_t tables_hash = 0;
  std::string token;
};

struct Welcome {
  std::uint64_t instance = 0;
  std::uint64_t max_frame_bytes = 0;
};

[[nodiscard]] std::vector<std::byte> encode_hello(const Hello& hello);
// Throws Disconnected.
[[nodiscard]] Hello parse_hello(Bytes payload);
// Takes as long for a wrong token as for the right one.
[[nodiscard]] bool is_same_token(std::string_view given, std::string_view expected) noexcept;
// Hash of names in sorted order and widths: both sides must agree before rows can travel without their names.
[[nodiscard]] std::uint64_t hash_tables(std::span<const std::string> names, std::span<const std::uint32_t> dims);

// --- requests ---

// Widths of a table, for the parser of a request.
struct TableShape {
  std::uint32_t dim = 0;
  std::uint32_t slices = 0;
};

struct PullTable {
  std::uint32_t number = 0;
  std::span<const std::int64_t> ids;
};

struct PullRequest {
  std::vector<PullTable> tables;
};

struct PushTable {
  std::uint32_t number = 0;
  std::span<const std::int64_t> ids;
  std::span<const std::uint32_t> counts;  // sightings behind each id
  std::span<const float> rates;           // one per slice
  const std::byte* gradients = nullptr;   // (ids, dim)
};

struct PushRequest {
  std::uint64_t client = 0;
  std::uint64_t sequence = 0;
  std::int64_t time_s = 0;
  std::int64_t step = 0;
  std::vector<PushTable> tables;
  std::optional<JobRecord> record = std::nullopt;  // replaced together with the rows
};

// The spans lie in the payload, which begins at a multiple of 8. Throw engine::ConfigError, or DimensionMismatch for a
// number of rates that is not the table's.
[[nodiscard]] PullRequest parse_pull(Bytes payload, std::span<const TableShape> tables);
[[nodiscard]] PushRequest parse_push(Bytes payload, std::span<const TableShape> tables, bool half);

constexpr std::size_t padded(std::size_t bytes) noexcept { return (bytes + 7) / 8 * 8; }
constexpr std::size_t float_bytes(bool half) noexcept { return half ? 2 : 4; }

// The beginning of a request, up to the first id.
[[nodiscard]] std::vector<std::byte> encode_pull_list(std::span<const PullTable> tables);
[[nodiscard]] std::vector<std::byte> encode_push_list(const PushRequest& request);
// The end of a push, behind the last gradient.
[[nodiscard]] std::vector<std::byte> encode_job_record(const JobRecord& record);

// --- errors ---

[[nodiscard]] std::vector<std::byte> encode_error(Code code, std::string_view text);
struct RemoteError {
  Code code = Code::kEngine;
  std::string text;
};
[[nodiscard]] RemoteError parse_error(Bytes payload);

}  // namespace dataplane
