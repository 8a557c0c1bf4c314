// session.cc: reads frames, asks the shard, writes replies. All that a peer can delay ends with its own timeout.
#include "session.h"

#include <poll.h>

#include <algorithm>
#include <new>

#include "engine/data/records.h"

namespace dataplane {

namespace {

using namespace std::chrono_literals;
using engine::data::Buffer;

constexpr auto kHelloTime = 5s;     // from connecting to the end of the handshake
constexpr auto kHeaderTime = 5s;    // from the first byte of a header to its last
constexpr auto kErrorTime = 1s;     // to take an error reply
constexpr auto kMaxTimeout = 600s;  // whatever the peer asks for
constexpr auto kIdleTime = 1s;      // without a request, until the thread gives its scratch memory back

FrameHeader read_header(const Socket& socket, Deadline deadline) {
  FrameHeader header;
  Pieces room;
  room.add(&header, sizeof header);
  room.receive_all(socket, deadline);
  return header;
}

// Sends each piece as soon as it is filled, the header with the first.
class SocketSink final : public RowSink {
 public:
  SocketSink(const Socket& socket, const FrameHeader& header, Deadline deadline)
      : socket_(socket), header_(header), deadline_(deadline) {}

  std::byte* room(std::size_t bytes) override {
    if (!buffer_ || buffer_->size() < bytes) buffer_ = Buffer::take(bytes);
    at_ = buffer_->data();
    return at_;
  }
  void filled(std::size_t bytes) override {
    Pieces pieces;
    if (!has_begun_) pieces.add(&header_, sizeof header_);
    has_begun_ = true;
    pieces.add(at_, bytes);
    pieces.send_all(socket_, deadline_);
    at_ += bytes;
  }
  [[nodiscard]] bool has_begun() const noexcept { return has_begun_; }

