// scorer.cc: a free thread takes the oldest job and all jobs like it.
#include "serving/scorer.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/error.h"
#include "serving/score_answer.h"

namespace serving {

namespace {

constexpr const char* kStopping = "the server is stopping; use another replica";

std::shared_ptr<const engine::data::Records> join_records(const std::vector<ScoreJob>& jobs) {
  std::size_t bytes = 0;
  std::size_t count = 0;
  for (const ScoreJob& job : jobs) {
    for (const auto& entry : job.records->entries) bytes += entry.size;
    count += job.records->size();
  }
  auto buffer = engine::data::Buffer::take(std::max<std::size_t>(bytes, 1));
  auto joined = std::make_shared<engine::data::Records>();
  joined->source = "records";
  joined->entries.reserve(count);
  std::uint64_t at = 0;
  for (const ScoreJob& job : jobs) {
    for (std::size_t i = 0; i < job.records->size(); ++i) {
      const engine::data::Bytes record = (*job.records)[i];
      if (!record.empty()) std::memcpy(buffer->data() + at, record.data(), record.size());
      joined->entries.push_back({at, static_cast<std::uint32_t>(record.size()), 0, at});
      at += record.size();
    }
  }
  joined->buffer = std::move(buffer);
  return joined;
}

}  // namespace

Answer make_failure(Api api, Code code, const std::string& text) {
  Answer answer;
  answer.code = code;
  answer.status = http_status(code);
  answer.message = client_text(text);
  if (api == Api::kRest) {
    answer.body = write_error(answer.message);
    if (code == Code::kResourceExhausted || code == Code::kUnavailable) answer.headers.emplace_back("Retry-After", "1");
  }
  return answer;
}

Scorer::Scorer(QueueConfig config, RequestStats& stats) : config_(config), stats_(stats) {
  try {
    for (std::size_t i = 0; i < std::max<std::size_t>(config_.threads, 1); ++i) {
      threads_.emplace_back([this] { serve(); });
      pthread_setname_np(threads_.back().native_handle(), ("score-" + std::to_string(i)).c_str());
    }
  } catch (...) {  // the system has no further thread
    close({});
    throw;
  }
}

void Scorer::submit(ScoreJob job) {
  const std::size_t rows = std::max<std::size_t>(job.rows, 1);
  std::string refusal;
  Code code = Code::kUnavailable;
  {
    const std::lock_guard lock(mutex_);
    const bool is_full = rows_ + rows > config_.max_queued_rows || bytes_ + job.bytes > config_.max_queued_bytes;
    if (is_closed_) {
      refusal = kStopping;
    } else if (is_full && !jobs_.empty()) {  // an empty queue takes any single request
      code = Code::kResourceExhausted;
      refusal = "the queue is full (" + std::to_string(rows_) + " rows, " + std::to_string(bytes_) +
                " bytes); retry later, or use another replica";
    } else {
      job.queued = Clock::now();
      rows_ += rows;
      bytes_ += job.bytes;
      jobs_.push_back(std::move(job));
    }
  }
  if (refusal.empty()) {
    arrived_.notify_one();
  } else {
    fail(job, code, refusal);
  }
}

void Scorer::close(Clock::duration drain) {
  std::deque<ScoreJob> left;
  {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    arrived_.notify_all();
    idle_.wait_for(lock, drain, [this] { return jobs_.empty() && under_way_ == 0; });
    left.swap(jobs_);
    rows_ = bytes_ = 0;
  }
  arrived_.notify_all();
  for (const ScoreJob& job : left) fail(job, Code::kUnavailable, kStopping);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

Scorer::Load Scorer::queued() const {
  const std::lock_guard lock(mutex_);
  return {jobs_.size(), rows_};
}

void Scorer::serve() {
  std::vector<ScoreJob> jobs;
  std::unique_lock lock(mutex_);
  for (;;) {
    arrived_.wait(lock, [this] { return !jobs_.empty() || is_closed_; });
    if (jobs_.empty()) return;
    take(lock, jobs);
    if (jobs.empty()) continue;
    ++under_way_;
    if (!jobs_.empty()) arrived_.notify_one();
    const bool is_alone = under_way_ == 1 && jobs.size() == 1 && jobs_.empty();
    lock.unlock();
    compute(jobs, is_alone);
    jobs.clear();  // releases records and versions without the lock
    lock.lock();
    if (--under_way_ == 0 && jobs_.empty()) idle_.notify_all();
  }
}

void Scorer::take(std::unique_lock<std::mutex>& lock, std::vector<ScoreJob>& jobs) {
  if (config_.wait > Clock::duration{}) {
    const Clock::time_point until = jobs_.front().queued + config_.wait;
    while (!jobs_.empty() && rows_ < config_.max_rows && !is_closed_ && Clock::now() < until) {
      arrived_.wait_until(lock, until);
    }
    if (jobs_.empty()) return;
  }
  jobs.push_back(std::move(jobs_.front()));
  jobs_.pop_front();
  std::size_t rows = jobs.front().rows;
  // The other free threads find work too: a batch takes no more than its share of the queue.
  const std::size_t share = jobs_.size() / std::max<std::size_t>(config_.threads, 1);
  for (auto job = jobs_.begin(); job != jobs_.end() && jobs.size() <= share;) {
    if (job->is_alike(jobs.front()) && rows + job->rows <= config_.max_rows) {
      rows += job->rows;
      jobs.push_back(std::move(*job));
      job = jobs_.erase(job);
    } else {
      ++job;
    }
  }
  for (const ScoreJob& job : jobs) {
    rows_ -= std::max<std::size_t>(job.rows, 1);
    bytes_ -= job.bytes;
  }
}

void Scorer::compute(std::vector<ScoreJob>& jobs, bool is_alone) {
  const Clock::time_point now = Clock::now();
  std::erase_if(jobs, [&](const ScoreJob& job) {
    if (job.deadline > now && job.caller->is_wanted()) return false;
    fail(job, Code::kDeadlineExceeded, "the deadline passed while the request was queued; use a longer deadline");
    return true;
  });
  if (jobs.empty()) return;
  std::size_t rows = 0;
  for (const ScoreJob& job : jobs) rows += job.rows;
  stats_.count_batch(rows, now - jobs.front().queued);
  if (jobs.size() > 1 && compute_together(jobs)) return;
  for (ScoreJob& job : jobs) compute_one(job, is_alone ? &helper_ : nullptr);
}

bool Scorer::compute_together(std::vector<ScoreJob>& jobs) {
  std::size_t rows = 0;
  for (const ScoreJob& job : jobs) rows += job.rows;
  Scores scores;
  try {
    scores = jobs.front().model->score(join_records(jobs), jobs.front().kind, jobs.front().outputs);
  } catch (const std::exception&) {  // one request is invalid; computing one by one finds it
    return false;
  }
  if (scores.rows != rows) return false;
  std::size_t begin = 0;
  for (const ScoreJob& job : jobs) {
    finish(job, scores, begin, job.rows);
    begin += job.rows;
  }
  return true;
}

void Scorer::compute_one(ScoreJob& job, HelpingThread* helper) {
  try {
    const Scores scores = job.model->score(job.records, job.kind, job.outputs, helper);
    finish(job, scores, 0, scores.rows);
  } catch (const Failure& failure) {
    fail(job, failure.code(), failure.what());
  } catch (const engine::RecordCorrupt& error) {
    fail(job, Code::kInvalidArgument, error.what());
  } catch (const engine::SchemaMismatch& error) {
    fail(job, Code::kInvalidArgument, error.what());
  } catch (const engine::ConfigError& error) {
    fail(job, Code::kInvalidArgument, error.what());
  } catch (const engine::DimensionMismatch& error) {
    fail(job, Code::kInvalidArgument, error.what());
  } catch (const std::bad_alloc&) {
    fail(job, Code::kResourceExhausted, "the request needs more memory than there is; send fewer rows");
  } catch (const std::exception& error) {
    fail_unexpectedly(job, error.what());
  }
}

void Scorer::finish(const ScoreJob& job, const Scores& scores, std::size_t begin, std::size_t rows) {
  const ScoreSlice slice{*job.model, scores, job.outputs, begin, rows};
  Answer answer;
  answer.body = job.api == Api::kRest ? write_json(slice, job.is_by_row) : write_message(slice, job.signature);
  stats_.count_answer(job.model->config().name, job.api, Code::kOk, Clock::now() - job.begun);
  job.caller->answer(std::move(answer));
}

void Scorer::fail_unexpectedly(const ScoreJob& job, const std::string& text) {
  constexpr std::size_t kMostErrors = 16;  // between two calls of take_errors
  {
    const std::lock_guard lock(mutex_);
    const ModelConfig& config = job.model->config();
    if (errors_.size() < kMostErrors) {
      errors_.push_back("model=" + config.name + " version=" + std::to_string(config.version) + " error=" + text);
    }
  }
  fail(job, Code::kInternal, "internal error; see the log of the server");
}

std::vector<std::string> Scorer::take_errors() {
  const std::lock_guard lock(mutex_);
  return std::exchange(errors_, {});
}

void Scorer::fail(const ScoreJob& job, Code code, const std::string& text) {
  stats_.count_answer(job.model->config().name, job.api, code, Clock::now() - job.begun);
  job.caller->answer(make_failure(job.api, code, text));
}

}  // namespace serving
