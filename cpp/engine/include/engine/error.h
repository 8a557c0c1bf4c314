// error.h: the exceptions the engine throws; the bindings turn each into its Python namesake.
#pragma once

#include <stdexcept>
#include <string>

namespace engine {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's settings are wrong; retrying cannot help.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// An array's width or length does not fit the table.
class DimensionMismatch : public Error {
 public:
  using Error::Error;
};

// The table's byte budget does not allow the new rows. Nothing was changed.
class CapacityExceeded : public Error {
 public:
  using Error::Error;
};

// A snapshot file is torn, truncated or altered. The text names file, offset and reason.
class SnapshotCorrupt : public Error {
 public:
  using Error::Error;
};

// A record of a foreign format cannot be decoded. The text names the offset and the reason.
class RecordCorrupt : public Error {
 public:
  using Error::Error;
};

// A well-formed record does not fit the declared features. The text names the feature.
class SchemaMismatch : public Error {
 public:
  using Error::Error;
};

// A save or an eviction would drop too large a share of a table's rows. Nothing was changed.
class ExpiryRefused : public Error {
 public:
  using Error::Error;
};

// The operating system refused to read or write a file. Python sees an OSError with errno and filename.
class IoError : public Error {
 public:
  // `verb` and `path` name the failed operation; `code` is the errno.
  IoError(const std::string& verb, std::string path, int code, const std::string& remedy = "");

  [[nodiscard]] int code() const noexcept { return code_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // The text without errno and path, which an OSError spells itself.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  std::string path_;
  std::string reason_;
  int code_;
};

}  // namespace engine
