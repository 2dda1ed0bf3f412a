// tree_sum, merge_columns, take_columns, and copy_quantized of column slices.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tests/ops/row_case.h"

namespace foredraft {
namespace {

float Tree(const std::vector<float>& parts, size_t first, size_t count) {
  if (count == 1) return parts[first];
  return Tree(parts, first, count / 2) + Tree(parts, first + count / 2, count / 2);
}

TEST(TreeSum, IsTheTreeOfTheParts) {
  for (const int width : {1, 6, 128, 1030, 7168}) {
    for (const int parts : {2, 4, 8}) {
      for (const int rows : {1, 5}) {
        for (const bool biased : {false, true}) {
          OpRig rig({}, RunMode::kReplayed);
          Noise noise(width + parts);
          const std::vector<float> values = noise.Floats(size_t(parts) * rows * width);
          const std::vector<float> bias = noise.Floats(width);
          const Matrix<float> out = Dense(rig.Poisoned<float>(rows * width), rows, width);
          const TreeSumParams params = {.out = out,
                                        .parts = Dense<const float>(rig.Put(values), parts * rows, width),
                                        .bias = biased ? rig.Put(bias) : nullptr,
                                        .part_count = parts};
          rig.Run([&] { rig.ops().tree_sum(rig.stream(), params); });
          const std::vector<float> got = rig.Get(out.data, size_t(rows) * width);
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < width; ++c) {
              std::vector<float> own;
              for (int part = 0; part < parts; ++part) own.push_back(values[(part * rows + r) * width + c]);
              const float sum = Tree(own, 0, own.size());
              ASSERT_EQ(got[r * width + c], biased ? sum + bias[c] : sum) << "row " << r << ", column " << c;
            }
          }
        }
      }
    }
  }
}

TEST(MergeColumns, LaysSlicesSideBySideAndDropsWhatIsBehindTheLastColumn) {
  for (const auto& [width, columns] : {std::pair{8, 61}, {8, 64}, {1, 8}, {40, 300}, {6, 45}}) {
    for (const int rows : {1, 3}) {
      OpRig rig({}, RunMode::kReplayed);
      const std::vector<float> parts = Noise(width).Floats(size_t(8) * rows * width);
      const Matrix<float> out = Dense(rig.Poisoned<float>(rows * columns), rows, columns);
      const MergeColumnsParams params = {out, Dense<const float>(rig.Put(parts), 8 * rows, width)};
      rig.Run([&] { rig.ops().merge_columns(rig.stream(), params); });
      const std::vector<float> got = rig.Get(out.data, size_t(rows) * columns);
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < columns; ++c) {
          ASSERT_EQ(got[r * columns + c], parts[(c / width * rows + r) * width + c % width])
              << "row " << r << ", column " << c;
        }
      }
    }
  }
}

TEST(TakeColumns, TakesThemByIndexAndFillsTheOthers) {
  for (const auto& [width, columns] : {std::pair{1, 1}, {3, 300}, {300, 301}, {40, 8}}) {
    for (const int rows : {1, 3}) {
      OpRig rig({}, RunMode::kReplayed);
      std::vector<float> x = Noise(width).Floats(size_t(rows) * width);
      x[0] = std::nanf("");
      std::vector<int32_t> index(columns);
      for (int c = 0; c < columns; ++c) index[c] = c % 3 == 1 ? -1 : (columns - c) * 7 % width;
      const Matrix<float> out = Dense(rig.Poisoned<float>(rows * columns), rows, columns);
      const TakeColumnsParams params = {out, Dense<const float>(rig.Put(x), rows, width), rig.Put(index)};
      rig.Run([&] { rig.ops().take_columns(rig.stream(), params); });
      const std::vector<float> got = rig.Get(out.data, size_t(rows) * columns);
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < columns; ++c) {
          const float expected =
              index[c] < 0 ? -std::numeric_limits<float>::infinity() : x[r * width + index[c]];
          ASSERT_EQ(std::bit_cast<uint32_t>(got[r * columns + c]), std::bit_cast<uint32_t>(expected))
              << "row " << r << ", column " << c << ": " << got[r * columns + c] << ", expected " << expected;
        }
      }
    }
  }
}

TEST(CopyQuantized, LaysSlicesInOnePieceSideBySide) {
  constexpr int kRows = 5, kSlice = 256, kParts = 4, kGroups = kParts * kSlice / kQuantGroup;
  OpRig rig({}, RunMode::kReplayed);
  std::vector<uint8_t> memory(kParts * kRows * QuantizedRowBytes(kSlice));
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint8_t>(i * 37 >> 3);
  const QuantizedRows x = RowsInOnePiece(rig.Put(memory), kParts * kRows, kSlice);
  const QuantizedRows out = {.codes = rig.Poisoned<uint8_t>(kRows * kParts * kSlice),
                             .scales = rig.Poisoned<float>(kGroups * 8),
                             .rows = kRows,
                             .cols = kParts * kSlice,
                             .pitch = kParts * kSlice,
                             .scale_pitch = 8};
  rig.Run([&] { rig.ops().copy_quantized(rig.stream(), {.out = out, .x = x, .part_count = kParts}); });
  const std::vector<uint8_t> codes = rig.Get(out.codes, kRows * kParts * kSlice);
  const std::vector<float> scales = rig.Get(out.scales, kGroups * 8);
  for (int r = 0; r < kRows; ++r) {
    for (int part = 0; part < kParts; ++part) {
      const uint8_t* const from = memory.data() + (part * kRows + r) * QuantizedRowBytes(kSlice);
      for (int c = 0; c < kSlice; ++c) {
        ASSERT_EQ(codes[(r * kParts + part) * kSlice + c], from[c]) << "row " << r << ", part " << part;
      }
      for (int group = 0; group < 2; ++group) {
        uint32_t expected = 0, got = 0;
        std::memcpy(&expected, from + kSlice + group * 4, 4);
        std::memcpy(&got, &scales[(part * 2 + group) * 8 + r], 4);
        ASSERT_EQ(got, expected) << "row " << r << ", part " << part << ", group " << group;
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
