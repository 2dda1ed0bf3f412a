// The GEMM kernels of kernels/cuda against each other: every tile size gives a row the same bits, and the
// Hopper kernel those of its reference, whatever the neighbouring rows are.

#include <cmath>
#include <limits>

#include "kernels/cuda/gemm_hopper.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/quantize.h"
#include "tests/ops/op_harness.h"
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
  Problem(OpRig& rig, const Shape& shape, const std::vector<TestWeight>& weights, const std::vector<bf16>& x)
      : rig_(rig), n_(shape.n) {
    std::vector<int32_t> offsets = {0};
    for (const int rows : shape.rows) offsets.push_back(offsets.back() + rows);
    row_count_ = offsets.back();
    const PackedWeights packed = PackAll(rig, static_cast<int>(weights.size()),
                                         [&](int g) -> const TestWeight& { return weights[g]; });
    problem_.x = Dense<const bf16>(rig.Put(x), row_count_, shape.k);
    problem_.weight = packed.first;
    problem_.data_stride = packed.data_stride;
    problem_.scale_stride = packed.scale_stride;
    problem_.ranges = {rig.Put(offsets), row_count_, static_cast<int32_t>(shape.rows.size())};
    if (shape.dtype != DType::kF8E4M3) return;
    const cuda::QuantizedShape quantized(row_count_, shape.k);
    problem_.x_f8 = quantized.View(rig.Poisoned<uint8_t>(quantized.bytes));
    cuda::QuantizeRows(rig.stream(), problem_.x_f8, problem_.x, nullptr, nullptr, row_count_);
  }

  template <class Kernel, class... Tile>
  std::vector<float> Run(Kernel kernel, Tile... tile) {
    cuda::GemmProblem problem = problem_;
    problem.out = Dense(rig_.Poisoned<float>(row_count_ * n_), row_count_, n_);
    kernel(rig_.stream(), problem, tile...);
    return rig_.Get(problem.out.data, row_count_ * n_);
  }

 private:
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

TEST(GemmKernels, EveryTileGivesTheSameBits) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.name);
    Noise noise(41);
    const std::vector<TestWeight> weights = MakeWeights(noise, shape);
    OpRig rig({}, RunMode::kEager);
    Problem problem(rig, shape, weights, MakeRows(noise, shape));
    const Bytes tile = BytesOfAll(problem.Run(cuda::TileGemm, 16));
    const Bytes hopper = BytesOfAll(problem.Run(cuda::HopperGemm, 64, 128));
    EXPECT_EQ(BytesOfAll(problem.Run(cuda::TileGemm, 64)), tile);
    EXPECT_EQ(BytesOfAll(problem.Run(cuda::HopperGemm, 128, 128)), hopper);
    for (const int outputs : {16, 32, 64}) {
      EXPECT_EQ(BytesOfAll(problem.Run(cuda::HopperGemm, 64, outputs)), hopper) << outputs << " outputs";
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
    const std::vector<float> out = Problem(rig, shape, weights, x).Run(cuda::HopperGemm, 0, 0);
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
      const auto run = [hopper](Problem& p) {
        return hopper ? p.Run(cuda::HopperGemm, 0, 0) : p.Run(cuda::TileGemm, 0);
      };
      const std::vector<float> alone = run(expected), out = run(problem);
      for (size_t i = 0; i < out.size(); i += 2 * shape.n) {
        EXPECT_EQ(BytesOf(&out[i], shape.n), BytesOf(&alone[i], shape.n)) << "row " << i / shape.n;
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
