// client_marks.cc: windows of sequences, and their form on disk.
//
//   marks  := u32 version, u32 clients, client*, those silent the longest first
//   client := u64 client, u64 highest, u32 runs, runs * {u32 back, u32 length}
//
// A run: the sequences highest - back, and length - 1 below it, are done. In steady training there is one.
#include "dataplane/client_marks.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace dataplane {

namespace {

constexpr std::uint32_t kMarksVersion = 1;

template <class Value>
void put(std::vector<std::byte>& out, Value value) {
  out.resize(out.size() + sizeof value);
  std::memcpy(out.data() + out.size() - sizeof value, &value, sizeof value);
}

template <class Value>
Value take(Bytes& bytes) {
  if (bytes.size() < sizeof(Value)) throw engine::SnapshotCorrupt("the client marks end early; use another snapshot");
  Value value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes = bytes.subspan(sizeof value);
  return value;
}

}  // namespace

bool ClientMarks::Client::is_done(std::uint64_t sequence) const noexcept {
  if (!has_any || sequence > highest) return false;
  const std::uint64_t back = highest - sequence;
  return back == 0 || (back <= kWindow && below.test(back - 1));
}

void ClientMarks::Client::mark(std::uint64_t sequence) noexcept {
  if (!has_any) {
    has_any = true;
    highest = sequence;
  } else if (sequence > highest) {
    const std::uint64_t ahead = sequence - highest;
    below <<= std::min<std::uint64_t>(ahead, kWindow);
    if (ahead <= kWindow) below.set(ahead - 1);
    highest = sequence;
  } else if (sequence < highest && highest - sequence <= kWindow) {
    below.set(highest - sequence - 1);
  }
}

ClientMarks::Client& ClientMarks::client_of(std::uint64_t client) {
  const auto [at, is_new] = clients_.try_emplace(client);
  at->second.last_use = ++uses_;
  if (is_new && clients_.size() > kMaxClients) {
    // The one just made has the largest last_use, so it stays.
    const auto oldest = std::min_element(clients_.begin(), clients_.end(), [](const auto& one, const auto& other) {
      if (one.second.running.empty() != other.second.running.empty()) return one.second.running.empty();
      return one.second.last_use < other.second.last_use;
    });
    if (oldest->second.running.empty() && oldest->first != client) clients_.erase(oldest);
  }
  return clients_.at(client);
}

ClientMarks::Answer ClientMarks::begin(std::uint64_t client, std::uint64_t sequence, Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    Client& known = client_of(client);
    if (known.is_done(sequence)) return Answer::kRepeat;
    if (known.has_any && sequence < known.highest && known.highest - sequence > kWindow) {
      throw SequenceForgotten("push " + std::to_string(sequence) + " of client " + std::to_string(client) +
                              " is more than " + std::to_string(kWindow) + " behind its push " +
                              std::to_string(known.highest) +
                              ", so it cannot be told whether it was applied; it is refused: number pushes upwards");
    }
    if (std::find(known.running.begin(), known.running.end(), sequence) == known.running.end()) {
      known.running.push_back(sequence);
      return Answer::kApply;
    }
    if (finished_.wait_until(lock, deadline) == std::cv_status::timeout) {
      throw Late("push " + std::to_string(sequence) + " of client " + std::to_string(client) +
                 " is still being applied for an earlier attempt; ask again");
    }
  }
}

void ClientMarks::finish(std::uint64_t client, std::uint64_t sequence, bool is_done) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto at = clients_.find(client);
    if (at != clients_.end()) {
      std::erase(at->second.running, sequence);
      if (is_done) at->second.mark(sequence);
    }
  }
  finished_.notify_all();
}

bool ClientMarks::wait_until_done(std::span<const PushName> pushes, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto is_done = [&](const PushName& push) {
    const auto at = clients_.find(push.client);
    if (at == clients_.end() || !at->second.has_any) return false;
    const Client& client = at->second;
    const bool is_forgotten = push.sequence < client.highest && client.highest - push.sequence > kWindow;
    return is_forgotten || client.is_done(push.sequence);
  };
  return finished_.wait_until(lock, deadline, [&] { return std::ranges::all_of(pushes, is_done); });
}

std::size_t ClientMarks::clients() const {
  const std::lock_guard lock(mutex_);
  return clients_.size();
}

std::vector<std::byte> ClientMarks::save() const {
  const std::lock_guard lock(mutex_);
  std::vector<const std::pair<const std::uint64_t, Client>*> ordered;
  for (const auto& entry : clients_) {
    if (entry.second.has_any) ordered.push_back(&entry);
  }
  std::sort(ordered.begin(), ordered.end(),
            [](const auto* one, const auto* other) { return one->second.last_use < other->second.last_use; });
  std::vector<std::byte> out;
  put(out, kMarksVersion);
  put(out, static_cast<std::uint32_t>(ordered.size()));
  for (const auto* entry : ordered) {
    const Client& client = entry->second;
    struct Run {
      std::uint32_t back;
      std::uint32_t length;
    };
    std::vector<Run> runs{{0, 1}};
    for (std::uint32_t back = 1; back <= kWindow; ++back) {
      if (!client.below.test(back - 1)) continue;
      if (runs.back().back + runs.back().length == back) {
        ++runs.back().length;
      } else {
        runs.push_back({back, 1});
      }
    }
    put(out, entry->first);
    put(out, client.highest);
    put(out, static_cast<std::uint32_t>(runs.size()));
    for (const Run& run : runs) put(out, run);
  }
  return out;
}

void ClientMarks::load(Bytes marks) {
  const auto version = take<std::uint32_t>(marks);
  if (version != kMarksVersion) {
    throw engine::SnapshotCorrupt("the client marks have version " + std::to_string(version) + ", this release reads " +
                                  std::to_string(kMarksVersion) + "; use a snapshot of this release");
  }
  std::unordered_map<std::uint64_t, Client> clients;
  std::uint64_t uses = 0;
  for (auto left = take<std::uint32_t>(marks); left > 0; --left) {
    Client& client = clients[take<std::uint64_t>(marks)];
    client.has_any = true;
    client.last_use = ++uses;
    client.highest = take<std::uint64_t>(marks);
    for (auto runs = take<std::uint32_t>(marks); runs > 0; --runs) {
      const auto back = take<std::uint32_t>(marks);
      const auto length = take<std::uint32_t>(marks);
      if (back > kWindow || length > kWindow + 1 - back) {
        throw engine::SnapshotCorrupt("the client marks name a push " + std::to_string(back) + " + " +
                                      std::to_string(length) + " behind the last; use another snapshot");
      }
      for (std::uint32_t i = std::max(back, 1U); i < back + length; ++i) client.below.set(i - 1);
    }
  }
  if (!marks.empty()) {
    throw engine::SnapshotCorrupt("the client marks have " + std::to_string(marks.size()) +
                                  " bytes too many; use another snapshot");
  }
  const std::lock_guard lock(mutex_);
  // Running pushes continue.
  for (auto& [number, client] : clients_) {
    if (!client.running.empty()) clients[number].running = std::move(client.running);
  }
  clients_ = std::move(clients);
  uses_ = uses;
}

}  // namespace dataplane
