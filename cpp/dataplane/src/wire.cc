// wire.cc: takes requests apart, with every length checked before it is believed.
#include "dataplane/wire.h"

#include <algorithm>
#include <cstring>

namespace dataplane {

namespace {

// Appends numbers; a request's beginning is small.
class Writer {
 public:
  template <class Value>
  Writer& put(Value value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof value);
    return *this;
  }
  Writer& put_text(std::string_view text) {
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), bytes, bytes + text.size());
    return *this;
  }
  std::vector<std::byte> take_padded() {
    bytes_.resize(padded(bytes_.size()));
    return take();
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  Reader(Bytes payload, const char* what) : payload_(payload), what_(what) {}

  template <class Value>
  Value number() {
    Value value{};
    std::memcpy(&value, take(sizeof(Value)), sizeof(Value));
    return value;
  }

  // `count` values that lie in the payload, and the padding behind them.
  template <class Value>
  std::span<const Value> array(std::size_t count) {
    const auto* data = reinterpret_cast<const Value*>(take(count * sizeof(Value)));
    pad();
    return {data, count};
  }
  const std::byte* block(std::size_t bytes) {
    const std::byte* data = take(bytes);
    pad();
    return data;
  }
  void pad() { take(padded(at_) - at_); }
  [[nodiscard]] bool is_at_end() const noexcept { return at_ == payload_.size(); }

  void finish() const {
    if (!is_at_end()) {
      throw engine::ConfigError(std::string(what_) + " has " + std::to_string(payload_.size() - at_) +
                                " bytes more than its list of tables counts; both sides must run the same release");
    }
  }

 private:
  const std::byte* take(std::size_t bytes) {
    if (bytes > payload_.size() - at_) {
      throw engine::ConfigError(std::string(what_) + " ends early: " + std::to_string(bytes) +
                                " bytes are due at byte " + std::to_string(at_) + " of " +
                                std::to_string(payload_.size()) + "; both sides must run the same release");
    }
    const std::byte* data = payload_.data() + at_;
    at_ += bytes;
    return data;
  }

  Bytes payload_;
  const char* what_;
  std::size_t at_ = 0;
};

struct Entry {
  std::uint32_t number;
  std::uint32_t ids;
  std::uint32_t rates;
};

std::vector<Entry> read_list(Reader& reader, std::span<const TableShape> tables, bool has_rates) {
  const auto count = reader.number<std::uint32_t>();
  if (count == 0) throw engine::ConfigError("the request names no table; name at least one");
  if (count > tables.size()) {
    throw engine::ConfigError("the request names " + std::to_string(count) + " tables, the server has " +
                              std::to_string(tables.size()) + "; connect with the server's list of tables");
  }
  std::vector<Entry> entries(count);
  for (std::size_t i = 0; i < count; ++i) {
    Entry& entry = entries[i];
    entry.number = reader.number<std::uint32_t>();
    entry.ids = reader.number<std::uint32_t>();
    entry.rates = has_rates ? reader.number<std::uint32_t>() : 0;
    if (entry.number >= tables.size()) {
      throw engine::ConfigError("the request names table number " + std::to_string(entry.number) +
                                ", the server's go from 0 to " + std::to_string(tables.size() - 1) +
                                "; connect with the server's list of tables");
    }
    if (i > 0 && entry.number <= entries[i - 1].number) {
      throw engine::ConfigError("table number " + std::to_string(entry.number) + " comes after " +
                                std::to_string(entries[i - 1].number) + "; name each table once, in rising order");
    }
    if (has_rates && entry.rates != tables[entry.number].slices) {
      throw engine::DimensionMismatch("table number " + std::to_string(entry.number) + " has " +
                                      std::to_string(tables[entry.number].slices) + " slices, got " +
                                      std::to_string(entry.rates) + " learning rates");
    }
  }
  reader.pad();
  return entries;
}

JobRecord read_job_record(Reader& reader, std::uint64_t client) {
  if (reader.number<std::uint64_t>() != kJobRecord) {
    throw engine::ConfigError(
        "the push has other bytes behind its tables, expected a job record; both sides must run "
        "the same release");
  }
  JobRecord record{.key = reader.number<std::uint64_t>(), .client = client, .revision = 0, .value = {}};
  record.revision = reader.number<std::uint64_t>();
  const auto bytes = reader.number<std::uint64_t>();
  JobRecords::check(record.key, bytes);
  record.value.assign(reinterpret_cast<const char*>(reader.block(bytes)), bytes);
  return record;
}

}  // namespace

void check_header(const FrameHeader& header, std::size_t max_bytes) {
  if (header.zero != 0 || (header.flags & ~kKnownFlags) != 0) throw Disconnected("the peer sent no valid frame");
  if (header.bytes > max_bytes) {
    throw Disconnected("a frame of " + std::to_string(header.bytes) + " bytes is announced, the limit is " +
                       std::to_string(max_bytes));
  }
}

