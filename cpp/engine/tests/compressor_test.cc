// compressor_test.cc: serving bytes, fake-quantised training reads, and the conversions below them.
#include "engine/compressor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/error.h"
#include "engine/half.h"

namespace engine {
namespace {

using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

PartConfig fixed_r8(double r) { return {"fixed_r8", {{"r", r}}}; }

PartConfig one_bit(double step_size, double amplitude, double max_scale = 10000) {
  return {"one_bit", {{"step_size", step_size}, {"init_scale", 1}, {"max_scale", max_scale}, {"amplitude", amplitude}}};
}

// Through odd addresses, as in a packed serving row.
Floats round_trip(const PartConfig& config, const Floats& values) {
  const auto compressor = make_compressor(config);
  const auto dim = static_cast<std::uint32_t>(values.size());
  std::vector<std::byte> bytes(compressor->bytes(dim) + 2, std::byte{0x5a});
  compressor->encode(values.data(), bytes.data() + 1, dim);
  EXPECT_EQ(bytes.front(), std::byte{0x5a});
  EXPECT_EQ(bytes.back(), std::byte{0x5a});
  Floats decoded(dim);
  compressor->decode(bytes.data() + 1, decoded.data(), dim);
  return decoded;
}

Floats read(const PartConfig& config, const Floats& values, float scale = 1) {
  Floats out(values.size());
  make_compressor(config)->read(values.data(), out.data(), static_cast<std::uint32_t>(values.size()), scale);
  return out;
}

float backward(const Compressor& compressor, float value, float grad, float scale) {
  compressor.backward(&value, &grad, &grad, 1, scale);  // in place
  return grad;
}

// --- fp32, fp16 ---

TEST(Fp32, KeepsEveryBit) {
  const Floats values = {1.1F, -0.0F, 1e-42F, kInfinity};
  EXPECT_EQ(round_trip({"fp32", {}}, values), values);
  EXPECT_EQ(make_compressor({"fp32", {}})->bytes(5), 20U);
}

TEST(Fp16, TrainingDoesNotFeelIt) {
  for (const char* kind : {"fp32", "fp16"}) {
    const auto compressor = make_compressor({kind, {}});
    EXPECT_TRUE(compressor->is_transparent());
    EXPECT_EQ(read({kind, {}}, {0.1F, 7}), (Floats{0.1F, 7}));
    EXPECT_EQ(backward(*compressor, 0.1F, 3, 1), 3);
    EXPECT_EQ(compressor->scale_at(0, 1), compressor->initial_scale());
  }
}

TEST(Fp16, RoundsToNearestEvenAndClampsWhatIsTooLarge) {
  const Floats values = {1 + 0x1p-11F, 1 + 0x3p-11F, -0.1F,      65519, 65520, -1e30F,
                         kInfinity,    0x1p-25F,     0x1.8p-25F, -0.0F, kNan};
  const Floats expected = {1, 1 + 0x1p-9F, -0.0999755859375F, 65504, 65504, -65504, 65504, 0, 0x1p-24F, -0.0F};
  const Floats decoded = round_trip({"fp16", {}}, values);
  EXPECT_EQ(Floats(decoded.begin(), decoded.end() - 1), expected);
  EXPECT_TRUE(std::signbit(decoded[9]));
  EXPECT_TRUE(std::isnan(decoded.back()));
  EXPECT_EQ(make_compressor({"fp16", {}})->bytes(5), 10U);
}

TEST(Half, EveryHalfSurvivesTheWayToFloatAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float_from_half(static_cast<std::uint16_t>(bits));
    const std::uint32_t exponent = (bits >> 10) & 31U;
    const auto mantissa = static_cast<float>(bits & 0x3ffU);
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_EQ(std::isinf(value), mantissa == 0);
      continue;
    }
    const float magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
    EXPECT_EQ(std::abs(value), magnitude);
    EXPECT_EQ(std::signbit(value), bits >= 0x8000);
    EXPECT_EQ(half_from_float(value), bits);
  }
}

// The processor's own conversion is an independent oracle.
#ifdef __ARM_FP16_FORMAT_IEEE
TEST(Half, AgreesWithTheProcessorsConversion) {
  for (std::uint64_t bits = 0; bits < (1ULL << 32); bits += 8191) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!(std::abs(value) < 65520)) continue;
    EXPECT_EQ(half_from_float(value), std::bit_cast<std::uint16_t>(static_cast<__fp16>(value))) << value;
  }
}
#endif

TEST(Half, RandomRoundingPicksANeighbourByItsShare) {
  const float low = 1;
  const float high = 1 + 0x1p-10F;
  const float between = 1 + 0x1p-12F;  // a quarter of the way
  for (const float sign : {1.0F, -1.0F}) {
    EXPECT_EQ(round_to_half(sign * between, 0.0F), sign * high);
    EXPECT_EQ(round_to_half(sign * between, 0.2499F), sign * high);
    EXPECT_EQ(round_to_half(sign * between, 0.25F), sign * low);
    EXPECT_EQ(round_to_half(sign * low, 0.0F), sign * low);
    EXPECT_EQ(round_to_half(sign * 0x1.8p-24F, 0.4F), sign * 0x1p-23F);
    EXPECT_EQ(round_to_half(sign * 0x1p-26F, 0.4F), 0);
    EXPECT_EQ(round_to_half(sign * 65503.9F, 0.0F), sign * 65504);
    EXPECT_EQ(round_to_half(sign * kInfinity, 0.0F), sign * 65504);
  }
  EXPECT_TRUE(std::isnan(round_to_half(kNan, 0.5F)));
}

