// job_records.cc: the newest record of each key, under one mutex.
#include "dataplane/job_records.h"

#include <utility>

#include "dataplane/error.h"

namespace dataplane {

void JobRecords::check(std::uint64_t key, std::size_t value_bytes) {
  if (key >= kMaxKeys) {
    throw engine::ConfigError("the key of a job record is " + std::to_string(key) + ", expected one below " +
                              std::to_string(kMaxKeys) + "; use fewer workers");
  }
  if (value_bytes > kMaxValueBytes) {
    throw engine::ConfigError("job record " + std::to_string(key) + " has " + std::to_string(value_bytes) +
                              " bytes, expected at most " + std::to_string(kMaxValueBytes) + "; shorten it");
  }
}

void JobRecords::put(JobRecord record) {
  check(record.key, record.value.size());
  const std::lock_guard lock(mutex_);
  const auto at = records_.find(record.key);
  if (at == records_.end()) {
    records_.emplace(record.key, std::move(record));
  } else if (at->second.client != record.client || at->second.revision < record.revision) {
    at->second = std::move(record);
  }
}

std::vector<JobRecord> JobRecords::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<JobRecord> records;
  for (const auto& [key, record] : records_) records.push_back(record);
  return records;
}

void JobRecords::replace(std::vector<JobRecord> records) {
  std::map<std::uint64_t, JobRecord> by_key;
  for (JobRecord& record : records) {
    check(record.key, record.value.size());
    by_key.insert_or_assign(record.key, std::move(record));
  }
  const std::lock_guard lock(mutex_);
  records_ = std::move(by_key);
}

}  // namespace dataplane
