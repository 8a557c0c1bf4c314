// http1.cc: one pass over the head; every sign is checked.
#include "serving/http1.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace serving {

namespace {

constexpr std::size_t kMaxHeaders = 100;
constexpr std::size_t kMaxChunkLine = 256;
constexpr auto kNowhere = std::string_view::npos;

bool is_token(std::string_view text) {
  static constexpr std::string_view kSigns = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char sign) {
    return (sign >= '0' && sign <= '9') || (sign >= 'a' && sign <= 'z') || (sign >= 'A' && sign <= 'Z') ||
           kSigns.find(sign) != kNowhere;
  });
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& sign : out) {
    if (sign >= 'A' && sign <= 'Z') sign = static_cast<char>(sign - 'A' + 'a');
  }
  return out;
}

std::string_view strip(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == kNowhere) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

void add_header(std::string_view line, Headers& headers) {
  const std::size_t colon = line.find(':');
  if (colon == kNowhere || !is_token(line.substr(0, colon)) || line.find('\0') != kNowhere ||
      line.find_first_of("\r\n") != kNowhere) {
    throw HttpError(400, "a header is invalid, expected HTTP/1.1");
  }
  std::string name = lower(line.substr(0, colon));
  const std::string_view value = strip(line.substr(colon + 1));
  const auto before =
      std::find_if(headers.begin(), headers.end(), [&](const auto& each) { return each.first == name; });
  if (before == headers.end()) {
    headers.emplace_back(std::move(name), value);
    return;
  }
  if (name == "content-length" || name == "transfer-encoding" || name == "host" || name == "authorization") {
    throw HttpError(400, "the header " + name + " appears twice");
  }
  before->second += ", ";
  before->second += value;
}

const std::string* find(const Headers& headers, std::string_view name) {
  for (const auto& header : headers) {
    if (header.first == name) return &header.second;
  }
  return nullptr;
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (lower(strip(list.substr(0, comma))) == word) return true;
    if (comma == kNowhere) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

std::size_t length_of(std::string_view text, std::size_t max_body) {
  const bool is_number = !text.empty() && text.size() <= 18 && (text.size() == 1 || text[0] != '0') &&
                         std::all_of(text.begin(), text.end(), [](char sign) { return sign >= '0' && sign <= '9'; });
  if (!is_number) throw HttpError(400, "Content-Length is invalid, expected a decimal number");
  std::size_t length = 0;
  std::from_chars(text.data(), text.data() + text.size(), length);
  if (length > max_body) {
    throw HttpError(413, "the body has " + std::string(text) + " bytes, expected at most " + std::to_string(max_body));
  }
  return length;
}

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 412:
      return "Precondition Failed";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

}  // namespace

Http1Head read_head(std::string_view text, std::size_t max_body) {
  Http1Head head;
  const std::size_t first_end = text.find("\r\n");
  const std::string_view first = text.substr(0, first_end);
  const std::size_t one = first.find(' ');
  const std::size_t two = one == kNowhere ? kNowhere : first.find(' ', one + 1);
  if (two == kNowhere || first.find(' ', two + 1) != kNowhere || !is_token(first.substr(0, one))) {
    throw HttpError(400, "the request line is invalid, expected HTTP/1.1");
  }
  const std::string_view version = first.substr(two + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    throw HttpError(505, "the HTTP version is not supported, expected HTTP/1.1 or HTTP/1.0");
  }
  const std::string_view target = first.substr(one + 1, two - one - 1);
  if (target.empty() || target[0] != '/' ||
      !std::all_of(target.begin(), target.end(), [](char sign) { return sign > ' ' && sign <= '~'; })) {
    throw HttpError(400, "the target is invalid, expected a path of printable ASCII");
  }
  head.method = first.substr(0, one);
  head.path = target.substr(0, target.find('?'));
  std::size_t count = 0;
  for (std::size_t at = first_end; at != kNowhere;) {
    const std::size_t begin = at + 2;
    at = text.find("\r\n", begin);
    if (++count > kMaxHeaders) {
      throw HttpError(431, "the request has more than " + std::to_string(kMaxHeaders) + " headers");
    }
    add_header(text.substr(begin, at == kNowhere ? kNowhere : at - begin), head.headers);
  }
  const bool is_new = version == "HTTP/1.1";
  if (is_new && find(head.headers, "host") == nullptr) throw HttpError(400, "the header Host is missing");
  const std::string_view connection = find_header(head.headers, "connection");
  head.keeps_alive = is_new ? !has_word(connection, "close") : has_word(connection, "keep-alive");
  const std::string* length = find(head.headers, "content-length");
  if (const std::string* coding = find(head.headers, "transfer-encoding")) {
    if (length != nullptr || !is_new) {
      throw HttpError(400, "Transfer-Encoding needs HTTP/1.1 without Content-Length");
    }
    if (lower(strip(*coding)) != "chunked") {
      throw HttpError(501, "the transfer encoding is not supported, expected chunked");
    }
    head.is_chunked = true;
  }
  if (length != nullptr) head.length = length_of(*length, max_body);
  const std::string expected = lower(find_header(head.headers, "expect"));
  if (!expected.empty() && expected != "100-continue") {
    throw HttpError(417, "the expectation is not supported, expected 100-continue");
  }
  head.expects_continue = !expected.empty() && (head.is_chunked || head.length > 0);
  const std::string coding = lower(find_header(head.headers, "content-encoding"));
  if (!coding.empty() && coding != "identity" && coding != "gzip") {
    throw HttpError(415, "the content encoding is not supported, expected gzip");
  }
  head.is_compressed = coding == "gzip";
  if (!head.is_compressed)
    std::erase_if(head.headers, [](const auto& each) { return each.first == "content-encoding"; });
  return head;
}

