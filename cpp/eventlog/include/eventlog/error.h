// error.h: failures of an event log, beside the engine's errors.
#pragma once

#include "engine/error.h"

namespace eventlog {

// The log cannot be read or written as asked: it has failed, has changed, or lacks the offset.
class DataError : public engine::Error {
 public:
  using Error::Error;
};

// The operating system refused an append, so the log is unchanged. The same append may succeed later.
class AppendRefused : public DataError {
 public:
  using DataError::DataError;
};

// A newer release wrote the file. Nothing was changed.
class VersionConflict : public engine::Error {
 public:
  using Error::Error;
};

// Another process has taken over the producer id. Nothing was written.
class Fenced : public engine::Error {
 public:
  using Error::Error;
};

}  // namespace eventlog
