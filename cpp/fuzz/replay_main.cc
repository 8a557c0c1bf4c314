// replay_main.cc: runs files through the targets without a fuzzer, so that any compiler and any test run covers the
// corpus.
//
//   fuzz_replay CORPUS            every file of CORPUS/<target>, for every target
//   fuzz_replay TARGET FILE...    these files
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "target.h"

namespace {

namespace fs = std::filesystem;

void replay(const fuzz::Target& target, const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open()) fuzz::fail("cannot read " + path.string());
  // Exactly as many bytes as the file has, so that a sanitizer sees a read past its end.
  const auto copy = std::make_unique<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  std::fprintf(stderr, "%s %s\n", target.name.c_str(), path.filename().c_str());
  target.run({copy.get(), bytes.size()});
}

int replay_corpus(const fs::path& corpus) {
  for (const fuzz::Target* target : fuzz::Target::all()) {
    std::vector<fs::path> files;
    if (fs::is_directory(corpus / target->name)) {
      for (const auto& entry : fs::directory_iterator(corpus / target->name)) files.push_back(entry.path());
    }
    if (files.empty()) fuzz::fail("target " + target->name + " has no file in " + corpus.string());
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) replay(*target, file);
    std::printf("%-26s %4zu files ok\n", target->name.c_str(), files.size());
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 2) return replay_corpus(arguments[1]);
  for (const fuzz::Target* target : fuzz::Target::all()) {
    if (count < 3 || target->name != arguments[1]) continue;
    for (int i = 2; i < count; ++i) replay(*target, arguments[i]);
    return 0;
  }
  std::fprintf(stderr, "usage: fuzz_replay CORPUS | fuzz_replay TARGET FILE...\n");
  return 2;
}
