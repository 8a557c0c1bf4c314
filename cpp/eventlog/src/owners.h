// owners.h: the text of OWNERS: which instance owns a producer id.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "eventlog/partition.h"

namespace eventlog {

// JSON: {"7": {"owner": 2, "sequence": 41}}.
[[nodiscard]] std::string encode_owners(const std::map<std::uint64_t, Owner>& owners);
// None for any other text.
[[nodiscard]] std::optional<std::map<std::uint64_t, Owner>> decode_owners(const std::string& text);

}  // namespace eventlog
