// score_request_test.cc: the plain form of requests, and all that is left to the Python path.
#include "serving/score_request.h"

#include <gtest/gtest.h>

#include "serving/grpc_frame.h"
#include "wire_writer.h"

namespace serving {
namespace {

std::string text_of(const ScoreRequest& request, std::size_t index) {
  const auto bytes = (*request.records)[index];
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ScoreRequestTest, JsonWithRecordsIsReadInEveryForm) {
  struct Form {
    const char* body;
    const char* input;
    bool is_by_row;
    std::size_t records;
  };
  for (const Form& form : {
           Form{R"({"inputs":{"examples":[{"b64":"YQ=="},{"b64":"YmM="}]}})", "examples", false, 2},
           Form{R"( { "inputs" : { "examples" : { "b64" : "YQ==" } } } )", "examples", false, 1},
           Form{R"({"inputs":[{"b64":"YQ=="}],"signature_name":"s"})", "", false, 1},
           Form{R"({"inputs":{"b64":"YQ=="}})", "", false, 1},
           Form{R"({"instances":[{"b64":"YQ=="},{"b64":"YmM="}]})", "", true, 2},
           Form{R"({"instances":[{"examples":{"b64":"YQ=="}},{"examples":[{"b64":"YmM="}]}]})", "examples", true, 2},
       }) {
    const auto request = read_predict_json(form.body, 1000);
    ASSERT_TRUE(request) << form.body;
    EXPECT_EQ(request->input, form.input);
    EXPECT_EQ(request->is_by_row, form.is_by_row);
    ASSERT_EQ(request->records->size(), form.records);
    EXPECT_EQ(text_of(*request, 0), "a");
    if (form.records == 2) {
      EXPECT_EQ(text_of(*request, 1), "bc");
    }
  }
}

TEST(ScoreRequestTest, AnyOtherJsonIsLeftToPython) {
  for (const char* body : {
           "",
           "[]",
           "{}",
           R"({"inputs":{}})",
           R"({"inputs":[]})",
           R"({"instances":[]})",
           R"({"instances":[{"b64":"YQ=="}],"inputs":[{"b64":"YQ=="}]})",
           R"({"inputs":[{"b64":"YQ=="}]}x)",
           R"({"inputs":[{"b64":"YQ=="}],})",
           R"({"inputs":[{"b64":"YQ="}]})",
           R"({"inputs":[{"b64":"Y!=="}]})",
           R"({"inputs":[{"b64":1}]})",
           R"({"inputs":[{"b64":"YQ==","b65":""}]})",
           R"({"inputs":{"a":[{"b64":"YQ=="}],"b":[{"b64":"YQ=="}]}})",
           R"({"instances":[{"a":{"b64":"YQ=="}},{"b":{"b64":"YQ=="}}]})",
           R"({"instances":[{"b64":"YQ=="},{"a":{"b64":"YQ=="}}]})",
           R"({"inputs":[{"b64":"YQ=="}],"other":1})",
           R"({"inputs":[{"b64":"YQ=="}],"signature_name":"a\u0041"})",
           R"({"inputs":[{"b64":"YQ=="}],"signature_name":"a","signature_name":"b"})",
           R"({"inputs":[[[[[[[[[[{"b64":"YQ=="}]]]]]]]]]]})",
           R"({"instances":[{"user":7}]})",
       }) {
    EXPECT_FALSE(read_predict_json(body, 1000)) << body;
  }
  EXPECT_FALSE(read_predict_json(R"({"inputs":[{"b64":"YQ=="},{"b64":"YQ=="}]})", 4));
}

TEST(ScoreRequestTest, PathsNameModelVersionAndLabel) {
  ScoreRequest request;
  EXPECT_TRUE(read_predict_path("/v1/models/m:predict", request));
  EXPECT_EQ(request.model, "m");
  EXPECT_TRUE(read_predict_path("/v1/models/m/versions/12:predict", request));
  EXPECT_EQ(request.version, 12);
  EXPECT_TRUE(read_predict_path("/v1/models/m/labels/new:predict", request));
  EXPECT_EQ(request.label, "new");
  for (const char* path :
       {"/v1/models/:predict", "/v1/models/m", "/v1/models/m:classify", "/v1/models/m/x/1:predict",
        "/v1/models/m/versions/x:predict", "/v1/models/m/versions/-1:predict", "/v1/models/m/versions/:predict",
        "/v1/models/%6d:predict", "/v1/models/m/labels/a/b:predict"}) {
    ScoreRequest other;
    EXPECT_FALSE(read_predict_path(path, other)) << path;
  }
}

std::string tensor(std::initializer_list<std::string_view> records, std::uint64_t size, std::uint64_t type = 7) {
  WireWriter dim, shape, written;
  dim.number(1, size);
  shape.block(2, dim);
  written.number(1, type);
  written.block(2, shape);
  for (const auto& record : records) written.block(8, record);
  return written.take();
}

std::string message(std::string_view model, std::string_view input, std::string_view value, int names = 1) {
  WireWriter spec, entry, request;
  for (int i = 0; i < names; ++i) spec.block(1, model);
  entry.block(1, input);
  entry.block(2, value);
  request.block(1, spec);
  request.block(2, entry);
  request.block(3, "score");
  return request.take();
}

TEST(ScoreRequestTest, AMessageWithRecordsIsRead) {
  const auto request = read_predict_message(message("m", "examples", tensor({"a", "", "bc"}, 3)));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->model, "m");
  EXPECT_EQ(request->input, "examples");
  EXPECT_EQ(request->wanted, std::vector<std::string>{"score"});
  ASSERT_EQ(request->records->size(), 3U);
  EXPECT_EQ(text_of(*request, 1), "");
  EXPECT_EQ(text_of(*request, 2), "bc");
}

TEST(ScoreRequestTest, AnyOtherMessageIsLeftToPython) {
  EXPECT_FALSE(read_predict_message(""));
  EXPECT_FALSE(read_predict_message(message("", "examples", tensor({"a"}, 1))));
  EXPECT_FALSE(read_predict_message(message("m", "", tensor({"a"}, 1))));
  EXPECT_FALSE(read_predict_message(message("m", "examples", tensor({"a"}, 2))));
  EXPECT_FALSE(read_predict_message(message("m", "examples", tensor({"a"}, 1, 1))));
  EXPECT_FALSE(read_predict_message(message("m", "examples", tensor({}, 0))));
  EXPECT_FALSE(read_predict_message(message("m", "examples", tensor({"a"}, 1), 2)));
  const std::string whole = message("m", "examples", tensor({"abc"}, 1));
  EXPECT_TRUE(read_predict_message(whole));
  EXPECT_FALSE(read_predict_message(whole + whole));
  for (std::size_t size = 1; size + 7 < whole.size(); ++size) {
    EXPECT_FALSE(read_predict_message(std::string_view(whole).substr(0, size))) << size;
  }
}

TEST(GrpcFrameTest, TimeoutsAndMessagesAreRead) {
  EXPECT_EQ(read_grpc_timeout("15S"), std::chrono::seconds(15));
  EXPECT_EQ(read_grpc_timeout("100m"), std::chrono::milliseconds(100));
  EXPECT_EQ(read_grpc_timeout("7u"), std::chrono::microseconds(7));
  for (const char* text : {"", "S", "1", "1x", "-1S", "123456789S", "1.5S"}) EXPECT_FALSE(read_grpc_timeout(text));
  EXPECT_EQ(escape_grpc_message("50% of \n ä"), "50%25 of %0A %C3%A4");
  std::string prefix;
  append_grpc_prefix(70000, prefix);
  EXPECT_EQ(read_grpc_prefix(prefix)->size, 70000U);
  EXPECT_FALSE(read_grpc_prefix("\2abcd"));
}

}  // namespace
}  // namespace serving
