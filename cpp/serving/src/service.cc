// service.cc: routes and the queue of the Python path.
#include "serving/service.h"

#include <random>

#include "engine/data/batch_rows.h"
#include "serving/score_request.h"

namespace serving {

namespace {

constexpr std::string_view kPredict = "/tensorflow.serving.PredictionService/Predict";
constexpr const char* kDefaultSignature = "serving_default";

const RoutedVersion* find_version(const Routes& routes, const ScoreRequest& request) {
  const auto route = routes.find(request.model);
  if (route == routes.end() || route->second.versions.empty()) return nullptr;
  const auto& versions = route->second.versions;
  if (!request.label.empty()) {
    const auto label = route->second.labels.find(request.label);
    if (label == route->second.labels.end()) return nullptr;
    const auto found = versions.find(label->second);
    return found == versions.end() ? nullptr : &found->second;
  }
  if (!request.version) return &versions.rbegin()->second;
  const auto found = versions.find(*request.version);
  return found == versions.end() ? nullptr : &found->second;
}

// Rows that the records claim; nothing where a record is not a message.
std::optional<std::size_t> count_rows(const engine::data::Records& records, engine::data::RecordKind kind) {
  if (kind != engine::data::RecordKind::kExampleBatch) return records.size();
  std::size_t rows = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto found = engine::data::batch_rows(records[i]);
    if (!found) return std::nullopt;
    rows += *found;
  }
  return rows;
}

// The canary gets a share of many requests, and almost each of few: a quiet model has a sample too.
constexpr double kCanaryShare = 1.0 / 32;
constexpr auto kCanaryInterval = std::chrono::milliseconds(100);

bool is_drawn(double share) {
  if (share <= 0) return false;
  thread_local std::minstd_rand random{std::random_device{}()};
  return std::uniform_real_distribution<>(0, 1)(random) < share;
}

}  // namespace

Service::Service(ServiceConfig config)
    : config_(std::move(config)),
      stats_(config_.bounds_us),
      scorer_(config_.queue, stats_),
      routes_(std::make_shared<const Routes>()) {}

void Service::set_routes(std::shared_ptr<const Routes> routes) {
  std::shared_ptr<const Routes> before;  // released without the lock: it may be the last reference to a version
  const std::lock_guard lock(routes_mutex_);
  before = std::exchange(routes_, std::move(routes));
}

std::shared_ptr<const Routes> Service::routes() const {
  const std::lock_guard lock(routes_mutex_);
  return routes_;
}

void Service::submit(Request request) {
  std::optional<bool> is_logged;
  try {
    if (submit_score(request, is_logged)) return;
  } catch (const std::bad_alloc&) {
    request.caller->answer(make_failure(request.api, Code::kResourceExhausted,
                                        "the request needs more memory than there is; send fewer rows"));
    return;
  }
  std::string refusal;
  {
    const std::lock_guard lock(calls_mutex_);
    if (is_closed_) {
      refusal = "the server is stopping; use another replica";
    } else if (calls_.size() >= config_.max_waiting) {
      refusal = "the server has too many requests; retry later";
    } else {
      calls_.push_back({std::move(request), is_logged});
    }
  }
  if (refusal.empty()) {
    call_arrived_.notify_one();
  } else {
    request.caller->answer(make_failure(request.api, Code::kUnavailable, refusal));
  }
}

bool Service::submit_score(Request& request, std::optional<bool>& is_logged) {
  if (request.is_compressed || request.body.size() > config_.max_inline_bytes) return false;
  std::optional<ScoreRequest> parsed;
  if (request.api == Api::kGrpc) {
    if (request.path != kPredict) return false;
    parsed = read_predict_message(request.body);
  } else {
    ScoreRequest target;
    if (request.method != "POST" || !read_predict_path(request.path, target)) return false;
    parsed = read_predict_json(request.body, config_.max_values);
    if (parsed) {
      parsed->model = std::move(target.model);
      parsed->version = target.version;
      parsed->label = std::move(target.label);
    }
  }
  if (!parsed) return false;
  const auto routes = this->routes();
  const RoutedVersion* version = find_version(*routes, *parsed);
  if (version == nullptr || version->model == nullptr) return false;
  const Model& model = *version->model;
  if (parsed->signature.empty()) parsed->signature = kDefaultSignature;
  const auto signature = model.config().signatures.find(parsed->signature);
  if (signature == model.config().signatures.end()) return false;
  const auto kind = record_kind(parsed->input.empty() ? signature->second.only_input : parsed->input);
  if (!kind) return false;
  ScoreJob job;
  if (!model.find_outputs(signature->second, parsed->wanted, job.outputs) || job.outputs.empty()) return false;
  const auto rows = count_rows(*parsed->records, *kind);
  if (!rows) return false;
  const bool is_for_log = is_drawn(version->logged_share);
  if (is_for_log || (version->has_canary && (is_drawn(kCanaryShare) || model.take_turn(kCanaryInterval)))) {
    is_logged = is_for_log;
    return false;
  }
  job.model = version->model;
  job.signature = std::move(parsed->signature);
  job.kind = *kind;
  job.rows = *rows;
  for (const auto& entry : parsed->records->entries) job.bytes += entry.size;
  job.records = std::move(parsed->records);
  job.is_by_row = parsed->is_by_row;
  job.api = request.api;
  job.begun = request.begun;
  job.deadline = request.deadline;
  job.caller = std::move(request.caller);
  scorer_.submit(std::move(job));
  return true;
}

std::optional<Service::PythonCall> Service::next_call(Clock::duration wait) {
  std::unique_lock lock(calls_mutex_);
  call_arrived_.wait_for(lock, wait, [this] { return !calls_.empty() || is_closed_; });
  if (calls_.empty()) return std::nullopt;
  PythonCall call = std::move(calls_.front());
  calls_.pop_front();
  return call;
}

void Service::close(Clock::duration drain) {
  std::deque<PythonCall> left;
  {
    const std::lock_guard lock(calls_mutex_);
    is_closed_ = true;
    left.swap(calls_);
  }
  call_arrived_.notify_all();
  for (const PythonCall& call : left) {
    call.request.caller->answer(
        make_failure(call.request.api, Code::kUnavailable, "the server is stopping; use another replica"));
  }
  scorer_.close(drain);
  set_routes(std::make_shared<const Routes>());
}

}  // namespace serving
