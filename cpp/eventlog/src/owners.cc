// owners.cc: the text of OWNERS.
#include "owners.h"

#include <charconv>
#include <string_view>

namespace eventlog {

namespace {

// Takes tokens from the front of a JSON text of the one form that encode_owners writes, with any white space.
class Tokens {
 public:
  explicit Tokens(std::string_view text) : left_(text) {}

  bool take(std::string_view token) {
    skip_space();
    if (!left_.starts_with(token)) return false;
    left_.remove_prefix(token.size());
    return true;
  }
  bool take_number(std::uint64_t& number) {
    skip_space();
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), number);
    if (error != std::errc()) return false;
    left_.remove_prefix(static_cast<std::size_t>(end - left_.data()));
    return true;
  }
  [[nodiscard]] bool is_done() {
    skip_space();
    return left_.empty();
  }

 private:
  void skip_space() {
    while (!left_.empty() && (left_.front() == ' ' || left_.front() == '\n')) left_.remove_prefix(1);
  }

  std::string_view left_;
};

bool take_owner(Tokens& tokens, std::map<std::uint64_t, Owner>& owners) {
  std::uint64_t producer = 0;
  Owner owner;
  if (!tokens.take("\"") || !tokens.take_number(producer) || !tokens.take("\"") || !tokens.take(":")) return false;
  if (!tokens.take("{") || !tokens.take("\"owner\"") || !tokens.take(":")) return false;
  if (!tokens.take_number(owner.owner) || !tokens.take(",") || !tokens.take("\"sequence\"")) return false;
  if (!tokens.take(":") || !tokens.take_number(owner.sequence) || !tokens.take("}")) return false;
  owners[producer] = owner;
  return true;
}

}  // namespace

std::string encode_owners(const std::map<std::uint64_t, Owner>& owners) {
  std::string text = "{";
  for (const auto& [producer, owner] : owners) {
    if (text.size() > 1) text += ", ";
    text += "\"" + std::to_string(producer) + "\": {\"owner\": " + std::to_string(owner.owner) +
            ", \"sequence\": " + std::to_string(owner.sequence) + "}";
  }
  return text + "}\n";
}

std::optional<std::map<std::uint64_t, Owner>> decode_owners(const std::string& text) {
  std::map<std::uint64_t, Owner> owners;
  Tokens tokens(text);
  if (!tokens.take("{")) return std::nullopt;
  if (tokens.take("}")) return tokens.is_done() ? std::optional(owners) : std::nullopt;
  do {
    if (!take_owner(tokens, owners)) return std::nullopt;
  } while (tokens.take(","));
  if (!tokens.take("}") || !tokens.is_done()) return std::nullopt;
  return owners;
}

}  // namespace eventlog
