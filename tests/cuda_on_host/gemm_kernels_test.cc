// The GEMM kernels of kernels/cuda against each other: every tile size gives a row the same bits, and the
// Hopper kernel those of its reference, whatever the neighbouring rows are.

#include <cmath>
#include <limits>

#include "kernels/cuda/dense/quantize.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "kernels/cuda/gemm/gemm_tile.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/weight_slices.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  int n, k;
  DType dtype;
  std::vector<int> rows;  // of each group
};

// Around tile boundaries; groups without rows; outputs that end inside a tile; an odd number of k blocks.
const Shape kShapes[] = {
    {"bf16, one row", 128, 64, DType::kBF16, {1}},
    {"bf16, ragged outputs", 24, 192, DType::kBF16, {0, 3, 64, 65}},
    {"bf16, more steps than stages", 136, 640, DType::kBF16, {129, 0, 1}},
    {"f8, one row", 128, 128, DType::kF8E4M3, {1}},
    {"f8, borders", 136, 256, DType::kF8E4M3, {0, 1, 7, 64, 65, 129, 0}},
    {"f8, more steps than stages", 264, 1152, DType::kF8E4M3, {3, 0, 70}},
};

// One problem on the device, for any of the kernels.
class Problem {
 public:
  Problem(OpRig& rig, const Shape& shape, const std::vector<TestWeight>& weights, const std::vector<bf16>& x,
          int segments = 0)
      : rig_(rig), n_(shape.n) {
    std::vector<int32_t> offsets = {0};
    for (const int rows : shape.rows) offsets.push_back(offsets.back() + rows);
    row_count_ = offsets.back();
    const PackedWeights packed = PackAll(rig, static_cast<int>(weights.size()),
                                         [&](int g) -> const TestWeight& { return weights[g]; });
    problem_.x = Dense<const bf16>(rig.Put(x), row_count_, shape.k);
    problem_.weight = packed.first;
    problem_.weight.segments = segments;
    problem_.data_stride = packed.data_stride;
    problem_.scale_stride = packed.scale_stride;
    const int32_t groups = static_cast<int32_t>(shape.rows.size());
    problem_.ranges = {groups > 1 ? rig.Put(offsets) : nullptr, row_count_, groups};
    if (shape.dtype != DType::kF8E4M3) return;
    const cuda::QuantizedShape quantized(row_count_, shape.k);
    problem_.x_f8 = quantized.View(rig.Poisoned<uint8_t>(quantized.bytes));
    cuda::QuantizeRows(rig.stream(), problem_.x_f8, problem_.x, nullptr, nullptr, row_count_);
  }

  std::vector<float> Tile(int rows_per_tile = 0) {
    return Run([=](Stream& stream, const cuda::GemmProblem& p) { cuda::TileGemm(stream, p, rows_per_tile); });
  }
  std::vector<float> Hopper(cuda::GemmTile tile = {}, int splits = 1) {
    return Run([=, this](Stream& stream, cuda::GemmProblem& p) {
      p.splits = splits;
      p.partials = rig_.Poisoned<unsigned char>(cuda::HopperPartialBytes(stream, p, tile));
      cuda::HopperGemm(stream, p, tile);
    });
  }

 private:
  template <class Kernel>
  std::vector<float> Run(const Kernel& kernel) {
    cuda::GemmProblem problem = problem_;
    problem.out = Dense(rig_.Poisoned<float>(row_count_ * n_), row_count_, n_);
    kernel(rig_.stream(), problem);
    return rig_.Get(problem.out.data, row_count_ * n_);
  }

  OpRig& rig_;
  const int n_;
  int row_count_ = 0;
  cuda::GemmProblem problem_;
};

Bytes BytesOfAll(const std::vector<float>& values) { return BytesOf(values.data(), values.size()); }

std::vector<TestWeight> MakeWeights(Noise& noise, const Shape& shape) {
  std::vector<TestWeight> weights;
  for (size_t g = 0; g < shape.rows.size(); ++g) {
    weights.push_back(MakeTestWeight(noise, {shape.n}, shape.k, shape.dtype, 128, 128));
  }
  return weights;
}

std::vector<bf16> MakeRows(Noise& noise, const Shape& shape) {
  size_t rows = 0;
  for (const int count : shape.rows) rows += count;
  return noise.Bf16s(rows * shape.k);
}

// Both kernels, all widths, partly and completely filled tiles.
constexpr cuda::GemmTile kTiles[] = {{16, 128}, {48, 32},  {64, 16}, {64, 64},
                                     {80, 16},  {128, 32}, {96, 64}, {112, 128}};