// --- fixed_r8 ---

TEST(FixedR8, RoundsToItsLevels) {
  const float step = 5.0F / 128;
  const Floats values = {1.4F * step, 1.6F * step, -1.4F * step, -1.6F * step, 100, -100,
                         kNan,        0,           kInfinity,    -kInfinity};
  const Floats expected = {step, 2 * step, -step, -2 * step, 127 * step, -128 * step, 0, 0, 127 * step, -128 * step};
  EXPECT_EQ(round_trip(fixed_r8(5), values), expected);
  EXPECT_EQ(read(fixed_r8(5), values), expected);
  EXPECT_EQ(make_compressor(fixed_r8(5))->bytes(5), 5U);
}

TEST(FixedR8, HalvesGoAwayFromZeroAndLevelsAreKept) {
  EXPECT_EQ(read(fixed_r8(128), {0.5F, -0.5F, 1.5F, -2.5F}), (Floats{1, -1, 2, -3}));
  for (int level = -128; level < 128; ++level) {
    const Floats value = {static_cast<float>(level) * (0.3F / 128)};
    EXPECT_EQ(round_trip(fixed_r8(0.3F), value), value);
  }
}

TEST(FixedR8, GradientsGoStraightThrough) {
  const auto compressor = make_compressor(fixed_r8(1));
  EXPECT_FALSE(compressor->is_transparent());
  EXPECT_EQ(backward(*compressor, 0.3F, -7, 1), -7);
}

// --- one_bit ---

TEST(OneBit, ServesTheSign) {
  const Floats values = {100, 0.1F, 1e-5F, 0, -1e-5F, -0.1F, -100, kNan, 1, -1, 1};
  const Floats expected = {1, 1, 1, -1, -1, -1, -1, -1, 1, -1, 1};
  EXPECT_EQ(round_trip(one_bit(200, 1), values), expected);
  EXPECT_EQ(round_trip(one_bit(200, 0.1), {3, -3}), (Floats{0.1F, -0.1F}));
  const auto compressor = make_compressor(one_bit(200, 1));
  EXPECT_EQ(compressor->bytes(8), 1U);
  EXPECT_EQ(compressor->bytes(9), 2U);
}

TEST(OneBit, TrainingReadsASteepeningTanh) {
  const auto compressor = make_compressor(one_bit(1000, 0.1));
  EXPECT_FALSE(compressor->is_transparent());
  float scale = compressor->initial_scale();
  EXPECT_EQ(scale, 1);
  EXPECT_NEAR(read(one_bit(1000, 0.1), {1})[0], 0.07615941F, 1e-8);
  EXPECT_NEAR(read(one_bit(1000, 0.1), {2})[0], 0.09640275F, 1e-8);

  scale = compressor->scale_at(0, scale);
  EXPECT_NEAR(backward(*compressor, 2, 1, scale), 0.00706508F, 1e-8);
  scale = compressor->scale_at(999, scale);
  EXPECT_NEAR(backward(*compressor, 2, 2, scale), 0.01413016F, 2e-8);
  scale = compressor->scale_at(1000, scale);
  EXPECT_NEAR(scale, 2.44948974F, 1e-6);
  EXPECT_NEAR(backward(*compressor, 2, 100, scale), 0.005442613F, 2e-6);
  EXPECT_NEAR(backward(*compressor, 2, 200, scale), 0.01088523F, 4e-6);
  EXPECT_NEAR(read(one_bit(1000, 0.1), {2}, scale)[0], 0.09998888F, 2e-8);
}

TEST(OneBit, TheScaleMovesAtItsStepsUpToItsLimit) {
  const auto compressor = make_compressor(one_bit(100, 0.1, 1.5));
  const float scale = compressor->scale_at(100, 1);
  EXPECT_NEAR(backward(*compressor, 1, 1, scale), 0.35840667F * 0.1F, 1e-7);
  EXPECT_EQ(compressor->scale_at(150, scale), scale);
  EXPECT_EQ(compressor->scale_at(100000, scale), 1.5F);
  EXPECT_EQ(compressor->scale_at(-100, scale), scale);
}

TEST(Compressor, RefusesWhatItCannotUnderstand) {
  EXPECT_THROW(make_compressor({"fp8", {}}), ConfigError);
  EXPECT_THROW(make_compressor({"fp16", {{"r", 1}}}), ConfigError);
  EXPECT_THROW(make_compressor({"fixed_r8", {}}), ConfigError);
  EXPECT_THROW(make_compressor(fixed_r8(0)), ConfigError);
  EXPECT_THROW(make_compressor(one_bit(0, 0.1)), ConfigError);
  EXPECT_THROW(make_compressor(one_bit(1.5, 0.1)), ConfigError);
  EXPECT_THROW(make_compressor(one_bit(200, -0.1)), ConfigError);
}

}  // namespace
}  // namespace engine
