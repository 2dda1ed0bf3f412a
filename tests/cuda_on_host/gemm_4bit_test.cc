// Gemm4Bit against itself: every tile size gives a row the same bits, whatever the neighbouring rows are, and
// splits of k are added in order. tests/ops compares it with plain loops.

#include "kernels/cuda/gemm/gemm_4bit.h"

#include <cmath>
#include <limits>

#include "kernels/cuda/gemm/gemm_plan.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/weight_slices.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  int n, k;
  DType dtype;
  int group;
  std::vector<int> rows;  // of each weight
};

// Around tile boundaries; weights without rows; outputs and inputs that end inside a block; more steps than
// stages.
const Shape kShapes[] = {
    {"int4, one row", 64, 128, DType::kInt4, 32, {1}},
    {"int4, groups of 128", 72, 384, DType::kInt4, 128, {0, 3, 16, 17, 33, 0}},
    {"int4, groups of 64", 40, 192, DType::kInt4, 64, {65}},
    {"fp4, a quarter of a block at the end", 136, 1056, DType::kF4E2M1, 32, {70, 0, 1}},
    {"nvfp4, an eighth of a block at the end", 136, 1040, DType::kF4E2M1, 16, {70, 0, 1}},
};

class Problem {
 public:
  Problem(OpRig& rig, const Shape& shape, const std::vector<TestWeight>& weights, const std::vector<bf16>& x,
          int segments = 0)
      : rig_(rig), n_(shape.n) {
    std::vector<int32_t> offsets = {0};
    for (const int rows : shape.rows) offsets.push_back(offsets.back() + rows);
    row_count_ = offsets.back();
    const int32_t groups = static_cast<int32_t>(shape.rows.size());
    const PackedWeights packed = PackAll(rig, groups, [&](int g) -> const TestWeight& { return weights[g]; });
    problem_.x = Dense<const bf16>(rig.Put(x), row_count_, shape.k);
    problem_.weight = packed.first;
    problem_.weight.segments = segments;
    problem_.data_stride = packed.data_stride;
    problem_.ranges = {groups > 1 ? rig.Put(offsets) : nullptr, row_count_, groups};
  }

  std::vector<float> Run(int32_t tile_rows, int splits = 1) {
    cuda::GemmProblem p = problem_;
    p.out = Dense(rig_.Poisoned<float>(row_count_ * n_), row_count_, n_);
    p.splits = splits;
    p.partials = rig_.Poisoned<unsigned char>(cuda::PartialBytes4Bit(rig_.stream(), p, tile_rows));
    cuda::Gemm4Bit(rig_.stream(), p, tile_rows);
    return rig_.Get(p.out.data, row_count_ * n_);
  }

 private:
  OpRig& rig_;
  const int n_;
  int row_count_ = 0;
  cuda::GemmProblem problem_;
};

std::vector<TestWeight> MakeWeights(Noise& noise, const Shape& shape) {
  std::vector<TestWeight> weights;
  for (size_t g = 0; g < shape.rows.size(); ++g) {
    weights.push_back(MakeTestWeight(noise, {shape.n}, shape.k, shape.dtype, 0, shape.group));
  }
  return weights;
}

std::vector<bf16> MakeRows(Noise& noise, const Shape& shape) {
  size_t rows = 0;
  for (const int count : shape.rows) rows += count;
  return noise.Bf16s(rows * shape.k);
}

constexpr int32_t kTiles[] = {16, 32, 64};

TEST(Gemm4Bit, EveryTileGivesTheSameBits) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.name);
    Noise noise(61);
    const std::vector<TestWeight> weights = MakeWeights(noise, shape);
    OpRig rig({}, RunMode::kEager);
    Problem problem(rig, shape, weights, MakeRows(noise, shape));
    const std::vector<float> expected = problem.Run(0);
    for (const int32_t tile : kTiles) {
      const std::vector<float> out = problem.Run(tile);
      EXPECT_EQ(BytesOf(out.data(), out.size()), BytesOf(expected.data(), expected.size())) << tile;
    }
  }
}

TEST(Gemm4Bit, NeighboursLeaveNoTrace) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.name);
    Noise noise(62);
    const std::vector<TestWeight> weights = MakeWeights(noise, shape);
    const std::vector<bf16> x = MakeRows(noise, shape);
    std::vector<bf16> beside = x;  // every second row
    for (size_t i = 0; i < x.size(); ++i) {
      if (i / shape.k % 2 == 0) continue;
      beside[i] = ToBf16(i % 3 == 0 ? std::numeric_limits<float>::infinity() : std::nanf(""));
    }
    OpRig rig({}, RunMode::kEager);
    Problem expected(rig, shape, weights, x), problem(rig, shape, weights, beside);
    const std::vector<float> alone = expected.Run(0), out = problem.Run(0);
    for (size_t i = 0; i < out.size(); i += 2 * shape.n) {
      EXPECT_EQ(BytesOf(&out[i], shape.n), BytesOf(&alone[i], shape.n)) << "row " << i / shape.n;
    }
  }
}

// 9 blocks, which 2, 4 and 8 do not divide; ragged rows and outputs.
const Shape kSplitShape = {"int4", 72, 1152, DType::kInt4, 32, {35}};