TEST(GemmKernels, EveryTileGivesTheSameBits) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.name);
    Noise noise(41);
    const std::vector<TestWeight> weights = MakeWeights(noise, shape);
    OpRig rig({}, RunMode::kEager);
    Problem problem(rig, shape, weights, MakeRows(noise, shape));
    const Bytes tile = BytesOfAll(problem.Tile(16));
    const Bytes hopper = BytesOfAll(problem.Hopper());
    EXPECT_EQ(BytesOfAll(problem.Tile(64)), tile);
    for (const cuda::GemmTile& t : kTiles) {
      EXPECT_EQ(BytesOfAll(problem.Hopper(t)), hopper) << t.rows << " rows, " << t.outputs << " outputs";
    }
    if (shape.dtype == DType::kBF16) {
      EXPECT_EQ(hopper, tile) << "the oracle differs";
    }
  }
}

TEST(GemmKernels, HopperComesAsCloseAsItsSumsAllow) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.name);
    Noise noise(42);
    const std::vector<TestWeight> weights = MakeWeights(noise, shape);
    const std::vector<bf16> x = MakeRows(noise, shape);
    OpRig rig({}, RunMode::kEager);
    const std::vector<float> out = Problem(rig, shape, weights, x).Hopper();
    int row = 0;
    for (size_t g = 0; g < shape.rows.size(); ++g) {
      for (int i = 0; i < shape.rows[g]; ++i, ++row) {
        const std::vector<double> inputs = ReferenceInputs(weights[g], &x[row * shape.k], shape.k);
        for (int j = 0; j < shape.n; ++j) {
          const DotReference dot = ReferenceDot(weights[g], j, inputs);
          const double tolerance = dot.coarse_error + (shape.k + 4) * kF32Roundoff * dot.magnitude;
          ASSERT_NEAR(out[row * shape.n + j], dot.sum, tolerance) << "row " << row << " output " << j;
        }
      }
    }
  }
}

TEST(GemmKernels, NeighboursLeaveNoTrace) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.name);
    Noise noise(43);
    const std::vector<TestWeight> weights = MakeWeights(noise, shape);
    const std::vector<bf16> x = MakeRows(noise, shape);
    std::vector<bf16> beside = x;  // every second row
    for (size_t i = 0; i < x.size(); ++i) {
      if (i / shape.k % 2 == 0) continue;
      beside[i] = ToBf16(i % 3 == 0 ? std::numeric_limits<float>::infinity() : std::nanf(""));
    }
    OpRig rig({}, RunMode::kEager);
    Problem expected(rig, shape, weights, x), problem(rig, shape, weights, beside);
    for (const bool hopper : {false, true}) {
      const auto run = [hopper](Problem& p) { return hopper ? p.Hopper() : p.Tile(); };
      const std::vector<float> alone = run(expected), out = run(problem);
      for (size_t i = 0; i < out.size(); i += 2 * shape.n) {
        EXPECT_EQ(BytesOf(&out[i], shape.n), BytesOf(&alone[i], shape.n)) << "row " << i / shape.n;
      }
    }
  }
}

// ---- splits of k ----

// Ragged rows and outputs; 9 steps, which 2, 4 and 8 do not divide; splits of one step.
const Shape kSplitShapes[] = {
    {"bf16", 24, 576, DType::kBF16, {70}},
    {"bf16, 8 steps", 16, 512, DType::kBF16, {5}},
    {"f8", 136, 1152, DType::kF8E4M3, {70}},
};

// The inputs of split `split` alone, zeros elsewhere: their product is the split's sum.
std::vector<bf16> OnlySplit(const Shape& shape, const std::vector<bf16>& x, int split, int splits) {
  const int step = shape.dtype == DType::kF8E4M3 ? 128 : 64;
  const int steps = shape.k / step;
  const int first = split * steps / splits * step, end = (split + 1) * steps / splits * step;
  std::vector<bf16> part = x;
  for (size_t i = 0; i < part.size(); ++i) {
    const int column = static_cast<int>(i) % shape.k;
    if (column < first || column >= end) part[i] = bf16{0};
  }
  return part;
}

TEST(GemmKernels, SplitsAreAddedInOrder) {
  for (const Shape& shape : kSplitShapes) {
    Noise noise(44);
    const std::vector<TestWeight> weights = MakeWeights(noise, shape);
    const std::vector<bf16> x = MakeRows(noise, shape);
    OpRig rig({}, RunMode::kEager);
    Problem problem(rig, shape, weights, x);
    for (const int splits : {2, 4, 8}) {
      SCOPED_TRACE(shape.name + std::string(", splits ") + std::to_string(splits));
      std::vector<float> expected;
      for (int split = 0; split < splits; ++split) {
        const std::vector<float> part =
            Problem(rig, shape, weights, OnlySplit(shape, x, split, splits)).Hopper();
        if (split == 0) expected = part;
        for (size_t i = 0; split > 0 && i < part.size(); ++i) expected[i] += part[i];
      }
      for (const cuda::GemmTile& t : kTiles) {
        if (t.rows > 64 && t.outputs == 128) continue;  // not there
        EXPECT_EQ(problem.Hopper(t, splits), expected) << t.rows << " rows, " << t.outputs << " outputs";
      }
    }
  }
}

