// http1_connection.cc: requests of one connection, answered in order.
#include <algorithm>
#include <optional>

#include "io_thread.h"
#include "serving/http1.h"
#include "serving/score_answer.h"

namespace serving {

namespace {

constexpr double kSlowestBytesPerS = 64 << 10;
constexpr std::size_t kKeptInputBytes = 4 << 10;

Clock::duration time_of(std::size_t bytes) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / kSlowestBytesPerS));
}

class Http1Connection final : public Connection {
 public:
  Http1Connection(IoThread& io, int socket, std::unique_ptr<TlsStream> tls)
      : Connection(io, socket, std::move(tls)),
        deadline_(Clock::now() + (has_tls() ? io.config().read : io.config().idle)) {}

  void on_answer(std::uint64_t ticket, Answer answer) override {
    if (!is_answering_ || ticket != ticket_) return;
    is_answering_ = false;
    caller_.reset();
    const bool is_last = !keeps_alive_ || io_.is_draining();
    send_answer(write_http1(answer, is_head_, is_last));
    if (!is_open()) return;
    if (is_last) {
      end();
    } else if (!has_unsent()) {
      expect_next();
    }
  }

  void check(Clock::time_point now) override {
    if (now < deadline_) return;
    if (is_answering_ && !has_unsent()) {
      refuse(HttpError(504, "the request timed out; send fewer rows, or use another replica"));
      return;
    }
    if (head_ || has_unsent()) {  // the time grows with the bytes that move
      const std::size_t received = chunks_ ? chunks_->body.size() : in_.size();
      const std::size_t taken = sent() - std::min(sent(), burst_);
      deadline_ = begun_ + io_.config().read + time_of(has_unsent() ? taken : received);
      if (now < deadline_) return;
    }
    if (has_unsent() || is_closing_ || (in_.empty() && !head_)) {
      close();
    } else {
      refuse(HttpError(408, "the client sent the request too slowly; send it without pauses"));
    }
  }

  void close_if_idle() override {
    if (is_answering_ || head_ || !in_.empty()) return;
    if (has_unsent()) {  // the client still reads an answer
      end();
    } else {
      close();
    }
  }

 protected:
  void on_data(std::string_view data) override {
    if (is_closing_) return;
    const bool is_busy = is_answering_ || has_unsent();
    if (in_.empty() && !head_ && !is_busy) begin();
    in_.append(data);
    if (is_busy) {
      // The next request waits in the buffer; a client that sends further is paused.
      if (in_.size() > kMaxHeadBytes) set_reading(false);
      return;
    }
    advance();
  }

  void on_end() override {
    // A client that has sent its request may close its sending half and wait. TLS has no half-close.
    if ((is_answering_ || has_unsent()) && !has_tls()) {
      has_ended_ = true;
      keeps_alive_ = false;
      set_reading(false);
      return;
    }
    close();
  }

  void on_flushed() override {
    if (is_answering_) return;
    if (has_ended_) {
      close();
    } else if (is_closing_) {
      linger();
    } else {
      expect_next();
    }
  }

  void on_close() override {
    if (caller_ != nullptr) caller_->leave();
    caller_.reset();
    release();
  }

 private:
  void begin() {
    begun_ = Clock::now();
    deadline_ = begun_ + io_.config().read;
  }

  void expect_next() {
    set_reading(true);
    if (!in_.empty()) {
      begin();
      advance();
      return;
    }
    if (in_.capacity() > kKeptInputBytes) in_.shrink_to_fit();
    deadline_ = Clock::now() + io_.config().idle;
  }

  void advance() {
    if (is_answering_ || has_unsent() || is_closing_ || !is_open()) return;
    try {
      std::optional<Request> request = next_request();
      if (!request || !is_open()) return;
      is_answering_ = true;
      is_head_ = request->method == "HEAD";
      request->begun = Clock::now();
      request->deadline = deadline_ = request->begun + io_.config().answer;
      caller_ = std::make_shared<ConnectionCaller>(io_.shared_from_this(), weak_from_this(), ++ticket_);
      caller_->hold(std::exchange(reserved_, 0));
      request->caller = caller_;
      io_.service().submit(std::move(*request));
    } catch (const HttpError& error) {
      refuse(error);
    } catch (const std::bad_alloc&) {
      close();
    }
  }

