// session.h: the server's side of one connection. Private to the data plane.
#pragma once

#include <optional>

#include "dataplane/listener.h"

namespace dataplane {

class Session {
 public:
  Session(const Socket& socket, Shard& shard, const ListenerConfig& config, ByteBudget& budget)
      : socket_(socket), shard_(shard), config_(config), budget_(budget) {}

  // Serves until the peer leaves, misbehaves or the socket is shut down.
  void run() noexcept;

 private:
  void greet();
  // False when the peer has left.
  bool serve_one();
  // The request's share of the byte budget; none when its deadline passed, after an error reply.
  std::optional<ByteBudget::Share> take_share(const FrameHeader& header, Deadline deadline);
  void serve(const FrameHeader& header, Bytes payload, Deadline deadline);
  void pull(const FrameHeader& header, Bytes payload, Deadline deadline);
  void push(const FrameHeader& header, Bytes payload, Deadline deadline);
  void send_frame(const FrameHeader& to, Kind kind, std::uint16_t flags, Bytes payload, Deadline deadline);

  const Socket& socket_;
  Shard& shard_;
  const ListenerConfig& config_;
  ByteBudget& budget_;
};

}  // namespace dataplane