std::vector<std::byte> encode_hello(const Hello& hello) {
  return Writer()
      .put(kMagic)
      .put(kVersion)
      .put(static_cast<std::uint32_t>(hello.token.size()))
      .put(hello.shard)
      .put(hello.shards)
      .put(hello.tables_hash)
      .put_text(hello.token)
      .take();
}

Hello parse_hello(Bytes payload) {
  try {
    Reader reader(payload, "the hello");
    if (reader.number<std::uint64_t>() != kMagic) throw Disconnected("the peer speaks another protocol");
    const auto version = reader.number<std::uint32_t>();
    if (version != kVersion) {
      throw Disconnected("the peer speaks version " + std::to_string(version) + " of the protocol, this is version " +
                         std::to_string(kVersion) + "; both sides must run the same release");
    }
    const auto token_bytes = reader.number<std::uint32_t>();
    Hello hello;
    hello.shard = reader.number<std::uint32_t>();
    hello.shards = reader.number<std::uint32_t>();
    hello.tables_hash = reader.number<std::uint64_t>();
    constexpr std::size_t kFixedBytes = 32;
    if (payload.size() - kFixedBytes != token_bytes) throw Disconnected("the token's length is wrong");
    hello.token.assign(reinterpret_cast<const char*>(payload.data()) + kFixedBytes, token_bytes);
    return hello;
  } catch (const engine::ConfigError& error) {
    throw Disconnected(error.what());
  }
}

bool is_same_token(std::string_view given, std::string_view expected) noexcept {
  unsigned difference = given.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const char other = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned char>(other) ^ static_cast<unsigned char>(expected[i]);
  }
  return difference == 0;
}

std::uint64_t hash_tables(std::span<const std::string> names, std::span<const std::uint32_t> dims) {
  // FNV-1a, of each name, its end, and the width.
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  const auto mix = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3ULL; };
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (const char c : names[i]) mix(static_cast<unsigned char>(c));
    mix(0);
    for (int shift = 0; shift < 32; shift += 8) mix(static_cast<unsigned char>(dims[i] >> shift));
  }
  return hash;
}

PullRequest parse_pull(Bytes payload, std::span<const TableShape> tables) {
  Reader reader(payload, "the pull");
  PullRequest request;
  for (const Entry& entry : read_list(reader, tables, false)) {
    request.tables.push_back({entry.number, reader.array<std::int64_t>(entry.ids)});
  }
  reader.finish();
  return request;
}

PushRequest parse_push(Bytes payload, std::span<const TableShape> tables, bool half) {
  Reader reader(payload, "the push");
  PushRequest request;
  request.client = reader.number<std::uint64_t>();
  request.sequence = reader.number<std::uint64_t>();
  request.time_s = reader.number<std::int64_t>();
  request.step = reader.number<std::int64_t>();
  for (const Entry& entry : read_list(reader, tables, true)) {
    PushTable& table = request.tables.emplace_back();
    table.number = entry.number;
    table.ids = reader.array<std::int64_t>(entry.ids);
    table.counts = reader.array<std::uint32_t>(entry.ids);
    table.rates = reader.array<float>(entry.rates);
    table.gradients = reader.block(std::size_t{entry.ids} * tables[entry.number].dim * float_bytes(half));
  }
  if (!reader.is_at_end()) request.record = read_job_record(reader, request.client);
  reader.finish();
  return request;
}

std::vector<std::byte> encode_pull_list(std::span<const PullTable> tables) {
  Writer writer;
  writer.put(static_cast<std::uint32_t>(tables.size()));
  for (const PullTable& table : tables) {
    writer.put(table.number).put(static_cast<std::uint32_t>(table.ids.size()));
  }
  return writer.take_padded();
}

std::vector<std::byte> encode_push_list(const PushRequest& request) {
  Writer writer;
  writer.put(request.client).put(request.sequence).put(request.time_s).put(request.step);
  writer.put(static_cast<std::uint32_t>(request.tables.size()));
  for (const PushTable& table : request.tables) {
    writer.put(table.number)
        .put(static_cast<std::uint32_t>(table.ids.size()))
        .put(static_cast<std::uint32_t>(table.rates.size()));
  }
  return writer.take_padded();
}

std::vector<std::byte> encode_job_record(const JobRecord& record) {
  Writer writer;
  writer.put(kJobRecord);
  writer.put(record.key).put(record.revision).put(std::uint64_t{record.value.size()}).put_text(record.value);
  return writer.take_padded();
}

std::vector<std::byte> encode_error(Code code, std::string_view text) {
  return Writer().put(code).put_text(text.substr(0, kMaxErrorBytes - sizeof code)).take();
}

RemoteError parse_error(Bytes payload) {
  RemoteError error;
  if (payload.size() < sizeof error.code) throw Disconnected("an error came without a code");
  std::memcpy(&error.code, payload.data(), sizeof error.code);
  error.text.assign(reinterpret_cast<const char*>(payload.data()) + sizeof error.code,
                    payload.size() - sizeof error.code);
  return error;
}

}  // namespace dataplane
