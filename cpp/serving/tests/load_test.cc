// load_test.cc: a real server under load, while versions are swapped and cuts change rows and weights together.
//
// The dense program adds a weight of 1,000 * cut to rows of value `cut`, so a score of one cut is a multiple of 1,001.
// MONOLITH_LOAD_SECONDS sets the duration. MONOLITH_ONNX_LIBRARY is the path of ONNX Runtime's library.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>

#include "serving/model.h"
#include "serving/server.h"
#include "serving/service.h"
#include "wire_client.h"

namespace serving {
namespace {

using testing::GrpcClient;
using testing::RestClient;

constexpr int kIds = 64;
constexpr int kRows = 5;
constexpr float kWeightPerCut = 1000.0F;
constexpr const char* kPath = "/v1/models/m:predict";
constexpr const char* kMethod = "/tensorflow.serving.PredictionService/Predict";

// The program y = x + weight for x of (rows, 1).
std::string program_of(float weight) {
  const auto column = [](std::string_view name) {
    WireWriter rows, one, shape, tensor, type, info;
    rows.block(2, "rows");
    one.number(1, 1);
    shape.block(1, rows);
    shape.block(1, one);
    tensor.number(1, 1);
    tensor.block(2, shape);
    type.block(1, tensor);
    info.block(1, name);
    info.block(2, type);
    return info;
  };
  WireWriter node, weights, graph, opset, model;
  node.block(1, "layout/x");
  node.block(1, "w");
  node.block(2, "y");
  node.block(4, "Add");
  weights.number(1, 1);
  weights.number(2, 1);
  weights.block(8, "w");
  weights.block(9, std::string_view(reinterpret_cast<const char*>(&weight), sizeof weight));
  graph.block(1, node);
  graph.block(2, "sum");
  graph.block(5, weights);
  graph.block(11, column("layout/x"));
  graph.block(12, column("y"));
  opset.number(2, 13);
  model.number(1, 8);
  model.block(7, graph);
  model.block(8, opset);
  return model.take();
}

std::string record_of(std::int64_t id) {
  WireWriter ids, feature, named, example;
  ids.block(1, std::string_view(reinterpret_cast<const char*>(&id), sizeof id));
  feature.block(2, ids);
  named.block(1, "user");
  named.block(2, feature);
  example.block(1, named);
  return example.take();
}

std::string base64(std::string_view bytes) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      group = group << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) out += at + i <= bytes.size() ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

std::string json_request(int first) {
  std::string body = R"({"inputs":{"examples":[)";
  for (int row = 0; row < kRows; ++row) {
    body += row == 0 ? "" : ",";
    body += R"({"b64":")" + base64(record_of((first + row) % kIds)) + R"("})";
  }
  return body + "]}}";
}

std::string message_request(int first) {
  WireWriter spec, size, shape, tensor, entry, request;
  spec.block(1, "m");
  size.number(1, kRows);
  shape.block(2, size);
  tensor.number(1, 7);  // DT_STRING
  tensor.block(2, shape);
  for (int row = 0; row < kRows; ++row) tensor.block(8, record_of((first + row) % kIds));
  entry.block(1, "examples");
  entry.block(2, tensor);
  request.block(1, spec);
  request.block(2, entry);
  return request.take();
}

std::vector<float> floats_of_json(const std::string& body) {
  std::vector<float> values;
  for (std::size_t at = body.find('['); at != std::string::npos && at < body.size(); ++at) {
    if (std::isdigit(static_cast<unsigned char>(body[at])) == 0) continue;
    char* end = nullptr;
    values.push_back(std::strtof(body.c_str() + at, &end));
    at = static_cast<std::size_t>(end - body.c_str());
  }
  return values;
}

std::string_view block_of(std::string_view message, std::uint32_t number) {
  WireReader reader(message);
  for (WireField field; reader.next(field);) {
    if (field.number == number && field.is_block) return field.block;
  }
  return {};
}

std::vector<float> floats_of_message(std::string_view message) {
  const std::string_view bytes = block_of(block_of(block_of(message, 1), 2), 5);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// A version whose rows and weights are of one cut.
class Version {
 public:
  Version(std::int64_t number, std::shared_ptr<const OnnxRuntime> runtime) : runtime_(std::move(runtime)) {
    engine::SliceConfig slice;
    slice.dim = 1;
    slice.optimizer = {"sgd", {}};
    slice.initializer = {"zeros", {}};
    slice.compressor = {"fp32", {}};
    engine::TableConfig table;
    table.name = "user";
    table.slices = {slice};
    table_ = std::make_shared<engine::Table>(table, std::make_shared<engine::Pool>(1));
    ModelConfig config;
    config.name = "m";
    config.version = number;
    config.id_places = {0};
    config.layout_widths = {1};
    config.inputs = {{"layout/x", Source::kLayout, 0, {1}}};
    config.outputs = {{"y", {1}}};
    config.signatures["serving_default"] = {{0}, "examples"};
    engine::layout::Layouts layouts({1}, {{0, engine::Pooling::kSum, 0}}, {{0, 0, 0, 1, 0, 0}}, {1});
    Model::ParserRecipe recipe;
    recipe.rows.kind = engine::data::RecordKind::kExample;
    recipe.columns = {"user"};
    recipe.batch.sparse = {{.name = "user", .column = 0, .kind = engine::data::ValueKind::kFid}};
    model_ = std::make_shared<Model>(std::move(config), std::move(layouts), std::vector{std::move(recipe)});
    apply(1);
  }

  // Moves rows and weights to a cut together, as a follower does.
  void apply(int cut) {
    const std::string program = program_of(kWeightPerCut * static_cast<float>(cut));
    const auto dense = std::make_shared<const OnnxSession>(runtime_, std::as_bytes(std::span(program)));
    std::vector<std::int64_t> ids(kIds);
    for (int id = 0; id < kIds; ++id) ids[static_cast<std::size_t>(id)] = id;
    const std::vector<float> rows(kIds, static_cast<float>(cut));
    model_->lock();
    table_->assign(ids, rows.data(), 1);
    model_->show({table_}, dense, true);
    model_->unlock();
  }
  [[nodiscard]] const std::shared_ptr<Model>& model() const noexcept { return model_; }

 private:
  std::shared_ptr<const OnnxRuntime> runtime_;
  std::shared_ptr<engine::Table> table_;
  std::shared_ptr<Model> model_;
};

class LoadTest : public ::testing::Test {
 protected:
  // Repeats `act` in a thread until the end of the test; an exception fails the test.
  void repeat(std::function<void(int)> act) {
    threads_.emplace_back([this, act = std::move(act)] {
      try {
        for (int turn = 0; !is_over_; ++turn) act(turn);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        failures_.emplace_back(error.what());
        is_over_ = true;
      }
    });
  }
  void run_for(double seconds) {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    while (!is_over_ && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    is_over_ = true;
    for (std::thread& thread : threads_) thread.join();
    for (const std::string& failure : failures_) ADD_FAILURE() << failure;
  }
  void check_scores(const std::vector<float>& scores) {
    if (scores.size() != kRows) throw std::runtime_error("an answer has " + std::to_string(scores.size()) + " rows");
    for (const float score : scores) {
      if (score != scores.front() || std::fmod(score, kWeightPerCut + 1) != 0 || score <= 0) {
        throw std::runtime_error("scores of two cuts: " + std::to_string(scores.front()) + ", " +
                                 std::to_string(score));
      }
    }
    ++answers_;
  }

  std::atomic<bool> is_over_{false};
  std::atomic<int> answers_{0};

 private:
  std::mutex mutex_;
  std::vector<std::string> failures_;
  std::vector<std::thread> threads_;
};

TEST_F(LoadTest, EveryAnswerIsOfOneCutWhileVersionsSwapAndClientsLeave) {
  const char* library = std::getenv("MONOLITH_ONNX_LIBRARY");
  if (library == nullptr || *library == '\0') GTEST_SKIP() << "MONOLITH_ONNX_LIBRARY is not set";
  const char* seconds = std::getenv("MONOLITH_LOAD_SECONDS");
  const auto runtime = OnnxRuntime::open(library);

  ServiceConfig settings;
  settings.queue.threads = 3;
  settings.bounds_us = {100, 10'000};
  const auto service = std::make_shared<Service>(settings);
  ServerConfig listening;
  listening.rest_port = listening.grpc_port = 0;
  listening.io_threads = 2;
  listening.idle = listening.read = listening.answer = std::chrono::seconds(60);
  Server server(listening, service);
  const int rest = server.rest_port();
  const int grpc = server.grpc_port();

  std::mutex mutex;
  auto served = std::make_shared<Version>(1, runtime);
  const auto publish = [&service](const std::shared_ptr<Version>& version, double share) {
    auto routes = std::make_shared<Routes>();
    (*routes)["m"].versions[version->model()->config().version] = {version->model(), share};
    service->set_routes(routes);
  };
  publish(served, 0);

  for (int client = 0; client < 2; ++client) {
    repeat([&](int turn) {
      RestClient connection(rest);
      for (int call = 0; call < 20 && !is_over_; ++call) {
        const auto [status, body] = connection.call("POST", kPath, json_request(turn + call));
        if (status != 200) throw std::runtime_error("REST answered " + std::to_string(status) + " " + body);
        check_scores(floats_of_json(body));
      }
      if (const int status = connection.call("GET", "/v1/models/m", "").first; status != 418) {
        throw std::runtime_error("the Python path answered " + std::to_string(status));
      }
    });
    repeat([&](int turn) {
      GrpcClient connection(grpc);
      for (int call = 0; call < 20 && !is_over_; ++call) {
        const auto answer = connection.read(connection.open(kMethod, message_request(turn + call)));
        if (!answer) throw std::runtime_error("a call failed");
        check_scores(floats_of_message(*answer));
      }
    });
  }
  repeat([&](int turn) {  // clients that leave in the middle
    try {
      GrpcClient connection(grpc);
      for (int call = 0; call < 10; ++call) {
        const std::uint32_t stream = connection.open(kMethod, message_request(call));
        if (call % 2 == 0) connection.reset(stream);
      }
      if (turn % 3 == 0) connection.send_frame(GrpcClient::kData, 0, 0, "no stream");
      testing::Socket half(rest);
      half.send("POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
      testing::Socket early(rest);
      const std::string body = json_request(turn);
      early.send("POST " + std::string(kPath) +
                 " HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    } catch (const std::runtime_error&) {  // the server may close such a connection first
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  std::atomic<bool> has_clients{true};
  std::thread handlers([&] {  // of Python
    while (has_clients) {
      if (const auto call = service->next_call(std::chrono::milliseconds(20))) {
        Answer answer;
        answer.status = 418;
        answer.code = Code::kUnimplemented;
        call->request.caller->answer(std::move(answer));
      }
      (void)service->take_errors();
    }
  });
  repeat([&](int turn) {  // cuts
    std::shared_ptr<Version> version;
    {
      const std::lock_guard lock(mutex);
      version = served;
    }
    version->apply(turn % 1000 + 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  repeat([&](int turn) {  // new versions
    auto version = std::make_shared<Version>(turn + 2, runtime);
    publish(version, 0);
    {
      const std::lock_guard lock(mutex);
      served = std::move(version);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  repeat([&](int) {  // metrics
    (void)service->stats();
    (void)service->queued();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  run_for(seconds == nullptr ? 1.0 : std::atof(seconds));
  has_clients = false;
  handlers.join();

  // Requests in the queue get an answer while the server drains.
  GrpcClient last(grpc);
  const std::uint32_t stream = last.open(kMethod, message_request(0));
  std::thread closing([&] { server.close(std::chrono::seconds(10)); });
  try {
    if (const auto answer = last.read(stream)) check_scores(floats_of_message(*answer));
  } catch (const std::runtime_error&) {  // closed before the server had read the call
  }
  closing.join();
  service->close(std::chrono::seconds(10));
  EXPECT_EQ(server.stats().pending_bytes.load(), 0U);
  EXPECT_EQ(server.stats().connections.load(), 0U);
  EXPECT_GT(answers_, 10);
  RecordProperty("answers", answers_);
  std::printf("answers: %d\n", answers_.load());
}

}  // namespace
}  // namespace serving
