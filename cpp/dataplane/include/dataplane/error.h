// error.h: failures between client and shard, beside the engine's errors.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/error.h"

namespace dataplane {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

// The caller has stopped waiting, so the work was not done.
class Late : public engine::Error {
 public:
  using Error::Error;
};

// The push is older than the shard's marks of this client, so the shard cannot tell whether it was applied.
class SequenceForgotten : public engine::Error {
 public:
  using Error::Error;
};

// Something broke in the middle of a push: rows may be changed. The push counts as applied.
class PartlyApplied : public engine::Error {
 public:
  using Error::Error;
};

// The other end of a socket is gone, or talks nonsense.
class Disconnected : public engine::Error {
 public:
  using Error::Error;
};

// Why a server refuses a request; the number that travels.
enum class Code : std::uint32_t {
  kConfig = 1,     // engine::ConfigError: malformed, misdirected or impossible
  kDimension = 2,  // engine::DimensionMismatch
  kCapacity = 3,   // engine::CapacityExceeded
  kEngine = 4,     // any other engine::Error
  kLate = 5,
  kForgotten = 6,
  kPartly = 7,
  kUnwelcome = 8,  // the handshake failed: token, version, shard or tables
  kBusy = 9,       // no place for another connection
};

// The failure of one server.
struct Failure {
  enum class Kind : std::uint8_t {
    kRefused,  // no process answers at the address, or the handshake failed
    kClosed,   // the connection broke
    kTimeout,
    kRemote,  // the server answered with an error
  };
  std::size_t server = 0;
  std::string address;
  Kind kind = Kind::kClosed;
  Code code = Code::kEngine;  // kRemote, and kRefused in the handshake
  std::string text;
  bool may_retry = false;
  bool is_surely_not_applied = false;
};

// A call failed at one server or more. Rows that it was to fill are not to be used.
class CallFailed : public engine::Error {
 public:
  // `failures` is not empty.
  explicit CallFailed(std::vector<Failure> all) : Error(describe(all)), failures(std::move(all)) {}

  // The failure that decides the caller's next step: one that no retry heals comes first.
  [[nodiscard]] const Failure& worst() const noexcept {
    for (const Failure& failure : failures) {
      if (!failure.may_retry) return failure;
    }
    return failures.front();
  }

  std::vector<Failure> failures;

 private:
  static std::string describe(const std::vector<Failure>& failures) {
    std::string text;
    for (const Failure& failure : failures) text += (text.empty() ? "" : "; ") + failure.address + ": " + failure.text;
    return text;
  }
};

}  // namespace dataplane
