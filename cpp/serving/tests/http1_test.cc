// http1_test.cc: heads, chunks and answers of HTTP/1.1.
#include "serving/http1.h"

#include <gtest/gtest.h>

namespace serving {
namespace {

constexpr std::size_t kMaxBody = 1000;

int status_of(std::string_view head) {
  try {
    (void)read_head(head, kMaxBody);
    return 200;
  } catch (const HttpError& error) {
    return error.status();
  }
}

TEST(Http1Test, AHeadIsReadIntoItsParts) {
  const Http1Head head = read_head(
      "POST /v1/models/m:predict?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\nX-Some:  a \r\nx-some: b", kMaxBody);
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.path, "/v1/models/m:predict");
  EXPECT_EQ(head.length, 12U);
  EXPECT_EQ(find_header(head.headers, "x-some"), "a, b");
  EXPECT_TRUE(head.keeps_alive);
  EXPECT_FALSE(read_head("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close", kMaxBody).keeps_alive);
  EXPECT_FALSE(read_head("GET / HTTP/1.0", kMaxBody).keeps_alive);
  EXPECT_TRUE(read_head("GET / HTTP/1.0\r\nConnection: keep-alive", kMaxBody).keeps_alive);
}

TEST(Http1Test, AHeadThatTwoReadersCouldTakeDifferentlyIsRefused) {
  EXPECT_EQ(status_of("GET / HTTP/1.1"), 400);                     // no host
  EXPECT_EQ(status_of("GET  / HTTP/1.1\r\nHost: h"), 400);         // two spaces
  EXPECT_EQ(status_of("GET http://h/ HTTP/1.1\r\nHost: h"), 400);  // not a path
  EXPECT_EQ(status_of("GET / HTTP/2\r\nHost: h"), 505);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: h\r\n folded: x"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: h\r\nHost: h"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: h\r\nAuthorization: a\r\nAuthorization: b"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 01"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001"), 413);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip"), 501);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: br"), 415);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nExpect: money"), 417);
  std::string many = "GET / HTTP/1.1\r\nHost: h";
  for (int i = 0; i < 100; ++i) many += "\r\na" + std::to_string(i) + ": b";
  EXPECT_EQ(status_of(many), 431);
}

TEST(Http1Test, ChunksArriveInAnyPieces) {
  const std::string text = "4;name=x\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\nNEXT";
  for (std::size_t step = 1; step <= text.size(); ++step) {
    ChunkReader reader(kMaxBody);
    std::string buffer;
    bool is_complete = false;
    for (std::size_t at = 0; at < text.size(); at += step) {
      buffer += text.substr(at, step);
      if (!is_complete) is_complete = reader.take(buffer);
    }
    EXPECT_TRUE(is_complete) << step;
    EXPECT_EQ(reader.body, "Wikipedia") << step;
    EXPECT_EQ(buffer, "NEXT") << step;
  }
}

TEST(Http1Test, ChunksThatAreWrongOrTooLargeAreRefused) {
  for (const std::string_view text :
       {"x\r\n", "-1\r\n", "3\r\nabcd\r\n", "0\r\nA: b\r\n\r\n", "3e9\r\n", "fffffffff\r\n"}) {
    ChunkReader reader(kMaxBody);
    std::string buffer(text);
    EXPECT_THROW((void)reader.take(buffer), HttpError) << text;
  }
}

TEST(Http1Test, AnAnswerHasItsLengthAndNoHeaderBreaksIt) {
  Answer answer;
  answer.status = 404;
  answer.body = "{}";
  answer.headers = {{"A", "b"}, {"C", "d\r\nE: f"}};
  EXPECT_EQ(write_http1(answer, false, true),
            "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\nA: b\r\n"
            "Connection: close\r\n\r\n{}");
  EXPECT_FALSE(write_http1(answer, true, false).ends_with("{}"));
}

}  // namespace
}  // namespace serving
