// table_image_test.cc: an image holds the rows that were written, changes stay out of the file, and damage is refused.
#include "engine/table_image.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/crc32c.h"
#include "engine/error.h"
#include "image_format.h"
#include "row_columns.h"

namespace engine {
namespace {

using Memory = TableImage::Memory;
using Content = std::vector<char>;

class TableImageTest : public ::testing::Test {
 protected:
  TableImageTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = (std::filesystem::temp_directory_path() /
             ("image-" + std::to_string(::getpid()) + "-" + info->name() + ".table"))
                .string();
  }
  ~TableImageTest() override { std::filesystem::remove(path_); }

  static SliceConfig slice(std::uint32_t dim, const char* kind) {
    return {.dim = dim,
            .optimizer = {.kind = "sgd", .settings = {}},
            .initializer = {.kind = "zeros", .settings = {}},
            .compressor = {.kind = kind, .settings = {}}};
  }
  static std::unique_ptr<Table> make(std::uint32_t dim, const char* kind = "fp32") {
    static const auto pool = std::make_shared<Pool>(2);
    TableConfig config;
    config.name = "t";
    config.slices = {slice(dim, kind)};
    config.is_serving = true;
    return std::make_unique<Table>(config, pool);
  }
  static std::vector<std::int64_t> ids(std::int64_t count) {
    std::vector<std::int64_t> made;
    for (std::int64_t i = 0; i < count; ++i) made.push_back(i * i - 7 * i);
    std::sort(made.begin(), made.end());
    made.erase(std::unique(made.begin(), made.end()), made.end());
    return made;
  }
  static float value(std::int64_t id, std::size_t column) {
    return static_cast<float>(id % 1000) + static_cast<float>(column) / 4;
  }
  // A table with `count` rows, written.
  void write(std::int64_t count, std::uint32_t dim) {
    const auto table = make(dim);
    const auto keys = ids(count);
    std::vector<float> rows;
    for (const std::int64_t id : keys) {
      for (std::uint32_t column = 0; column < dim; ++column) rows.push_back(value(id, column));
    }
    table->assign(keys, rows.data(), 1000);
    const ImageFile file = write_image(*table, path_);
    EXPECT_EQ(file.rows, keys.size());
    EXPECT_EQ(file.bytes, std::filesystem::file_size(path_));
  }
  std::unique_ptr<Table> load(std::uint32_t dim, Memory memory = Memory::kMapped) const {
    auto table = make(dim);
    table->adopt(std::make_unique<TableImage>(path_, std::filesystem::file_size(path_), *table, memory));
    return table;
  }
  static void expect_rows(const Table& table, std::int64_t count) {
    const auto keys = ids(count);
    const std::size_t dim = table.schema().dim();
    std::vector<float> rows(keys.size() * dim);
    std::vector<std::uint8_t> found(keys.size());
    table.lookup(keys, rows.data(), found.data());
    ASSERT_EQ(table.size(), keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(found[i], 1) << keys[i];
      for (std::size_t column = 0; column < dim; ++column) {
        ASSERT_EQ(rows[i * dim + column], value(keys[i], column)) << keys[i];
      }
    }
  }
  [[nodiscard]] Content read() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put_back(const Content& content) const {
    std::ofstream(path_, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  }

  std::string path_;
};

TEST_F(TableImageTest, RowsAreThoseThatWereWritten) {
  for (const std::int64_t count : {0, 1, 5, 3000}) {
    write(count, 3);
    for (const Memory memory : {Memory::kMapped, Memory::kRead}) {
      const auto table = load(3, memory);
      expect_rows(*table, count);
      const std::int64_t absent = 999'999'999'999;
      std::uint8_t found = 1;
      float row[3] = {1, 1, 1};
      table->lookup({&absent, 1}, row, &found);
      EXPECT_EQ(found, 0);
      EXPECT_EQ(row[2], 0.0F);
    }
  }
}

TEST_F(TableImageTest, WholeSlabsOfRowsAreUsedWhereTheyLie) {
  constexpr std::uint32_t kDim = 512;  // 128 rows are a slab
  constexpr std::int64_t kCount = 12'000;
  write(kCount, kDim);
  const auto table = load(kDim);
  expect_rows(*table, kCount);
  EXPECT_LT(table->memory_bytes(), table->size() * kDim * sizeof(float) / 2 + (std::size_t{20} << 20));
  // Rows that come later lie elsewhere, and everything else stays.
  std::vector<std::int64_t> more;
  for (std::int64_t i = 0; i < 20'000; ++i) more.push_back(-1'000'000'000 - i);
  const std::vector<float> ones(more.size() * kDim, 1.0F);
  table->assign(more, ones.data(), 5);
  EXPECT_EQ(table->erase(more), more.size());
  expect_rows(*table, kCount);
}

TEST_F(TableImageTest, RowsOfASmallTableAreUsedWhereTheyLieUntilItGrows) {
  constexpr std::uint32_t kDim = 16;
  constexpr std::int64_t kCount = 12'000;
  write(kCount, kDim);
  const auto table = load(kDim);
  expect_rows(*table, kCount);
  EXPECT_LT(table->memory_bytes(), table->size() * kDim * sizeof(float));
  std::vector<std::int64_t> more;
  for (std::int64_t i = 0; i < 20'000; ++i) more.push_back(-1'000'000'000 - i);
  const std::vector<float> ones(more.size() * kDim, 1.0F);
  table->assign(more, ones.data(), 5);
  EXPECT_GT(table->memory_bytes(), table->size() * kDim * sizeof(float));
  EXPECT_EQ(table->erase(more), more.size());
  expect_rows(*table, kCount);
}

TEST_F(TableImageTest, ChangesStayInTheTableThatWasChanged) {
  write(3000, 2);
  const Content before = read();
  const auto keys = ids(3000);
  const auto changed = load(2);
  const auto other = load(2);
  const std::vector<float> rows(keys.size() * 2, -3.0F);
  changed->assign(keys, rows.data(), 2000);
  EXPECT_EQ(changed->erase(std::span(keys).first(1000)), 1000U);
  float row[2] = {};
  changed->lookup({&keys[2000], 1}, row, nullptr);
  EXPECT_EQ(row[0], -3.0F);
  EXPECT_EQ(changed->size(), keys.size() - 1000);
  expect_rows(*other, 3000);
  EXPECT_EQ(read(), before);
  changed->clear();
  EXPECT_EQ(changed->size(), 0U);
  changed->assign(keys, rows.data(), 2000);
  EXPECT_EQ(changed->size(), keys.size());
}

TEST_F(TableImageTest, ATableOutlivesTheNameOfItsFile) {
  write(3000, 2);
  const auto table = load(2);
  std::filesystem::remove(path_);
  expect_rows(*table, 3000);
}

TEST_F(TableImageTest, TimesAreKeptForExpiry) {
  write(10, 2);
  const auto table = load(2);
  EXPECT_EQ(table->max_time_s(), 1000);
  EXPECT_EQ(table->evict(1000), 0U);
  EXPECT_EQ(table->evict(1000 + std::int64_t{36500} * 86400), ids(10).size());
  EXPECT_EQ(table->size(), 0U);
}

TEST_F(TableImageTest, AnImageOfOtherRowsIsRefused) {
  write(10, 2);
  const auto refuses = [&](Table& table) {
    try {
      const TableImage image(path_, std::filesystem::file_size(path_), table, Memory::kMapped);
    } catch (const SnapshotCorrupt& error) {
      EXPECT_NE(std::string(error.what()).find("another table"), std::string::npos) << error.what();
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refuses(*make(3)));
  EXPECT_TRUE(refuses(*make(4, "fp16")));  // as many bytes
  EXPECT_FALSE(refuses(*make(2)));
}

TEST_F(TableImageTest, OnlyAnEmptyServingTableTakesAnImage) {
  write(10, 2);
  const auto full = load(2);
  EXPECT_THROW(
      full->adopt(std::make_unique<TableImage>(path_, std::filesystem::file_size(path_), *full, Memory::kMapped)),
      ConfigError);
  expect_rows(*full, 10);
  TableConfig config;
  config.slices = {slice(2, "fp32")};
  Table training(config, std::make_shared<Pool>(1));
  EXPECT_THROW(write_image(training, path_ + ".none"), ConfigError);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".none"));
}

TEST_F(TableImageTest, AFileThatIsCutOffIsRefused) {
  write(20, 2);
  const Content whole = read();
  for (std::size_t length = 0; length < whole.size(); length += 11) {
    put_back(Content(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));
    const auto table = make(2);
    EXPECT_THROW(TableImage(path_, length, *table, Memory::kMapped), SnapshotCorrupt) << length;
    EXPECT_THROW(TableImage(path_, whole.size(), *table, Memory::kMapped), SnapshotCorrupt) << length;
  }
}

TEST_F(TableImageTest, AChangedBitIsRefusedOrChangesARowOnly) {
  write(20, 2);
  const Content whole = read();
  const auto keys = ids(20);
  std::size_t believed = 0;
  for (std::size_t at = 0; at < whole.size(); at += 3) {
    Content changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
    put_back(changed);
    const auto table = make(2);
    try {
      table->adopt(std::make_unique<TableImage>(path_, whole.size(), *table, Memory::kMapped));
    } catch (const SnapshotCorrupt&) {
      continue;
    }
    ++believed;
    std::vector<float> rows(keys.size() * 2);
    std::vector<std::uint8_t> found(keys.size());
    table->lookup(keys, rows.data(), found.data());
    for (const std::uint8_t each : found) EXPECT_EQ(each, 1) << at;
    EXPECT_EQ(table->erase(keys), keys.size()) << at;
  }
  // The bytes of the rows, of the line that the magic has to itself, and of the gaps.
  EXPECT_LE(believed, kImageAlignment * (1 + keys.size()));
  EXPECT_GE(believed, keys.size() * 2 * sizeof(float) / 3);
}

// --- forged indexes with right checksums ---

struct MadeIndex {
  std::vector<RingIndex::Bucket> buckets;
  std::uint64_t rows = 0;
};

std::int64_t id_of_part(std::size_t part, std::int64_t after) {
  while (part_of(mix(static_cast<std::uint64_t>(after))) != part) ++after;
  return after;
}

MadeIndex made(std::size_t part, std::size_t count) {
  RingIndex index;
  index.reserve(count);
  std::int64_t id = 0;
  for (std::size_t i = 0; i < count; ++i, ++id) {
    id = id_of_part(part, id);
    index.insert(id, 0, 0);
  }
  MadeIndex made{{index.buckets().begin(), index.buckets().end()}, count};
  std::uint32_t row = 0;
  for (RingIndex::Bucket& bucket : made.buckets) {
    for (std::size_t i = 0; i < RingIndex::kWidth && bucket.rows[i] != 0; ++i) bucket.rows[i] = ++row;
  }
  return made;
}

TEST(ImageIndex, ASoundOneIsBelieved) {
  for (const std::size_t count : {0, 1, 3, 28, 1000}) {
    const MadeIndex index = made(5, count);
    EXPECT_NO_THROW(check_image_index(index.buckets, index.rows, 5)) << count;
  }
}

TEST(ImageIndex, OneThatLeadsAstrayIsRefused) {
  const MadeIndex sound = made(5, 1000);
  const auto refused = [&](const char* why, auto&& damage) {
    MadeIndex index = sound;
    damage(index);
    try {
      check_image_index(index.buckets, index.rows, 5);
      ADD_FAILURE() << why;
    } catch (const SnapshotCorrupt& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  const auto first = static_cast<std::size_t>(
      std::find_if(sound.buckets.begin(), sound.buckets.end(),
                   [](const auto& bucket) { return bucket.rows[1] != 0 && bucket.rows[3] == 0; }) -
      sound.buckets.begin());
  refused("out of turn", [&](MadeIndex& index) { index.buckets[first].rows[0] = 0xFFFFFFFFU; });
  refused("out of turn", [&](MadeIndex& index) { index.buckets[first].rows[1] = index.buckets[first].rows[0]; });
  refused("behind a gap",
          [&](MadeIndex& index) { std::swap(index.buckets[first].rows[0], index.buckets[first].rows[3]); });
  refused("another part", [&](MadeIndex& index) { index.buckets[first].ids[0] = id_of_part(6, 0); });
  refused("as many rows", [&](MadeIndex& index) { --index.rows; });
  refused("too full", [&](MadeIndex& index) { index.rows = index.buckets.size() * 4; });
  refused("no search finds it", [&](MadeIndex& index) {
    const auto home = [&](std::int64_t id) {
      return RingIndex::home_in(mix(static_cast<std::uint64_t>(id)), static_cast<std::uint32_t>(index.buckets.size()));
    };
    // From one bucket further on the way leads around the whole ring, and there are gaps.
    std::int64_t id = id_of_part(5, 0);
    while (home(id) != (first + 1) % index.buckets.size()) id = id_of_part(5, id + 1);
    index.buckets[first].ids[0] = id;
  });
  refused("too full", [&](MadeIndex& index) { index.buckets.clear(); });
}

TEST_F(TableImageTest, AFileThatIsOverwrittenSendsNoSearchAstray) {
  write(3000, 3);
  const auto table = load(3);
  EXPECT_GT(table->memory_bytes(), ids(3000).size() * 16);  // the index is in memory
  // In place, as `cp` over the file does: every entry of every index becomes a full bucket of one id.
  Content content = read();
  std::fill(content.begin() + 64, content.end(), '\x01');
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  const auto keys = ids(3000);
  std::vector<std::uint8_t> found(keys.size());
  table->contains(keys, found.data());
  EXPECT_EQ(std::count(found.begin(), found.end(), 1), static_cast<std::ptrdiff_t>(keys.size()));
  const std::vector<std::int64_t> absent = {999'999'999'999, -999'999'999'999};
  table->contains(absent, found.data());
  EXPECT_EQ(found[0] + found[1], 0);
}

}  // namespace
}  // namespace engine
