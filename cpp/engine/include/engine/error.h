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

// The operating system refused to read or write a file.
class IoError : public Error {
 public:
  using Error::Error;
};

}  // namespace engine