bool ChunkReader::take(std::string& buffer) {
  std::size_t at = 0;
  const auto end_with = [&](bool is_complete) {
    buffer.erase(0, at);
    return is_complete;
  };
  for (;;) {
    if (left_ > 0) {
      const std::size_t size = std::min(left_, buffer.size() - at);
      body.append(buffer, at, size);
      at += size;
      left_ -= size;
      if (left_ > 0) return end_with(false);
      needs_end_ = true;
    }
    const std::string_view rest = std::string_view(buffer).substr(at);
    if (needs_end_) {
      if (rest.size() < 2) return end_with(false);
      if (!rest.starts_with("\r\n")) throw HttpError(400, "a chunk is longer than its size");
      at += 2;
      needs_end_ = false;
      continue;
    }
    const std::size_t end = rest.substr(0, kMaxChunkLine).find("\r\n");
    if (end == kNowhere) {
      if (rest.size() >= kMaxChunkLine) throw HttpError(400, "the size of a chunk is invalid");
      return end_with(false);
    }
    const std::string_view line = rest.substr(0, end);
    if (is_last_) {
      if (!line.empty()) throw HttpError(400, "trailers after the chunks are not supported");
      at += 2;
      return end_with(true);
    }
    left_ = size_of(line);
    is_last_ = left_ == 0;
    at += end + 2;
  }
}

std::size_t ChunkReader::size_of(std::string_view line) const {
  const std::string_view digits = line.substr(0, line.find(';'));
  const bool is_valid =
      !digits.empty() && digits.size() <= 8 &&
      std::all_of(digits.begin(), digits.end(),
                  [](char sign) {
                    return (sign >= '0' && sign <= '9') || (sign >= 'a' && sign <= 'f') || (sign >= 'A' && sign <= 'F');
                  }) &&
      std::all_of(line.begin(), line.end(), [](char sign) { return sign == '\t' || (sign >= ' ' && sign <= '~'); });
  if (!is_valid) throw HttpError(400, "the size of a chunk is invalid");
  std::size_t size = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), size, 16);
  if (body.size() + size > max_body_) {
    throw HttpError(413, "the body has more than " + std::to_string(max_body_) + " bytes");
  }
  return size;
}

std::string write_http1(const Answer& answer, bool is_head, bool is_last) {
  std::string out;
  out.reserve(192 + (is_head ? 0 : answer.body.size()));
  out += "HTTP/1.1 " + std::to_string(answer.status) + ' ' + reason_of(answer.status) +
         "\r\nContent-Type: " + answer.content_type + "\r\nContent-Length: " + std::to_string(answer.body.size()) +
         "\r\n";
  for (const auto& [name, value] : answer.headers) {
    const auto is_printable = [](char sign) { return sign != '\r' && sign != '\n'; };
    if (!std::all_of(value.begin(), value.end(), is_printable)) continue;
    out += name + ": " + value + "\r\n";
  }
  if (is_last) out += "Connection: close\r\n";
  out += "\r\n";
  if (!is_head) out += answer.body;
  return out;
}

}  // namespace serving
