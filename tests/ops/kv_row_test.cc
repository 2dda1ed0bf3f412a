// The numbers of FP8 cache rows, for all BF16 values and all codes.

#include "kernels/kv_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/attention/kv_row_math.h"
#include "tests/ops/kv_fixture.h"

namespace foredraft {
namespace {

using F8 = KvCodes<DType::kF8E4M3>;

constexpr int kFiniteCodes = 0x7f;  // of one sign

float PowerOfTwo(int exponent) { return std::ldexp(1.0f, exponent); }

TEST(KvRow, TheScaleIsTheSmallestPowerOfTwoThatFits) {
  for (uint32_t magnitude = 0; magnitude < 0x7f80u; ++magnitude) {
    const double largest = ToFloat(bf16{static_cast<uint16_t>(magnitude)});
    const int exponent = std::ilogb(F8::Scale(magnitude));
    ASSERT_EQ(F8::Scale(magnitude), PowerOfTwo(exponent));
    ASSERT_GE(exponent, F8::kMinExponent);
    ASSERT_LE(exponent, F8::kMaxExponent);
    if (exponent < F8::kMaxExponent) {
      ASSERT_LE(largest, 448 * std::exp2(exponent));
    }
    if (exponent > F8::kMinExponent) {
      ASSERT_GT(largest, 448 * std::exp2(exponent - 1));
    }
  }
  for (const uint32_t magnitude : {0x7f80u, 0x7fc0u, 0x7fffu}) EXPECT_TRUE(std::isnan(F8::Scale(magnitude)));
}

TEST(KvRow, EveryCodeTimesEveryScaleIsABf16Value) {
  for (int exponent = F8::kMinExponent; exponent <= F8::kMaxExponent; ++exponent) {
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7f) == kFiniteCodes) continue;  // NaN, which Code does not make
      const bf16 value = F8::Value(static_cast<uint8_t>(code), PowerOfTwo(exponent));
      const double expected = double{F8E4M3ToFloat(static_cast<uint8_t>(code))} * std::exp2(exponent);
      ASSERT_EQ(double{ToFloat(value)}, expected) << "code " << code << ", exponent " << exponent;
      ASSERT_EQ(std::signbit(ToFloat(value)), code >= 0x80);
      ASSERT_TRUE(expected == 0 || std::isnormal(ToFloat(value)));
    }
  }
}

// Every BF16 value against a search among all codes.
TEST(KvRow, TheCodeIsTheNearest) {
  std::vector<double> values(kFiniteCodes);
  for (int code = 0; code < kFiniteCodes; ++code) values[code] = F8E4M3ToFloat(static_cast<uint8_t>(code));
  for (const int exponent : {F8::kMinExponent, -20, -3, 0, 1, 40, F8::kMaxExponent}) {
    for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
      const bf16 x{static_cast<uint16_t>(bits)};
      if (KvMagnitude(x) >= 0x7f80u) continue;
      const uint8_t code = F8::Code(x, 1.0f / PowerOfTwo(exponent));
      ASSERT_EQ(code >> 7, bits >> 15);
      const double scaled = std::abs(double{ToFloat(x)}) * std::exp2(-exponent);
      const auto above = std::lower_bound(values.begin(), values.end(), scaled) - values.begin();
      long expected = std::min<long>(above, kFiniteCodes - 1);
      if (above > 0 && above < kFiniteCodes) {
        const double up = values[above] - scaled, down = scaled - values[above - 1];
        if (down < up || (down == up && above % 2 == 1)) expected = above - 1;
      }
      ASSERT_EQ(code & 0x7f, expected) << "bits " << bits << ", exponent " << exponent;
    }
  }
}

// Also random bits, among them infinities and NaN.
TEST(KvRow, LatentsAreEncodedAndDecoded) {
  Noise noise(7);
  for (const int latent : {1, 37, 128, 300, 512}) {
    const KvRowLayout layout = {.latent_dim = latent, .rope_dim = 8, .dtype = DType::kF8E4M3};
    std::vector<bf16> x = noise.Bf16s(latent, 3.0f);
    for (int i = 0; i < latent; i += 7) x[i].bits = static_cast<uint16_t>(noise.Int(0, 0xffff));
    std::vector<uint8_t> row(layout.bytes(), 0xaa), expected_row(layout.bytes(), 0xaa);
    std::vector<bf16> expected = x;
    cpu::EncodeLatent(x.data(), layout, row.data());
    RoundLatent(layout, expected.data(), expected_row.data());
    EXPECT_EQ(row, expected_row);
    for (const std::string& isa : SupportedIsas()) {
      // The op decodes on the path of the device.
      OpRig rig({.isa = isa}, RunMode::kEager);
      bf16* const out = rig.Poisoned<bf16>(latent);
      const GatherKvParams params = {.latent = Dense(out, 1, latent),
                                     .rope = Dense(rig.Poisoned<bf16>(8), 1, 8),
                                     .layer = {.data = rig.Put(row),
                                               .block_tables = rig.Put(std::vector<int32_t>{0}),
                                               .table_stride = 1,
                                               .block_count = 1,
                                               .tokens_per_block = 1,
                                               .latent_dim = latent,
                                               .rope_dim = 8,
                                               .dtype = DType::kF8E4M3},
                                     .slot = 0,
                                     .first_position = 0};
      rig.Run([&] { rig.ops().gather_kv(rig.stream(), params); });
      EXPECT_EQ(BytesOf(rig.Get(out, latent).data(), latent), BytesOf(expected.data(), latent)) << isa;
    }

    // What was rounded once stays as it is, whatever scale the second rounding takes.
    std::vector<bf16> twice = expected;
    RoundLatent(layout, twice.data());
    EXPECT_EQ(BytesOf(twice.data(), latent), BytesOf(expected.data(), latent));
  }
}

// 300 columns are three groups, the last one short.
TEST(KvRowLayout, PadsThePartsOfAnFp8RowTo16Bytes) {
  const KvRowLayout row = {.latent_dim = 300, .rope_dim = 6, .dtype = DType::kF8E4M3};
  EXPECT_EQ(row.group_count(), 3);
  EXPECT_EQ(row.scale_offset(), 304);
  EXPECT_EQ(row.rope_offset(), 304 + 16);
  EXPECT_EQ(row.bytes(), 304 + 16 + 16);
  EXPECT_EQ((KvRowLayout{.latent_dim = 300, .rope_dim = 6}).bytes(), 612);
}

}  // namespace
}  // namespace foredraft