  std::optional<Request> next_request() {
    if (!head_ && !read_one_head()) return std::nullopt;
    Request request;
    if (chunks_) {
      const bool is_complete = chunks_->take(in_);
      reserve(chunks_->body.size());
      if (!is_complete) return std::nullopt;
      request.body = std::move(chunks_->body);
    } else if (in_.size() < head_->length) {
      in_.reserve(head_->length);
      return std::nullopt;
    } else if (in_.size() == head_->length) {
      request.body = std::move(in_);
      in_.clear();
    } else {
      request.body = in_.substr(0, head_->length);
      in_.erase(0, head_->length);
    }
    request.method = std::move(head_->method);
    request.path = std::move(head_->path);
    request.headers = std::move(head_->headers);
    request.is_compressed = head_->is_compressed;
    keeps_alive_ = head_->keeps_alive;
    head_.reset();
    chunks_.reset();
    return request;
  }

  bool read_one_head() {
    std::size_t begin = 0;
    while (std::string_view(in_).substr(begin).starts_with("\r\n")) begin += 2;  // some clients send it after a body
    in_.erase(0, begin);
    const std::size_t end = std::string_view(in_).substr(0, kMaxHeadBytes).find("\r\n\r\n");
    if (end == std::string_view::npos) {
      if (in_.size() >= kMaxHeadBytes) {
        throw HttpError(431, "the head has more than " + std::to_string(kMaxHeadBytes) + " bytes");
      }
      if (in_.find("\n\n") != std::string::npos || in_.find('\0') != std::string::npos) {
        throw HttpError(400, "the head is invalid, expected HTTP/1.1");
      }
      return false;
    }
    Http1Head head = read_head(std::string_view(in_).substr(0, end), io_.config().max_body);
    admit(head);
    reserve(head.length);
    in_.erase(0, end + 4);
    if (head.is_chunked) chunks_.emplace(io_.config().max_body);
    const bool expects_continue = head.expects_continue;
    head_ = std::move(head);
    if (expects_continue) send("HTTP/1.1 100 Continue\r\n\r\n");
    return is_open();
  }

  void admit(const Http1Head& head) const {
    const bool is_health = head.path == "/healthz" || head.path == "/readyz";
    if (!is_health && !io_.is_admitted(find_header(head.headers, "authorization"))) {
      throw HttpError(401, "bearer token is missing or wrong, expected the server's token",
                      {{"WWW-Authenticate", "Bearer"}});
    }
  }

  void reserve(std::size_t size) {
    if (size <= reserved_) return;
    if (!io_.reserve(size - reserved_)) {
      throw HttpError(503, "the server has too many requests; retry later", {{"Retry-After", "1"}});
    }
    reserved_ = size;
  }

  void release() { io_.release(std::exchange(reserved_, 0)); }

  void send_answer(const std::string& bytes) {
    begin();
    send(bytes);
    burst_ = sent();
  }

  // Sends an error and closes: the start of the next request is unknown.
  void refuse(const HttpError& error) {
    is_answering_ = false;
    ++ticket_;
    if (caller_ != nullptr) caller_->leave();
    caller_.reset();
    release();
    Answer answer;
    answer.status = error.status();
    answer.body = write_error(error.what());
    answer.headers = error.headers();
    send_answer(write_http1(answer, false, true));
    if (is_open()) end();
  }

  // Closing while the client still sends would reset the connection before it reads the answer. So the client may send
  // for a while; the bytes are dropped.
  void end() {
    is_closing_ = true;
    head_.reset();
    chunks_.reset();
    in_ = {};
    set_reading(true);
    end_sending();
    if (!has_unsent()) linger();
  }

  void linger() {
    const Clock::duration second = std::chrono::seconds(1);
    deadline_ = Clock::now() + std::min(second, io_.config().read);
  }

  std::string in_;
  std::optional<Http1Head> head_;
  std::optional<ChunkReader> chunks_;
  std::shared_ptr<ConnectionCaller> caller_;
  std::uint64_t ticket_ = 0;
  std::size_t reserved_ = 0;
  std::size_t burst_ = 0;      // bytes of the answer that the system took without the client
  Clock::time_point begun_{};  // of the request, then of its answer
  Clock::time_point deadline_;
  bool is_answering_ = false;
  bool is_head_ = false;
  bool is_closing_ = false;
  bool has_ended_ = false;  // the client ended its sending half
  bool keeps_alive_ = true;
};

}  // namespace

std::shared_ptr<Connection> make_http1(IoThread& io, int socket, std::unique_ptr<TlsStream> tls) {
  return std::make_shared<Http1Connection>(io, socket, std::move(tls));
}

}  // namespace serving
