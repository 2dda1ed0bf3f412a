// The tile kernels of rows rounded to 8 bits with VNNI, on machines without it: their text,
// with each intrinsic in plain loops, has the bits of the portable kernel.

#if defined(__x86_64__)

#include <gtest/gtest.h>

#include <random>
#include <vector>

// The first header gives the names that the others use.
// clang-format off
#include "tests/ops/wide_vectors.h"
#include "kernels/cpu/gemm/int8_lanes_256.h"
#include "kernels/cpu/gemm/int8_lanes_512.h"
#include "kernels/cpu/gemm/int8_tile.h"
// clang-format on

namespace foredraft {
namespace {

constexpr int kRows = kMaxTileRows;

// A panel and rows of random codes.
struct Operands {
  std::vector<unsigned char> panel;
  std::vector<float> tensor_scales;
  std::vector<std::vector<uint16_t>> rows;  // as GemmTileArgs::x points to them
  int32_t k;
  int32_t group;

  Operands(Int8Codes codes, int32_t k, int32_t group) : k(k), group(group) {
    std::mt19937 random(k + group);
    const bool nvfp4 = codes == Int8Codes::kNvfp4;
    for (int32_t g = 0; g < k / group; ++g) {
      for (int i = 0; i < group / 2 * kPanelWidth; ++i) {
        panel.push_back(static_cast<unsigned char>(random()));
      }
      for (int i = 0; i < kPanelWidth; ++i) {  // positive scales
        if (!nvfp4) panel.push_back(static_cast<unsigned char>(random()));
        panel.push_back(static_cast<unsigned char>(nvfp4 ? random() % 0x7f : 0x3c + random() % 4));
      }
    }
    for (int i = 0; i < kPanelWidth; ++i) tensor_scales.push_back(0.5f + 0.01f * static_cast<float>(i));
    const int32_t bias = codes == Int8Codes::kInt4 ? kInt4Bias : kF4E2M1Bias;
    for (int row = 0; row < kRows; ++row) rows.push_back(Row(random, bias));
  }

  std::vector<uint16_t> Row(std::mt19937& random, int32_t bias) const {
    std::vector<unsigned char> bytes;
    for (int32_t g = 0; g < k / group; ++g) {
      std::vector<unsigned char> of_group(Int8GroupBytes(group));
      for (int32_t i = 0; i < group; ++i) {
        of_group[i] = static_cast<unsigned char>(static_cast<int>(random() % 255) - 127);
      }
      const float scale = 0.001f * static_cast<float>(1 + random() % 1000);
      std::memcpy(&of_group[group], &scale, sizeof(scale));
      for (int32_t run = 0; run < Int8Runs(group); ++run) {
        int32_t sums[2] = {};  // of even and odd k, which alternate in pairs of bytes
        for (int32_t i = run * kInt8Run; i < group && i < (run + 1) * kInt8Run; ++i) {
          sums[i / 2 % 2] += static_cast<int8_t>(of_group[i]);
        }
        const Int8Start start = {static_cast<int16_t>(-bias * sums[0]), static_cast<int16_t>(-bias * sums[1]),
                                 -bias * (sums[0] + sums[1])};
        std::memcpy(&of_group[group + sizeof(scale) + run * sizeof(start)], &start, sizeof(start));
      }
      bytes.insert(bytes.end(), of_group.begin(), of_group.end());
    }
    std::vector<uint16_t> row(bytes.size() / 2);
    std::memcpy(row.data(), bytes.data(), bytes.size());
    return row;
  }

  template <class Kernel>
  std::vector<float> Tile(int count, const Kernel& kernel) const {
    std::vector<float> tile(count * kPanelWidth, -1.0f);
    std::vector<const uint16_t*> x;
    for (const std::vector<uint16_t>& row : rows) x.push_back(row.data());
    kernel({.tile = tile.data(),
            .x = x.data(),
            .panel = panel.data(),
            .scales = tensor_scales.data(),
            .table = nullptr,
            .rows = count,
            .k = k,
            .block_k = group});
    return tile;
  }
};

TEST(Int8Lanes, GiveTheBitsOfThePortableKernel) {
  constexpr struct {
    Int8Codes codes;
    int32_t k;
    int32_t group;
  } kCases[] = {{Int8Codes::kInt4, 256, 32},   {Int8Codes::kInt4, 256, 128},  {Int8Codes::kInt4, 120, 40},
                {Int8Codes::kF4E2M1, 256, 32}, {Int8Codes::kF4E2M1, 192, 64}, {Int8Codes::kF4E2M1, 48, 8},
                {Int8Codes::kNvfp4, 256, 16}};
  for (const auto& c : kCases) {
    const Operands operands(c.codes, c.k, c.group);
    for (int rows = 1; rows <= kRows; ++rows) {
      SCOPED_TRACE(testing::Message() << "codes " << static_cast<int>(c.codes) << ", groups of " << c.group
                                      << ", " << rows << " rows");
      const std::vector<float> expected =
          operands.Tile(rows, [&](const GemmTileArgs& args) { GemmInt8Portable(args, c.codes); });
      ASSERT_EQ(
          operands.Tile(rows, [&](const GemmTileArgs& args) { MultiplyInt8<LanesAvx512>(args, c.codes); }),
          expected);
      ASSERT_EQ(
          operands.Tile(rows, [&](const GemmTileArgs& args) { MultiplyInt8<LanesAvxVnni>(args, c.codes); }),
          expected);
    }
  }
}

}  // namespace
}  // namespace foredraft

#endif
