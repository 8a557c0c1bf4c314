#include "joiner/core.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "engine/error.h"
#include "joiner/hashes.h"
#include "joiner/packer.h"

namespace joiner {
namespace {

namespace fs = std::filesystem;

class CoreTest : public ::testing::Test {
 protected:
  CoreTest() : folder_(fs::temp_directory_path() / ("joiner_test_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~CoreTest() override { fs::remove_all(folder_); }

  static Settings settings(Late late = Late::kDrop) {
    Settings settings;
    settings.tasks = {{1}};
    settings.window = 10'000;
    settings.horizon = 20'000;
    settings.orphan_hold = 10'000;
    settings.skew = 1'000;
    settings.late = late;
    return settings;
  }

  static void add(Core& core, int number, int time) {
    const std::string key = "request-" + std::to_string(number / 3);
    const std::string payload = "payload " + std::to_string(number) + std::string(60, 'x');
    core.add_impression({time, key, static_cast<std::uint64_t>(number % 3), payload, 0, 5});
  }

  // Rows as text, in order.
  static std::vector<std::string> show(Core& core) {
    std::vector<std::string> shown;
    for (const auto& row : core.rows().rows) {
      std::string payload;
      core.packer().unpack(core.rows().packed_payload(row), payload);
      shown.push_back(std::string(core.rows().key(row)) + "/" + std::to_string(row.item) +
                      " e=" + std::to_string(row.emission) + " a=" + std::to_string(row.actions) + " " + payload);
    }
    core.rows().clear();
    return shown;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

TEST(JoinerHashTest, gives_the_published_values) {
  EXPECT_EQ(mix(0), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(mix(7), 0x63cbe1e459320dd7ULL);
  EXPECT_EQ(fnv1a64("k"), 0xaf63e64c8601fd8aULL);
  EXPECT_EQ(mix(fnv1a64("k")) % 8, 3U);
  EXPECT_NEAR(draw_uniform("k", 1, 0), 0.878423, 1e-6);
}

TEST(PackerTest, returns_any_bytes_as_they_were) {
  Packer packer;
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 == 0 ? random() : random() % 24);
    std::string packed;
    packer.pack(bytes, packed);
    std::string unpacked;
    packer.unpack(packed, unpacked);
    ASSERT_EQ(unpacked, bytes);
  }
}

TEST(PackerTest, stores_the_head_of_a_feature_once) {
  // named_feature { name: "user" feature { fid_v2_list { value: 8 bytes } } }
  const std::string head = std::string("\x0a\x14\x0a\x04user\x12\x0c\x12\x0a\x0a\x08", 14);
  Packer packer;
  std::string packed;
  packer.pack(head + "12345678", packed);
  packer.pack(head + "abcdefgh", packed);
  EXPECT_EQ(packer.heads().size(), 1U);
  EXPECT_EQ(packed,
            "\x01"
            "12345678\x01"
            "abcdefgh");
}

TEST(PackerTest, refuses_an_unknown_head) {
  std::string out;
  EXPECT_THROW(Packer().unpack("\x05", out), engine::SnapshotCorrupt);
  EXPECT_THROW(Packer().unpack(std::string("\0\x09"
                                           "abc",
                                           5),
                               out),
               engine::SnapshotCorrupt);
}

TEST_F(CoreTest, spilled_windows_give_the_same_rows) {
  for (const Late late : {Late::kDrop, Late::kReemit, Late::kCorrect}) {
    Core plain(settings(late), "");
    Core spilling(settings(late), path("spill"));
    for (Core* core : {&plain, &spilling}) {
      for (int number = 0; number < 3000; ++number) add(*core, number, number * 7 % 9000);
      if (core == &spilling) {
        const std::size_t before = core->memory();
        core->spill(0);
        EXPECT_GT(core->spilled_bytes(), 0U);
        EXPECT_LT(core->memory(), before / 2);
      }
      for (int number = 0; number < 3000; number += 11) {
        core->add_action({number * 7 % 9000 + 10, "request-" + std::to_string(number / 3),
                          static_cast<std::uint64_t>(number % 3), 1});
      }
      core->advance(14'000);
      if (core == &spilling) core->spill(0);
      for (int number = 5; number < 3000; number += 101) {
        core->add_action({number * 7 % 9000 + 20, "request-" + std::to_string(number / 3),
                          static_cast<std::uint64_t>(number % 3), 1});
      }
      core->advance(INT64_MAX);
    }
    const auto rows = show(plain);
    EXPECT_GE(rows.size(), 3000U);
    EXPECT_EQ(show(spilling), rows);
    EXPECT_EQ(spilling.entries(), 0U);
    EXPECT_EQ(spilling.spilled_bytes(), 0U);
    EXPECT_TRUE(fs::is_empty(folder_ / "spill"));
  }
}

TEST_F(CoreTest, a_snapshot_continues_with_the_same_rows) {
  Core whole(settings(Late::kReemit), path("spill"));
  for (int number = 0; number < 500; ++number) add(whole, number, number * 13 % 8000);
  whole.add_action({100, "request-9", 1, 1});
  whole.add_action({100, "unknown", 1, 4});
  whole.advance(12'000);
  whole.spill(0);
  whole.save(path("core.bin"));
  Core restored(settings(Late::kReemit), path("spill-2"));
  restored.restore(path("core.bin"), 1 << 30);
  EXPECT_EQ(restored.open_impressions(), whole.open_impressions());
  EXPECT_EQ(restored.held_actions(), whole.held_actions());
  EXPECT_EQ(restored.watermark(), whole.watermark());
  show(whole);
  for (Core* core : {&whole, &restored}) {
    add(*core, 700, 11'000);
    core->add_action({200, "request-3", 2, 1});
    core->close_oldest(20);
    core->advance(INT64_MAX);
  }
  EXPECT_EQ(show(restored), show(whole));
}

TEST_F(CoreTest, every_damaged_byte_of_a_snapshot_is_found) {
  Core core(settings(), "");
  for (int number = 0; number < 5; ++number) add(core, number, number);
  core.save(path("core.bin"));
  std::ifstream file(path("core.bin"), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    std::ofstream(path("bad.bin"), std::ios::binary) << bad;
    Core restored(settings(), "");
    ASSERT_THROW(restored.restore(path("bad.bin"), 1 << 30), engine::SnapshotCorrupt) << at;
    std::ofstream(path("bad.bin"), std::ios::binary) << good.substr(0, at);
    Core cut(settings(), "");
    ASSERT_THROW(cut.restore(path("bad.bin"), 1 << 30), engine::SnapshotCorrupt) << at;
  }
}

TEST_F(CoreTest, a_full_disk_leaves_the_state_as_before) {
  Core core(settings(), path("spill"));
  for (int number = 0; number < 2000; ++number) add(core, number, number);
  const std::size_t memory = core.memory();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(core.spill(0), engine::IoError);
  EXPECT_THROW(core.save(path("core.bin")), engine::IoError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(core.memory(), memory);
  core.advance(INT64_MAX);
  EXPECT_EQ(core.rows().rows.size(), 2000U);
}

TEST_F(CoreTest, the_oldest_windows_close_first_with_their_labels) {
  Core core(settings(), "");
  for (int number = 0; number < 9; ++number) add(core, number, 9000 - number * 1000);
  core.add_action({1500, "request-2", 2, 1});
  EXPECT_EQ(core.close_oldest(2), 2U);
  ASSERT_EQ(core.rows().rows.size(), 2U);
  EXPECT_EQ(core.rows().rows[0].time, 1000);
  EXPECT_EQ(core.rows().labels, (std::vector<float>{1, 0}));
  EXPECT_EQ(core.counters().early_close, 2U);
  EXPECT_EQ(core.close_oldest(100), 7U);
}

TEST_F(CoreTest, a_key_with_many_actions_stays_within_its_bounds) {
  Core core(settings(), "");
  for (int code = 0; code < 200'000; ++code) core.add_action({code % 5000, "poison", 7, code});
  EXPECT_EQ(core.held_actions(), 1024U);
  EXPECT_EQ(core.counters().orphan_overflow, 200'000U - 1024U);
  EXPECT_LT(core.memory(), 40'000U);
  add(core, 0, 0);
  for (int code = 0; code < 200'000; ++code) core.add_action({1, "request-0", 0, code});
  EXPECT_EQ(core.counters().action_overflow, 200'000U - 64U);
  EXPECT_LT(core.memory(), 60'000U);
  EXPECT_EQ(core.drop_oldest_held(1), 1U);
  EXPECT_EQ(core.held_actions(), 0U);
}

TEST_F(CoreTest, a_key_of_a_wrong_size_is_refused) {
  Core core(settings(), "");
  EXPECT_THROW(core.add_action({0, "", 7, 1}), engine::ConfigError);
  EXPECT_THROW(core.add_action({0, std::string(257, 'k'), 7, 1}), engine::ConfigError);
  core.add_action({0, std::string(256, 'k'), 7, 1});
  EXPECT_EQ(core.held_actions(), 1U);
}

}  // namespace
}  // namespace joiner