// Ragged rows and outputs; several tiles for a block; segments of one step and of two.
const Shape kSegmentShapes[] = {
    {"bf16, few rows", 24, 512, DType::kBF16, {5}},
    {"bf16, more tiles than blocks", 136, 1024, DType::kBF16, {70}},
    {"f8, few rows", 24, 1024, DType::kF8E4M3, {5}},
    {"f8, more tiles than blocks", 136, 1024, DType::kF8E4M3, {70}},
};

TEST(GemmKernels, EveryTileAndShareGivesTheTreeOfSegments) {
  for (const Shape& shape : kSegmentShapes) {
    SCOPED_TRACE(shape.name);
    Noise noise(48);
    const std::vector<TestWeight> weights = MakeWeights(noise, shape);
    const std::vector<bf16> x = MakeRows(noise, shape);
    OpRig rig({}, RunMode::kEager);
    for (const int segments : {2, 4, 8}) {
      std::vector<std::vector<float>> values;
      for (int segment = 0; segment < segments; ++segment) {
        values.push_back(Problem(rig, shape, weights, OnlySplit(shape, x, segment, segments)).Hopper());
      }
      const std::vector<float> expected = TreeSum(values);
      Problem problem(rig, shape, weights, x, segments);
      for (const cuda::GemmTile& t : kTiles) {
        const int most = t.rows <= 64 && t.outputs < 128 ? segments : 1;  // others are not there
        for (int shares = 1; shares <= most; shares *= 2) {
          EXPECT_EQ(problem.Hopper(t, shares), expected)
              << segments << " segments, " << shares << " shares, " << t.rows << " x " << t.outputs;
        }
      }
      if (shape.dtype != DType::kBF16) continue;
      EXPECT_EQ(problem.Tile(16), expected) << segments << " segments, TileGemm";
      EXPECT_EQ(problem.Tile(64), expected) << segments << " segments, TileGemm";
    }
  }
}

TEST(GemmKernels, SplitRowsDoNotSeeTheirNeighbours) {
  for (Shape shape : kSplitShapes) {
    SCOPED_TRACE(shape.name);
    Noise noise(45);
    const std::vector<TestWeight> weights = MakeWeights(noise, shape);
    const std::vector<bf16> x = MakeRows(noise, shape);
    OpRig rig({}, RunMode::kEager);
    const std::vector<float> all = Problem(rig, shape, weights, x).Hopper({}, 4);
    const int rows = shape.rows[0];
    shape.rows = {1};
    for (const int row : {0, rows / 2, rows - 1}) {
      const std::vector<bf16> alone(&x[row * shape.k], &x[row * shape.k] + shape.k);
      EXPECT_EQ(BytesOfAll(Problem(rig, shape, weights, alone).Hopper({}, 4)),
                BytesOf(&all[row * shape.n], shape.n))
          << "row " << row;
    }
  }
}

TEST(GemmKernels, ManySplitRowsAreComputedInPieces) {
  const Shape shape = {"bf16", 8, 256, DType::kBF16, {1030}};
  Noise noise(46);
  const std::vector<TestWeight> weights = MakeWeights(noise, shape);
  const std::vector<bf16> x = MakeRows(noise, shape);
  OpRig rig({}, RunMode::kEager);
  const std::vector<float> all = Problem(rig, shape, weights, x).Hopper({}, 2);
  Shape last = shape;
  last.rows = {10};
  const std::vector<bf16> rows(x.end() - 10 * shape.k, x.end());
  EXPECT_EQ(BytesOfAll(Problem(rig, last, weights, rows).Hopper({}, 2)),
            BytesOf(&all[1020 * shape.n], 10 * shape.n));
}

// The splits of a row's bits may not depend on where its inputs lie: TMA cannot load rows at an odd stride.
TEST(GemmKernels, MisalignedRowsAreSplitToo) {
  constexpr int kN = 16, kK = 4096, kRows = 3;
  ASSERT_GT(cuda::GemmSplits(kN, kK, 2), 1);
  Noise noise(47);
  OpRig rig({}, RunMode::kReplayed);
  const TestWeight weight = MakeTestWeight(noise, {kN}, kK, DType::kBF16, 0, 0);
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
