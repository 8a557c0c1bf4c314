// client_marks.h: which pushes of which client are done, so that a repeated one is not applied twice.
#pragma once

#include <bitset>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "dataplane/error.h"
#include "dataplane/push_gate.h"
#include "dataplane/wire.h"

namespace dataplane {

// Per client: the highest sequence done, and which of the 4096 below it are. Of more than kMaxClients, those that have
// been silent the longest are forgotten. Concurrent.
class ClientMarks {
 public:
  static constexpr std::size_t kWindow = 4096;
  static constexpr std::size_t kMaxClients = 16384;

  enum class Answer : std::uint8_t { kApply, kRepeat };

  // Whether to apply a push; kApply is to be followed by finish(). Waits while another thread applies the same one.
  // Throws SequenceForgotten, and Late when the wait takes too long.
  Answer begin(std::uint64_t client, std::uint64_t sequence, Deadline deadline);
  void finish(std::uint64_t client, std::uint64_t sequence, bool is_done) noexcept;

  // Waits until all of these are done, or can no longer be told from those that are. False at the deadline.
  bool wait_until_done(std::span<const PushName> pushes, Deadline deadline);

  // All marks as bytes; and back, replacing the present ones. load() throws SnapshotCorrupt.
  [[nodiscard]] std::vector<std::byte> save() const;
  void load(Bytes marks);

  [[nodiscard]] std::size_t clients() const;

 private:
  struct Client {
    bool has_any = false;
    std::uint64_t highest = 0;
    std::bitset<kWindow> below;  // bit k: highest - 1 - k
    std::uint64_t last_use = 0;
    std::vector<std::uint64_t> running;

    [[nodiscard]] bool is_done(std::uint64_t sequence) const noexcept;
    void mark(std::uint64_t sequence) noexcept;
  };

  Client& client_of(std::uint64_t client);

  mutable std::mutex mutex_;
  std::condition_variable finished_;
  std::unordered_map<std::uint64_t, Client> clients_;
  std::uint64_t uses_ = 0;
};

}  // namespace dataplane