 private:
  const Socket& socket_;
  FrameHeader header_;
  Deadline deadline_;
  std::shared_ptr<Buffer> buffer_;
  std::byte* at_ = nullptr;  // the bytes to send next
  bool has_begun_ = false;
};

// Bytes that a request takes while it is served: its frame, rows of half precision made wide, a window of the reply.
std::size_t memory_of(const FrameHeader& header) noexcept {
  if (header.kind == Kind::kPull) return header.bytes + kReplyWindowBytes;
  return (header.flags & kHalf) != 0 ? std::size_t{header.bytes} * 3 : header.bytes;
}

struct Refusal {
  Code code;
  std::uint16_t flags;
};

template <class Type>
bool is(const std::exception& error) noexcept {
  return dynamic_cast<const Type*>(&error) != nullptr;
}

Refusal refusal_of(const std::exception& error) noexcept {
  if (is<PartlyApplied>(error)) return {Code::kPartly, 0};
  if (is<SequenceForgotten>(error)) return {Code::kForgotten, 0};
  if (is<Late>(error)) return {Code::kLate, kMayRetry | kNotApplied};
  if (is<engine::DimensionMismatch>(error)) return {Code::kDimension, kNotApplied};
  if (is<engine::CapacityExceeded>(error)) return {Code::kCapacity, kNotApplied};
  if (is<engine::ConfigError>(error)) return {Code::kConfig, kNotApplied};
  if (is<std::bad_alloc>(error)) return {Code::kEngine, kMayRetry | kNotApplied};
  return {Code::kEngine, kNotApplied};
}

}  // namespace

void Session::run() noexcept {
  try {
    greet();
    while (serve_one()) {
    }
  } catch (const std::exception&) {
    // The peer is gone, or cannot be talked to: it sees the connection close.
  }
}

void Session::send_frame(const FrameHeader& to, Kind kind, std::uint16_t flags, Bytes payload, Deadline deadline) {
  const FrameHeader header{.bytes = static_cast<std::uint32_t>(payload.size()),
                           .kind = kind,
                           .flags = flags,
                           .request = to.request,
                           .timeout_ms = 0,
                           .zero = 0};
  Pieces pieces;
  pieces.add(&header, sizeof header);
  pieces.add(payload.data(), payload.size());
  pieces.send_all(socket_, deadline);
}

void Session::greet() {
  const Deadline deadline = Clock::now() + kHelloTime;
  const FrameHeader header = read_header(socket_, deadline);
  check_header(header, kMaxHelloBytes);
  if (header.kind != Kind::kHello) throw Disconnected("the first frame is not a hello");
  std::vector<std::byte> payload(header.bytes);
  Pieces room;
  room.add(payload.data(), payload.size());
  room.receive_all(socket_, deadline);
  const auto refuse = [&](const std::string& why) {
    send_frame(header, Kind::kError, kNotApplied, encode_error(Code::kUnwelcome, why), deadline);
    throw Disconnected(why);
  };
  Hello hello;
  try {
    hello = parse_hello(payload);
  } catch (const Disconnected& error) {
    refuse(error.what());
  }
  if (!is_same_token(hello.token, config_.token))
    refuse("the token is wrong; give the one the server was started with");
  if (hello.shard != shard_.index() || hello.shards != shard_.count()) {
    refuse("this is shard " + std::to_string(shard_.index()) + " of " + std::to_string(shard_.count()) + ", not " +
           std::to_string(hello.shard) + " of " + std::to_string(hello.shards) + "; check the order of the servers");
  }
  if (hello.tables_hash != shard_.tables_hash()) {
    refuse("the server has other tables (names or dims); start it with the tables of this model");
  }
  const Welcome welcome{.instance = shard_.instance(), .max_frame_bytes = config_.max_frame_bytes};
  send_frame(header, Kind::kWelcome, 0, std::as_bytes(std::span(&welcome, 1)), deadline);
}

bool Session::serve_one() {
  if (!wait_for(socket_, POLLIN, Clock::now() + kIdleTime)) {
    // One thread per connection: memory that an idle one keeps for its next write would add up.
    engine::Table::release_thread_scratch();
    (void)wait_for(socket_, POLLIN, Deadline::max());
  }
  if (has_hung_up(socket_)) return false;
  const FrameHeader header = read_header(socket_, Clock::now() + kHeaderTime);
  check_header(header, config_.max_frame_bytes);
  if (header.kind != Kind::kPull && header.kind != Kind::kPush) throw Disconnected("a frame is not a request");
  const Deadline deadline =
      Clock::now() + std::min<std::chrono::milliseconds>(std::chrono::milliseconds(header.timeout_ms), kMaxTimeout);
  // Kept until the reply is sent.
  const std::optional<ByteBudget::Share> share = take_share(header, deadline);
  if (!share) return false;
  const auto payload = Buffer::take(header.bytes);
  Pieces room;
  room.add(payload->data(), header.bytes);
  room.receive_all(socket_, deadline);
  // A client that has given up and left would not see the answer: its work is late, however long it lay in the socket.
  if (has_hung_up(socket_)) return false;
  serve(header, {payload->data(), header.bytes}, deadline);
  return true;
}

std::optional<ByteBudget::Share> Session::take_share(const FrameHeader& header, Deadline deadline) {
  try {
    return budget_.take(memory_of(header), deadline);
  } catch (const Late& error) {
    // The payload is not read, so the connection cannot be used any more.
    send_frame(header, Kind::kError, kMayRetry | kNotApplied, encode_error(Code::kLate, error.what()),
               Clock::now() + kErrorTime);
    return std::nullopt;
  }
}

void Session::serve(const FrameHeader& header, Bytes payload, Deadline deadline) {
  try {
    return header.kind == Kind::kPull ? pull(header, payload, deadline) : push(header, payload, deadline);
  } catch (const Disconnected&) {
    throw;
  } catch (const std::exception& error) {
    const Refusal refusal = refusal_of(error);
    send_frame(header, Kind::kError, refusal.flags, encode_error(refusal.code, error.what()),
               Clock::now() + kErrorTime);
  }
}

void Session::pull(const FrameHeader& header, Bytes payload, Deadline deadline) {
  const bool half = (header.flags & kHalf) != 0;
  const PullRequest request = shard_.read_pull(payload);
  const std::size_t bytes = shard_.reply_bytes(request, half);
  shard_.check_reply(request, half, config_.max_frame_bytes, "max_frame_bytes");
  SocketSink sink(socket_,
                  {.bytes = static_cast<std::uint32_t>(bytes),
                   .kind = Kind::kRows,
                   .flags = static_cast<std::uint16_t>(header.flags & kHalf),
                   .request = header.request,
                   .timeout_ms = 0,
                   .zero = 0},
                  deadline);
  try {
    shard_.pull(request, half, deadline, sink);
    if (!sink.has_begun()) sink.filled(0);
  } catch (const std::exception& error) {
    // Half a reply cannot be taken back.
    if (sink.has_begun()) throw Disconnected(error.what());
    throw;
  }
}

void Session::push(const FrameHeader& header, Bytes payload, Deadline deadline) {
  shard_.push(payload, (header.flags & kHalf) != 0, deadline);
  send_frame(header, Kind::kApplied, 0, {}, std::max(deadline, Clock::now() + kErrorTime));
}

}  // namespace dataplane