TEST(Gemm4Bit, SplitsAreAddedInOrder) {
  const Shape& shape = kSplitShape;
  Noise noise(63);
  const std::vector<TestWeight> weights = MakeWeights(noise, shape);
  const std::vector<bf16> x = MakeRows(noise, shape);
  OpRig rig({}, RunMode::kEager);
  Problem problem(rig, shape, weights, x);
  for (const int splits : {2, 4, 8}) {
    std::vector<float> expected;
    for (int split = 0; split < splits; ++split) {
      const int first = split * 9 / splits * 128, end = (split + 1) * 9 / splits * 128;
      std::vector<bf16> part = x;  // the inputs of the split alone: their product is its sum
      for (size_t i = 0; i < part.size(); ++i) {
        const int column = static_cast<int>(i) % shape.k;
        if (column < first || column >= end) part[i] = bf16{0};
      }
      const std::vector<float> sum = Problem(rig, shape, weights, part).Run(0);
      if (split == 0) expected = sum;
      for (size_t i = 0; split > 0 && i < sum.size(); ++i) expected[i] += sum[i];
    }
    for (const int32_t tile : kTiles) {
      EXPECT_EQ(problem.Run(tile, splits), expected) << splits << " splits, " << tile << " rows";
    }
  }
}

TEST(Gemm4Bit, ManySplitRowsAreComputedInPieces) {
  const Shape shape = {"int4", 8, 256, DType::kInt4, 128, {1030}};
  Noise noise(64);
  const std::vector<TestWeight> weights = MakeWeights(noise, shape);
  const std::vector<bf16> x = MakeRows(noise, shape);
  OpRig rig({}, RunMode::kEager);
  const std::vector<float> all = Problem(rig, shape, weights, x).Run(0, 2);
  Shape last = shape;
  last.rows = {10};
  const std::vector<float> alone = Problem(rig, last, weights, {x.end() - 10 * shape.k, x.end()}).Run(0, 2);
  EXPECT_EQ(BytesOf(alone.data(), alone.size()), BytesOf(&all[1020 * shape.n], 10 * shape.n));
}

// Segments of one block and of two, several tiles for a block of threads.
const Shape kSegmentShapes[] = {
    {"int4", 72, 1024, DType::kInt4, 32, {35}},
    {"int4, groups of 128", 40, 2048, DType::kInt4, 128, {3}},
    {"fp4, more tiles than blocks", 200, 1024, DType::kF4E2M1, 64, {70}},
    {"nvfp4", 72, 1024, DType::kF4E2M1, 16, {35}},
};

TEST(Gemm4Bit, EveryTileAndShareGivesTheTreeOfSegments) {
  for (const Shape& shape : kSegmentShapes) {
    SCOPED_TRACE(shape.name);
    Noise noise(66);
    const std::vector<TestWeight> weights = MakeWeights(noise, shape);
    const std::vector<bf16> x = MakeRows(noise, shape);
    OpRig rig({}, RunMode::kEager);
    for (const int segments : {2, 4, 8}) {
      std::vector<std::vector<float>> values;
      for (int segment = 0; segment < segments; ++segment) {
        std::vector<bf16> part = x;  // the inputs of the segment alone: their product is its value
        for (size_t i = 0; i < part.size(); ++i) {
          if (static_cast<int>(i) % shape.k / (shape.k / segments) != segment) part[i] = bf16{0};
        }
        values.push_back(Problem(rig, shape, weights, part).Run(0));
      }
      const std::vector<float> expected = TreeSum(values);
      Problem problem(rig, shape, weights, x, segments);
      for (const int32_t tile : kTiles) {
        for (int shares = 1; shares <= (tile < 64 ? segments : 1); shares *= 2) {
          EXPECT_EQ(problem.Run(tile, shares), expected)
              << segments << " segments, " << shares << " shares, " << tile << " rows";
        }
      }
    }
  }
}

// Neither the splits nor the sums of a row may depend on where its inputs lie.
TEST(Gemm4Bit, MisalignedRowsHaveTheSameBits) {
  constexpr int kN = 16, kK = 4096, kRows = 3;
  ASSERT_GT(cuda::Splits4Bit(kN, kK, kInt4Format), 1);
  Noise noise(65);
  OpRig rig({}, RunMode::kReplayed);
  const TestWeight weight = MakeTestWeight(noise, {kN}, kK, DType::kInt4, 0, 32);
  const std::vector<bf16> x = noise.Bf16s(kRows * kK);
  std::vector<bf16> spread(kRows * (kK + 3));
  for (int r = 0; r < kRows; ++r) std::copy_n(&x[r * kK], kK, &spread[r * (kK + 3)]);
  GemmParams p = {.weight = rig.Pack(weight.parts)};
  const auto run = [&](Matrix<const bf16> rows) {
    p.out = Dense(rig.Poisoned<float>(kRows * kN), kRows, kN);
    p.x = rows;
    rig.Run([&] { rig.ops().gemm(rig.stream(), p); });
    return rig.Get(p.out.data, kRows * kN);
  };
  const std::vector<float> dense = run(Dense<const bf16>(rig.Put(x), kRows, kK));
  EXPECT_EQ(run({rig.Put(spread), kRows, kK, kK + 3}), dense);
}

}  // namespace
}  // namespace foredraft
