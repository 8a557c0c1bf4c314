// job_records.h: small values of a job that a shard keeps beside its rows. An update replaces a value as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace dataplane {

struct JobRecord {
  std::uint64_t key = 0;
  std::uint64_t client = 0;    // the client that wrote the value
  std::uint64_t revision = 0;  // rises with each update of a client
  std::string value;
};

// The newest record of each key. Concurrent.
class JobRecords {
 public:
  static constexpr std::uint64_t kMaxKeys = 65536;
  static constexpr std::size_t kMaxValueBytes = 4096;

  // Throws ConfigError when the key or the value is past its limit.
  static void check(std::uint64_t key, std::size_t value_bytes);

  // Replaces the record of the key. Ignores a repeated or delayed update: its client has written that revision or a
  // later one.
  void put(JobRecord record);

  // All records, by key; and back, replacing the present ones.
  [[nodiscard]] std::vector<JobRecord> all() const;
  void replace(std::vector<JobRecord> records);

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, JobRecord> records_;
};

}  // namespace dataplane
