// http2_connection.cc: unary calls of gRPC over HTTP/2. nghttp2 does frames, HPACK and flow control.
#include "engine/error.h"
#include "io_thread.h"

#if __has_include(<nghttp2/nghttp2.h>)
#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "serving/dynamic_library.h"
#include "serving/grpc_frame.h"

namespace serving {

namespace {

#define MONOLITH_NGHTTP2(DO)                                    \
  DO(nghttp2_option_new)                                        \
  DO(nghttp2_option_del)                                        \
  DO(nghttp2_option_set_max_settings)                           \
  DO(nghttp2_session_callbacks_new)                             \
  DO(nghttp2_session_callbacks_del)                             \
  DO(nghttp2_session_callbacks_set_on_begin_headers_callback)   \
  DO(nghttp2_session_callbacks_set_on_header_callback)          \
  DO(nghttp2_session_callbacks_set_on_data_chunk_recv_callback) \
  DO(nghttp2_session_callbacks_set_on_frame_recv_callback)      \
  DO(nghttp2_session_callbacks_set_on_stream_close_callback)    \
  DO(nghttp2_session_server_new2)                               \
  DO(nghttp2_session_del)                                       \
  DO(nghttp2_session_mem_recv)                                  \
  DO(nghttp2_session_mem_send)                                  \
  DO(nghttp2_session_want_read)                                 \
  DO(nghttp2_session_want_write)                                \
  DO(nghttp2_session_set_local_window_size)                     \
  DO(nghttp2_session_terminate_session)                         \
  DO(nghttp2_submit_settings)                                   \
  DO(nghttp2_submit_shutdown_notice)                            \
  DO(nghttp2_submit_goaway)                                     \
  DO(nghttp2_submit_response)                                   \
  DO(nghttp2_submit_trailer)                                    \
  DO(nghttp2_submit_rst_stream)                                 \
  DO(nghttp2_session_get_last_proc_stream_id)

struct Nghttp2 {
#define MONOLITH_DECLARE(name) decltype(&::name) name = nullptr;
  MONOLITH_NGHTTP2(MONOLITH_DECLARE)
#undef MONOLITH_DECLARE

  Nghttp2() {
    const DynamicLibrary library("libnghttp2.so.14");
#define MONOLITH_BIND(name) library.bind(name, #name);
    MONOLITH_NGHTTP2(MONOLITH_BIND)
#undef MONOLITH_BIND
  }
};

const Nghttp2& nghttp2() {
  static const Nghttp2 functions;
  return functions;
}

constexpr std::size_t kMaxHeaderBytes = 16 << 10;
constexpr std::uint32_t kStreamWindow = 1 << 20;
constexpr std::int32_t kConnectionWindow = 8 << 20;
constexpr std::uint32_t kMaxFrame = 128 << 10;
constexpr std::size_t kMostUnsent = 256 << 10;
constexpr std::size_t kMaxSettings = 32;
constexpr double kSlowestStreamBytesPerS = 64 << 10;

nghttp2_nv make_header(std::string_view name, std::string_view value) {
  return {reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
          NGHTTP2_NV_FLAG_NONE};
}

bool is_header_value(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char sign) { return sign >= ' ' && sign <= '~'; });
}

std::string lower(std::string text) {
  for (char& sign : text) {
    if (sign >= 'A' && sign <= 'Z') sign = static_cast<char>(sign - 'A' + 'a');
  }
  return text;
}

struct Stream {
  std::int32_t id = 0;
  Headers headers;
  std::string method;
  std::string path;
  std::size_t header_bytes = 0;
  std::string in;
  std::size_t reserved = 0;
  bool is_received = false;  // whole, or refused
  bool is_answered = false;
  std::string out;
  std::size_t sent = 0;
  Headers trailers;
  Clock::time_point begun;
  Clock::time_point deadline;  // to send the request, to be answered, and to read the answer
  std::shared_ptr<ConnectionCaller> caller;
};

class Http2Connection final : public Connection {
 public:
  Http2Connection(IoThread& io, int socket, std::unique_ptr<TlsStream> tls)
      : Connection(io, socket, std::move(tls)), deadline_(Clock::now() + io.config().read) {
    open_session();
  }
  ~Http2Connection() override { nghttp2().nghttp2_session_del(session_); }

  void on_answer(std::uint64_t ticket, Answer answer) override {
    const auto found = streams_.find(static_cast<std::int32_t>(ticket));
    if (found == streams_.end() || found->second->is_answered) return;
    submit(*found->second, std::move(answer));
    pump();
  }

