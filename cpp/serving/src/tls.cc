// tls.cc: OpenSSL's functions by name, and streams that never wait.
#include "tls.h"

#include "engine/error.h"
#include "serving/dynamic_library.h"

#if __has_include(<openssl/ssl.h>)
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <limits>
#include <string_view>

namespace serving {

namespace {

#define MONOLITH_OPENSSL(DO)             \
  DO(TLS_server_method)                  \
  DO(SSL_CTX_new)                        \
  DO(SSL_CTX_free)                       \
  DO(SSL_CTX_ctrl)                       \
  DO(SSL_CTX_set_options)                \
  DO(SSL_CTX_set_default_passwd_cb)      \
  DO(SSL_CTX_use_certificate_chain_file) \
  DO(SSL_CTX_use_PrivateKey_file)        \
  DO(SSL_CTX_check_private_key)          \
  DO(SSL_CTX_load_verify_locations)      \
  DO(SSL_CTX_set_verify)                 \
  DO(SSL_CTX_set_alpn_select_cb)         \
  DO(SSL_new)                            \
  DO(SSL_free)                           \
  DO(SSL_set_fd)                         \
  DO(SSL_set_accept_state)               \
  DO(SSL_read)                           \
  DO(SSL_write)                          \
  DO(SSL_get_error)                      \
  DO(SSL_shutdown)                       \
  DO(SSL_get_SSL_CTX)                    \
  DO(ERR_clear_error)                    \
  DO(ERR_get_error)                      \
  DO(ERR_reason_error_string)

struct OpenSsl {
#define MONOLITH_DECLARE(name) decltype(&::name) name = nullptr;
  MONOLITH_OPENSSL(MONOLITH_DECLARE)
#undef MONOLITH_DECLARE

  OpenSsl() {
    const DynamicLibrary library("libssl.so." + std::to_string(OPENSSL_VERSION_MAJOR));
#define MONOLITH_BIND(name) library.bind(name, #name);
    MONOLITH_OPENSSL(MONOLITH_BIND)
#undef MONOLITH_BIND
  }
};

const OpenSsl& openssl() {
  static const OpenSsl functions;
  return functions;
}

int refuse_password(char*, int, int, void*) { return 0; }

// A client of gRPC asks for h2, one of REST for http/1.1; a client that asks for neither gets no extension.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                    unsigned int size, void*) {
  for (const std::string_view wanted : {std::string_view("h2"), std::string_view("http/1.1")}) {
    for (unsigned int at = 0; at < size; at += offered[at] + 1U) {
      const std::string_view name(reinterpret_cast<const char*>(offered + at + 1), offered[at]);
      if (at + 1U + offered[at] <= size && name == wanted) {
        *out = offered + at + 1;
        *out_size = offered[at];
        return SSL_TLSEXT_ERR_OK;
      }
    }
  }
  return SSL_TLSEXT_ERR_NOACK;
}

int choose_http1(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                 unsigned int size, void*) {
  for (unsigned int at = 0; at < size; at += offered[at] + 1U) {
    const std::string_view name(reinterpret_cast<const char*>(offered + at + 1), offered[at]);
    if (at + 1U + offered[at] <= size && name == "http/1.1") {
      *out = offered + at + 1;
      *out_size = offered[at];
      return SSL_TLSEXT_ERR_OK;
    }
  }
  return SSL_TLSEXT_ERR_NOACK;
}

class OpensslStream final : public TlsStream {
 public:
  OpensslStream(SSL_CTX* context, int socket) : ssl_(openssl().SSL_new(context)) {
    if (ssl_ == nullptr) throw engine::Error("OpenSSL has no memory for a connection");
    openssl().SSL_set_fd(ssl_, socket);
    openssl().SSL_set_accept_state(ssl_);
  }
  ~OpensslStream() override { openssl().SSL_free(ssl_); }

  std::ptrdiff_t receive(char* data, std::size_t size) override {
    openssl().ERR_clear_error();
    const int found = openssl().SSL_read(ssl_, data, bounded(size));
    return found > 0 ? found : result(found);
  }
  std::ptrdiff_t send(const char* data, std::size_t size) override {
    openssl().ERR_clear_error();
    const int sent = openssl().SSL_write(ssl_, data, bounded(size));
    return sent > 0 ? sent : result(sent);
  }
  void end() override {
    openssl().ERR_clear_error();
    if (!is_broken_) openssl().SSL_shutdown(ssl_);
  }

 private:
  static int bounded(std::size_t size) {
    return static_cast<int>(std::min<std::size_t>(size, std::numeric_limits<int>::max()));
  }
  std::ptrdiff_t result(int returned) {
    switch (openssl().SSL_get_error(ssl_, returned)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        return kWouldBlock;
      case SSL_ERROR_ZERO_RETURN:
        return kEnded;
      default:
        is_broken_ = true;
        return kBroken;
    }
  }

  SSL* ssl_;
  bool is_broken_ = false;
};

class Context final : public TlsContext {
 public:
  explicit Context(const TlsFiles& files) : grpc_(make(files, choose_protocol)), rest_(make(files, choose_http1)) {}
  ~Context() override {
    openssl().SSL_CTX_free(grpc_);
    openssl().SSL_CTX_free(rest_);
  }
  [[nodiscard]] std::unique_ptr<TlsStream> accept(int socket, bool is_http2) const override {
    return std::make_unique<OpensslStream>(is_http2 ? grpc_ : rest_, socket);
  }

 private:
  static SSL_CTX* make(const TlsFiles& files, SSL_CTX_alpn_select_cb_func choose) {
    const OpenSsl& ssl = openssl();
    SSL_CTX* context = ssl.SSL_CTX_new(ssl.TLS_server_method());
    if (context == nullptr) throw engine::Error("OpenSSL has no memory for a context");
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, nullptr);
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_MODE,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS,
                     nullptr);
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
    ssl.SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    ssl.SSL_CTX_set_default_passwd_cb(context, refuse_password);
    ssl.SSL_CTX_set_alpn_select_cb(context, choose, nullptr);
    const bool fits =
        ssl.SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) == 1 &&
        ssl.SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
        ssl.SSL_CTX_check_private_key(context) == 1 &&
        (files.authority.empty() || ssl.SSL_CTX_load_verify_locations(context, files.authority.c_str(), nullptr) == 1);
    if (!fits) {
      const char* reason = ssl.ERR_reason_error_string(ssl.ERR_get_error());
      ssl.SSL_CTX_free(context);
      throw engine::ConfigError("cert_file is '" + files.certificate +
                                "', expected a certificate that fits key_file (" +
                                (reason == nullptr ? "no reason" : reason) + ")");
    }
    if (!files.authority.empty()) {
      ssl.SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    }
    return context;
  }

  SSL_CTX* grpc_;
  SSL_CTX* rest_;
};

}  // namespace

std::shared_ptr<const TlsContext> open_tls(const TlsFiles& files) { return std::make_shared<const Context>(files); }

void check_tls() { openssl(); }

}  // namespace serving

#else

namespace serving {

void check_tls() { throw engine::ConfigError("this build has no TLS; install libssl-dev and build again"); }

std::shared_ptr<const TlsContext> open_tls(const TlsFiles&) {
  check_tls();
  return nullptr;
}

}  // namespace serving

#endif
