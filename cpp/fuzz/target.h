// target.h: shared by fuzz targets: their list, the reader of their input, and their failure.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "engine/data/records.h"
#include "engine/error.h"
#include "wire.h"

namespace fuzz {

using engine::data::Bytes;

// Form of the bytes after the options of an input.
enum class Layout : std::uint8_t {
  kBytes,
  kMessage,  // a protobuf message
  kPieces,   // messages, each with its length before it: see Input::piece
};

// A named entry point; each target file has one. The fuzzer runs the only one that is linked, the replay each by name.
struct Target {
  using Run = void (*)(Bytes);

  Target(std::string target_name, Run target_run, Layout target_layout = Layout::kBytes,
         std::size_t target_options = 0);
  [[nodiscard]] static std::vector<const Target*>& all();

  std::string name;
  Run run;
  Layout layout;
  std::size_t options;  // bytes before the part that has the layout
};

// The bytes that the fuzzer gives: options first, then pieces. Used up, it continues with zeros.
class Input {
 public:
  explicit Input(Bytes bytes) : left_(bytes) {}

  [[nodiscard]] bool done() const noexcept { return left_.empty(); }
  std::uint8_t byte();
  std::uint64_t word();
  // A length of two bytes, little-endian, and that many bytes, or all that are left.
  Bytes piece();
  std::vector<Bytes> pieces(std::size_t most);
  Bytes rest();

 private:
  Bytes left_;
};

// Ends the process, which the fuzzer reports as a finding.
[[noreturn]] void fail(const std::string& reason);

inline void expect(bool holds, const char* reason) {
  if (!holds) fail(reason);
}

// Runs `work`; true when it succeeded, false when it threw an engine error with a text.
template <typename Work>
bool accepts(Work&& work) {
  try {
    work();
    return true;
  } catch (const engine::Error& error) {
    expect(error.what()[0] != '\0', "an error has no text");
    return false;
  } catch (const engine::wire::Malformed& fault) {
    fail("wire::Malformed escaped: " + fault.reason);
  } catch (const std::exception& error) {
    fail(std::string("not an engine error: ") + error.what());
  }
}

// One stream of TFRecords out of the pieces, so that checksums do not stand in the fuzzer's way.
[[nodiscard]] std::vector<std::byte> frame_pieces(const std::vector<Bytes>& pieces);

}  // namespace fuzz
