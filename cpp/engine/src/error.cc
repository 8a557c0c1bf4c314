// error.cc: the texts of errors that need more than a sentence.
#include "engine/error.h"

#include <cstring>
#include <utility>

namespace engine {

IoError::IoError(const std::string& verb, std::string path, int code, const std::string& remedy)
    : Error("cannot " + verb + " '" + path + "': " + std::strerror(code) + remedy),
      path_(std::move(path)),
      reason_("cannot " + verb + ": " + std::strerror(code) + remedy),
      code_(code) {}

}  // namespace engine