  void check(Clock::time_point now) override {
    if (has_unsent()) {
      if (now >= write_deadline_) close();  // the client does not read
      return;
    }
    if (!has_preface_ && now >= deadline_) {
      close();
      return;
    }
    std::vector<std::int32_t> late;
    for (const auto& [id, stream] : streams_) {
      // The time grows with the bytes that move.
      const std::size_t moved = stream->is_received ? stream->sent : stream->in.size();
      const std::chrono::duration<double> more{static_cast<double>(moved) / kSlowestStreamBytesPerS};
      if (now >= stream->deadline + std::chrono::duration_cast<Clock::duration>(more)) late.push_back(id);
    }
    for (const std::int32_t id : late) {
      Stream& stream = *streams_.at(id);
      if (stream.caller != nullptr) {
        stream.caller->leave();
        refuse(stream, Code::kDeadlineExceeded, "the request timed out; send fewer rows, or use another replica");
      } else {
        nghttp2().nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
      }
    }
    if (!late.empty()) pump();
  }

  void close_if_idle() override {
    nghttp2().nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE,
                                    nghttp2().nghttp2_session_get_last_proc_stream_id(session_), NGHTTP2_NO_ERROR,
                                    nullptr, 0);
    is_leaving_ = true;
    pump();
  }

 protected:
  void on_data(std::string_view data) override {
    const auto taken =
        nghttp2().nghttp2_session_mem_recv(session_, reinterpret_cast<const std::uint8_t*>(data.data()), data.size());
    if (taken < 0 || is_flooded_) {
      if (is_flooded_) nghttp2().nghttp2_session_terminate_session(session_, NGHTTP2_ENHANCE_YOUR_CALM);
      pump();
      close();
      return;
    }
    pump();
  }
  void on_end() override { close(); }
  void on_flushed() override { pump(); }
  void on_close() override {
    for (const auto& [id, stream] : streams_) leave(*stream);
    streams_.clear();
  }

 private:
  void open_session() {
    const Nghttp2& http = nghttp2();
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_option* options = nullptr;
    if (http.nghttp2_session_callbacks_new(&callbacks) != 0 || http.nghttp2_option_new(&options) != 0) {
      throw std::bad_alloc();
    }
    http.nghttp2_session_callbacks_set_on_begin_headers_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, void* self) {
          return static_cast<Http2Connection*>(self)->begin_headers(*frame);
        });
    http.nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                      const std::uint8_t* value, std::size_t value_size, std::uint8_t, void* self) {
          return static_cast<Http2Connection*>(self)->add_header(frame->hd.stream_id,
                                                                 {reinterpret_cast<const char*>(name), name_size},
                                                                 {reinterpret_cast<const char*>(value), value_size});
        });
    http.nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks,
        [](nghttp2_session*, std::uint8_t, std::int32_t id, const std::uint8_t* data, std::size_t size, void* self) {
          static_cast<Http2Connection*>(self)->add_data(id, {reinterpret_cast<const char*>(data), size});
          return 0;
        });
    http.nghttp2_session_callbacks_set_on_frame_recv_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, void* self) {
          static_cast<Http2Connection*>(self)->end_frame(*frame);
          return 0;
        });
    http.nghttp2_session_callbacks_set_on_stream_close_callback(
        callbacks, [](nghttp2_session*, std::int32_t id, std::uint32_t, void* self) {
          static_cast<Http2Connection*>(self)->end_stream(id);
          return 0;
        });
    http.nghttp2_option_set_max_settings(options, kMaxSettings);
    const int made = http.nghttp2_session_server_new2(&session_, callbacks, this, options);
    http.nghttp2_session_callbacks_del(callbacks);
    http.nghttp2_option_del(options);
    if (made != 0) throw std::bad_alloc();
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, static_cast<std::uint32_t>(io_.config().max_streams)},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindow},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kMaxFrame},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMaxHeaderBytes},
    };
    http.nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
    http.nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindow);
  }

  Stream* find(std::int32_t id) {
    const auto found = streams_.find(id);
    return found == streams_.end() ? nullptr : found->second.get();
  }

  int begin_headers(const nghttp2_frame& frame) {
    has_preface_ = true;
    if (frame.hd.type != NGHTTP2_HEADERS || frame.headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    if (is_leaving_ || streams_.size() >= io_.config().max_streams) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    auto stream = std::make_unique<Stream>();
    stream->id = frame.hd.stream_id;
    stream->begun = Clock::now();
    stream->deadline = stream->begun + io_.config().read;
    streams_[stream->id] = std::move(stream);
    return 0;
  }

  int add_header(std::int32_t id, std::string_view name, std::string_view value) {
    Stream* stream = find(id);
    if (stream == nullptr || stream->is_received) return 0;
    stream->header_bytes += name.size() + value.size() + 32;
    if (stream->header_bytes > kMaxHeaderBytes) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (name == ":path") {
      stream->path = value;
    } else if (name == ":method") {
      stream->method = value;
    } else if (!name.starts_with(':')) {
      stream->headers.emplace_back(name, value);
    }
    return 0;
  }

  void add_data(std::int32_t id, std::string_view data) {
    Stream* stream = find(id);
    if (stream == nullptr || stream->is_received) return;
    const std::size_t most = io_.config().max_body + kGrpcPrefixBytes;
    std::size_t size = stream->in.size() + data.size();
    if (stream->in.size() < kGrpcPrefixBytes && size >= kGrpcPrefixBytes) {
      std::string begin = stream->in;
      begin.append(data.substr(0, kGrpcPrefixBytes - begin.size()));
      const auto prefix = read_grpc_prefix(begin);
      if (!prefix) return refuse(*stream, Code::kInternal, "the message is invalid, expected a frame of gRPC");
      if (prefix->size > io_.config().max_body) {
        return refuse(*stream, Code::kResourceExhausted,
                      "the message has " + std::to_string(prefix->size) + " bytes, expected at most " +
                          std::to_string(io_.config().max_body));
      }
      // The whole message counts against all clients before it is received.
      const std::size_t whole = prefix->size + kGrpcPrefixBytes;
      if (!io_.reserve(whole)) {
        return refuse(*stream, Code::kResourceExhausted, "the server has too many requests; retry later");
      }
      stream->reserved = whole;
      try {
        stream->in.reserve(whole);
      } catch (const std::bad_alloc&) {
        return refuse(*stream, Code::kResourceExhausted,
                      "the message needs more memory than there is; send fewer rows");
      }
    }
    if (size > most || (stream->reserved > 0 && size > stream->reserved)) {
      return refuse(*stream, Code::kInternal, "the message is longer than its frame of gRPC");
    }
    stream->in.append(data);
  }

  void end_frame(const nghttp2_frame& frame) {
    if (frame.hd.type == NGHTTP2_SETTINGS) has_preface_ = true;
    if (frame.hd.type == NGHTTP2_RST_STREAM) {
      count_reset();
      return;
    }
    if (frame.hd.type != NGHTTP2_HEADERS && frame.hd.type != NGHTTP2_DATA) return;
    Stream* stream = find(frame.hd.stream_id);
    if (stream == nullptr || stream->is_received) return;
    if (frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST && !admit(*stream)) return;
    if ((frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) receive(*stream);
  }

  // A client that opens and resets streams again and again makes work without reading answers.
  void count_reset() {
    const Clock::time_point now = Clock::now();
    if (now - resets_since_ > std::chrono::minutes(1)) {
      resets_since_ = now;
      resets_ = 0;
    }
    ++io_.stats().resets;
    if (++resets_ > io_.config().max_resets) is_flooded_ = true;
  }

  // Checks the head before the message is read.
  bool admit(Stream& stream) {
    if (stream.method != "POST" || !find_header(stream.headers, "content-type").starts_with("application/grpc")) {
      refuse_http(stream, "415");
      return false;
    }
    if (!io_.is_admitted(find_header(stream.headers, "authorization"))) {
      refuse(stream, Code::kUnauthenticated, "the bearer token is missing or wrong; give the server's token");
      return false;
    }
    return true;
  }

  void receive(Stream& stream) {
    stream.is_received = true;
    const auto prefix = read_grpc_prefix(stream.in);
    if (!prefix || prefix->size + kGrpcPrefixBytes != stream.in.size()) {
      return refuse(stream, Code::kInternal, "the message is cut, expected a frame of gRPC");
    }
    Request request;
    request.api = Api::kGrpc;
    request.method = std::move(stream.method);
    request.path = std::move(stream.path);
    request.is_compressed = prefix->is_compressed;
    request.begun = Clock::now();
    Clock::duration time = io_.config().answer;
    if (const std::string_view text = find_header(stream.headers, "grpc-timeout"); !text.empty()) {
      if (const auto asked = read_grpc_timeout(text)) time = std::min(time, *asked);
    }
    request.deadline = request.begun + time;
    stream.deadline = request.deadline + io_.config().read;  // the service answers before
    request.headers = std::move(stream.headers);
    stream.in.erase(0, kGrpcPrefixBytes);
    request.body = std::move(stream.in);
    stream.in = {};
    stream.caller = std::make_shared<ConnectionCaller>(io_.shared_from_this(), weak_from_this(),
                                                       static_cast<std::uint64_t>(stream.id));
    stream.caller->hold(std::exchange(stream.reserved, 0));
    request.caller = stream.caller;
    io_.service().submit(std::move(request));
  }

  void refuse(Stream& stream, Code code, const std::string& text) {
    stream.is_received = true;
    stream.in = {};
    Answer answer;
    answer.code = code;
    answer.message = text;
    submit(stream, std::move(answer));
  }

  void refuse_http(Stream& stream, std::string_view status) {
    stream.is_received = stream.is_answered = true;
    const nghttp2_nv headers[] = {make_header(":status", status)};
    nghttp2().nghttp2_submit_response(session_, stream.id, headers, std::size(headers), nullptr);
  }

  void submit(Stream& stream, Answer answer) {
    stream.is_answered = true;
    stream.deadline = Clock::now() + io_.config().read;
    io_.release(std::exchange(stream.reserved, 0));
    stream.caller.reset();
    stream.trailers.emplace_back("grpc-status", std::to_string(static_cast<int>(answer.code)));
    if (answer.code != Code::kOk) stream.trailers.emplace_back("grpc-message", escape_grpc_message(answer.message));
    for (auto& [name, value] : answer.headers) {
      if (is_header_value(value)) stream.trailers.emplace_back(lower(std::move(name)), std::move(value));
    }
    std::vector<nghttp2_nv> headers = {make_header(":status", "200"), make_header("content-type", "application/grpc")};
    if (answer.code != Code::kOk) {  // trailers only
      for (const auto& [name, value] : stream.trailers) headers.push_back(make_header(name, value));
      nghttp2().nghttp2_submit_response(session_, stream.id, headers.data(), headers.size(), nullptr);
      return;
    }
    stream.out.reserve(kGrpcPrefixBytes + answer.body.size());
    append_grpc_prefix(answer.body.size(), stream.out);
    stream.out += answer.body;
    nghttp2_data_provider provider{};
    provider.source.ptr = &stream;
    provider.read_callback = [](nghttp2_session* session, std::int32_t id, std::uint8_t* buffer, std::size_t size,
                                std::uint32_t* flags, nghttp2_data_source* source, void*) -> ssize_t {
      auto& from = *static_cast<Stream*>(source->ptr);
      const std::size_t count = std::min(size, from.out.size() - from.sent);
      std::memcpy(buffer, from.out.data() + from.sent, count);
      from.sent += count;
      if (from.sent == from.out.size()) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        std::vector<nghttp2_nv> trailers;
        for (const auto& [name, value] : from.trailers) trailers.push_back(make_header(name, value));
        if (nghttp2().nghttp2_submit_trailer(session, id, trailers.data(), trailers.size()) != 0) {
          return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        }
      }
      return static_cast<ssize_t>(count);
    };
    nghttp2().nghttp2_submit_response(session_, stream.id, headers.data(), headers.size(), &provider);
  }

  void end_stream(std::int32_t id) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    leave(*found->second);
    streams_.erase(found);
  }

  void leave(Stream& stream) const {
    if (stream.caller != nullptr) stream.caller->leave();
    io_.release(std::exchange(stream.reserved, 0));
  }

  // Sends the frames that wait, as far as the client reads them.
  void pump() {
    while (is_open() && unsent() < kMostUnsent) {
      std::string bytes;
      while (bytes.size() < kMostUnsent) {
        const std::uint8_t* data = nullptr;
        const auto size = nghttp2().nghttp2_session_mem_send(session_, &data);
        if (size < 0) {
          close();
          return;
        }
        if (size == 0) break;
        bytes.append(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size));
      }
      if (bytes.empty()) break;
      if (!has_unsent()) write_deadline_ = Clock::now() + io_.config().read;
      send(bytes);
    }
    if (!is_open()) return;
    const bool is_done =
        nghttp2().nghttp2_session_want_read(session_) == 0 && nghttp2().nghttp2_session_want_write(session_) == 0;
    if ((is_done || (is_leaving_ && streams_.empty())) && !has_unsent()) close();
  }

  nghttp2_session* session_ = nullptr;
  std::unordered_map<std::int32_t, std::unique_ptr<Stream>> streams_;
  Clock::time_point deadline_;
  Clock::time_point write_deadline_{};
  Clock::time_point resets_since_{};
  std::size_t resets_ = 0;
  bool has_preface_ = false;
  bool is_leaving_ = false;
  bool is_flooded_ = false;
};

}  // namespace

void check_http2() { nghttp2(); }

std::shared_ptr<Connection> make_http2(IoThread& io, int socket, std::unique_ptr<TlsStream> tls) {
  return std::make_shared<Http2Connection>(io, socket, std::move(tls));
}

}  // namespace serving

#else

namespace serving {

void check_http2() { throw engine::ConfigError("this build has no HTTP/2; install libnghttp2-dev and build again"); }

std::shared_ptr<Connection> make_http2(IoThread&, int, std::unique_ptr<TlsStream>) {
  check_http2();
  return nullptr;
}

}  // namespace serving

#endif
