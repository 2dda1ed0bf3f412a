// The kernels one by one, the simplest first: each test launches one kernel at a small shape and checks it
// against plain loops, so that the first failure names the instruction or the tile that is wrong.
// tests/gpu/run runs them in the order of this file.

#include <cmath>
#include <limits>

#include "kernels/cuda/attention/mla_decode.h"
#include "kernels/cuda/dense/quantize.h"
#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/gemm/gemm_4bit.h"
#include "kernels/cuda/gemm/gemm_gate_up.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "kernels/cuda/gemm/gemm_tile.h"
#include "tests/ops/attention_reference.h"
#include "tests/ops/kv_fixture.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

#define SKIP_UNLESS_HOPPER() \
  if (!cuda::RunsHopperKernels()) GTEST_SKIP() << "this GPU gets the generic kernels"

struct Tile {
  int rows, outputs;  // 0: as the kernel chooses
};

// One product x [rows, k] by weight [n, k], on the device. `group`: of FP8 blocks and of 4-bit codes.
class Product {
 public:
  Product(int rows, int n, int k, DType dtype, int group = 128)
      : rig_({}, RunMode::kEager),
        noise_(7),
        rows_(rows),
        k_(k),
        weight_(MakeTestWeight(noise_, {n}, k, dtype, 128, group)) {
    x_ = noise_.Bf16s(size_t(rows) * k);
    packed_ = rig_.Pack(weight_.parts);
  }

  std::vector<bf16>& x() { return x_; }

  void ExpectTileGemm(int rows_per_tile) {
    ExpectEqual(Run([&](const cuda::GemmProblem& p) { cuda::TileGemm(rig_.stream(), p, rows_per_tile); }));
  }
  void ExpectGemm4Bit(int tile_rows, int splits = 1) {
    ExpectEqual(Run([&](cuda::GemmProblem& p) {
      p.splits = splits;
      p.partials = rig_.Poisoned<unsigned char>(cuda::PartialBytes4Bit(rig_.stream(), p, tile_rows));
      cuda::Gemm4Bit(rig_.stream(), p, tile_rows);
    }));
  }
  void ExpectHopperGemm(Tile tile) { ExpectEqual(Hopper(tile)); }
  std::vector<float> Hopper(Tile tile) {
    return Run([&](const cuda::GemmProblem& p) {
      cuda::HopperGemm(rig_.stream(), p, {tile.rows, tile.outputs});
    });
  }

 private:
  template <class Kernel>
  std::vector<float> Run(const Kernel& kernel) {
    cuda::GemmProblem problem = {.out = Dense(rig_.Poisoned<float>(rows_ * weight_.n), rows_, weight_.n),
                                 .x = Dense<const bf16>(rig_.Put(x_), rows_, k_),
                                 .weight = packed_,
                                 .ranges = {.offsets = nullptr, .rows = rows_, .groups = 1}};
    if (IsF8(packed_.format)) {
      const cuda::QuantizedShape shape(rows_, k_);
      problem.x_f8 = shape.View(rig_.Poisoned<uint8_t>(shape.bytes));
      cuda::QuantizeRows(rig_.stream(), problem.x_f8, problem.x, nullptr, nullptr, rows_);
    }
    kernel(problem);
    return rig_.Get(problem.out.data, rows_ * weight_.n);
  }

  void ExpectEqual(const std::vector<float>& out) {
    for (int row = 0; row < rows_; ++row) {
      const std::vector<double> inputs = ReferenceInputs(weight_, &x_[size_t(row) * k_], k_);
      for (int i = 0; i < weight_.n; ++i) {
        const DotReference dot = ReferenceDot(weight_, i, inputs);
        ASSERT_NEAR(out[size_t(row) * weight_.n + i], dot.sum,
                    (k_ + 4) * kF32Roundoff * dot.magnitude + dot.coarse_error)
            << "row " << row << ", output " << i;
      }
    }
  }

  OpRig rig_;
  Noise noise_;
  const int rows_, k_;
  const TestWeight weight_;
  std::vector<bf16> x_;
  PackedWeight packed_;
};

TEST(Ladder, Launch) {
  OpRig rig({}, RunMode::kEager);
  const std::vector<float> ones(64, 1.0f);
  float* const x = rig.Put(ones);
  rig.ops().add(rig.stream(), {Dense(x, 2, 32), Dense<const float>(rig.Put(ones), 2, 32)});
  EXPECT_EQ(rig.Get(x, 64), std::vector<float>(64, 2.0f));
}

TEST(Ladder, TileGemmBf16) { Product(16, 64, 64, DType::kBF16).ExpectTileGemm(16); }
TEST(Ladder, TileGemmBf16Of64Rows) { Product(64, 64, 256, DType::kBF16).ExpectTileGemm(64); }
TEST(Ladder, TileGemmF8) { Product(16, 128, 256, DType::kF8E4M3).ExpectTileGemm(16); }

// A block of 128 inputs, each kind and group; several warps of rows; more blocks than stages; split k.
TEST(Ladder, Gemm4BitOneStep) { Product(16, 64, 128, DType::kInt4).ExpectGemm4Bit(16); }
TEST(Ladder, Gemm4BitGroupsOf32) { Product(16, 64, 128, DType::kInt4, 32).ExpectGemm4Bit(16); }
TEST(Ladder, Gemm4BitFp4) { Product(16, 64, 128, DType::kF4E2M1, 32).ExpectGemm4Bit(16); }
TEST(Ladder, Gemm4BitOf32Rows) { Product(32, 64, 256, DType::kInt4, 32).ExpectGemm4Bit(32); }
TEST(Ladder, Gemm4BitOf64Rows) { Product(64, 64, 256, DType::kInt4, 32).ExpectGemm4Bit(64); }
TEST(Ladder, Gemm4BitPipeline) { Product(5, 200, 1184, DType::kInt4, 32).ExpectGemm4Bit(16); }
TEST(Ladder, Gemm4BitSplits) { Product(5, 200, 1280, DType::kInt4, 64).ExpectGemm4Bit(16, 4); }

// A single k step, then several, then more than the pipeline has stages.
TEST(Ladder, HopperBf16OneStep) {
  SKIP_UNLESS_HOPPER();
  Product(64, 128, 64, DType::kBF16).ExpectHopperGemm({64, 128});
}
TEST(Ladder, HopperBf16) {
  SKIP_UNLESS_HOPPER();
  Product(64, 128, 256, DType::kBF16).ExpectHopperGemm({64, 128});
}
TEST(Ladder, HopperBf16Pipeline) {
  SKIP_UNLESS_HOPPER();
  Product(64, 128, 1280, DType::kBF16).ExpectHopperGemm({64, 128});
}
TEST(Ladder, HopperF8OneStep) {
  SKIP_UNLESS_HOPPER();
  Product(64, 128, 128, DType::kF8E4M3).ExpectHopperGemm({64, 128});
}
TEST(Ladder, HopperF8Pipeline) {
  SKIP_UNLESS_HOPPER();
  Product(64, 128, 2560, DType::kF8E4M3).ExpectHopperGemm({64, 128});
}
TEST(Ladder, Hopper64Outputs) {
  SKIP_UNLESS_HOPPER();
  Product(64, 128, 256, DType::kBF16).ExpectHopperGemm({64, 64});
  Product(64, 128, 256, DType::kF8E4M3).ExpectHopperGemm({64, 64});
}
TEST(Ladder, Hopper32Outputs) {
  SKIP_UNLESS_HOPPER();
  Product(64, 128, 256, DType::kBF16).ExpectHopperGemm({64, 32});
  Product(64, 128, 256, DType::kF8E4M3).ExpectHopperGemm({64, 32});
}
TEST(Ladder, Hopper16Outputs) {
  SKIP_UNLESS_HOPPER();
  Product(64, 128, 256, DType::kBF16).ExpectHopperGemm({64, 16});
  Product(64, 128, 256, DType::kF8E4M3).ExpectHopperGemm({64, 16});
}
TEST(Ladder, Hopper128Rows) {
  SKIP_UNLESS_HOPPER();
  Product(128, 128, 256, DType::kBF16).ExpectHopperGemm({128, 128});
  Product(128, 128, 256, DType::kF8E4M3).ExpectHopperGemm({128, 128});
}
TEST(Ladder, HopperManyTiles) {
  SKIP_UNLESS_HOPPER();
  Product(65, 1032, 256, DType::kF8E4M3).ExpectHopperGemm({0, 0});
}
TEST(Ladder, HopperBesideNaN) {
  SKIP_UNLESS_HOPPER();
  Product clean(65, 128, 256, DType::kBF16), beside(65, 128, 256, DType::kBF16);
  for (int i = 0; i < 256; ++i) beside.x()[64 * 256 + i] = ToBf16(std::nanf(""));
  std::vector<float> expected = clean.Hopper({0, 0}), out = beside.Hopper({0, 0});
  expected.resize(64 * 128);
  out.resize(64 * 128);
  EXPECT_EQ(BytesOf(out.data(), out.size()), BytesOf(expected.data(), expected.size()));
}

// Against grouped_gemm, silu_mul and the quantisation in sequence.
TEST(Ladder, GateUp) {
  SKIP_UNLESS_HOPPER();
  constexpr int kRows = 3, kK = 256, kWidth = 128;
  OpRig rig({}, RunMode::kEager);
  Noise noise(9);
  const TestWeight weight = MakeTestWeight(noise, {2 * kWidth}, kK, DType::kF8E4M3, 128, 128);
  const PackedWeights experts = *rig.device().PackWeights(
      1, [&](int) -> absl::StatusOr<std::vector<HostWeight>> { return weight.parts; });
  GroupedGemmParams params = {.out = Dense(rig.Poisoned<float>(kRows * 2 * kWidth), kRows, 2 * kWidth),
                              .x = Dense<const bf16>(rig.Put(noise.Bf16s(kRows * kK)), kRows, kK),
                              .expert_offsets = rig.Put(std::vector<int32_t>{0, kRows}),
                              .experts = experts};
  const auto quantized = [&] {
    const cuda::QuantizedShape shape(kRows, kWidth);
    return shape.View(*rig.device().AllocateArray<uint8_t>(shape.bytes));
  };
  const QuantizedRows expected = quantized(), out = quantized();
  rig.ops().grouped_gemm(rig.stream(), params);
  rig.ops().silu_mul(rig.stream(), {.out_f8 = expected, .gate_up = params.out});
  params.out = {};
  params.silu_f8 = out;
  rig.ops().grouped_gemm(rig.stream(), params);
  for (int row = 0; row < kRows; ++row) {
    EXPECT_EQ(rig.Get(out.codes + row * out.pitch, kWidth),
              rig.Get(expected.codes + row * expected.pitch, kWidth));
    EXPECT_EQ(rig.Get(out.scales + row, 1), rig.Get(expected.scales + row, 1));
  }
}

TEST(Ladder, HeadGemm) {
  constexpr int kRows = 5, kHeads = 4, kN = 64, kK = 128;
  OpRig rig({}, RunMode::kEager);
  Noise noise(11);
  std::vector<TestWeight> weights;
  for (int h = 0; h < kHeads; ++h) weights.push_back(MakeTestWeight(noise, {kN}, kK, DType::kBF16, 128, 128));
  const PackedWeights heads = PackAll(rig, kHeads, [&](int h) -> const TestWeight& { return weights[h]; });
  const std::vector<bf16> x = noise.Bf16s(kRows * kHeads * kK);
  bf16* const out = rig.Poisoned<bf16>(kRows * kHeads * kN);
  rig.ops().head_gemm(rig.stream(), {.out = Dense(out, kRows, kHeads * kN),
                                     .x = Dense<const bf16>(rig.Put(x), kRows, kHeads * kK),
                                     .heads = heads,
                                     .out_head_stride = kN,
                                     .x_head_stride = kK});
  const std::vector<bf16> values = rig.Get(out, kRows * kHeads * kN);
  for (int row = 0; row < kRows; ++row) {
    for (int h = 0; h < kHeads; ++h) {
      const std::vector<double> inputs = ReferenceInputs(weights[h], &x[(row * kHeads + h) * kK], kK);
      for (int i = 0; i < kN; ++i) {
        const DotReference dot = ReferenceDot(weights[h], i, inputs);
        ASSERT_NEAR(ToFloat(values[(row * kHeads + h) * kN + i]), dot.sum,
                    std::abs(dot.sum) * kBf16Roundoff + (kK + 4) * kF32Roundoff * dot.magnitude)
            << "row " << row << ", head " << h << ", output " << i;
      }
    }
  }
}

// Attention of 64 heads of R1 at one position, by one of the two kernels.
void ExpectAttention(const cuda::DecodeChoice& choice, int position) {
  constexpr int kHeads = 64, kLatent = 512, kRope = 64, kHeadDim = 128 + kRope;
  OpRig rig({}, RunMode::kEager);
  Noise noise(13);
  const std::vector<bf16> q_lat = noise.Bf16s(kHeads * kLatent, 0.3f),
                          q = noise.Bf16s(kHeads * kHeadDim, 0.3f);
  const KvFixture kv(noise, 1, position + 1, 64, kLatent, kRope);
  const float scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  bf16* const out = rig.Poisoned<bf16>(kHeads * kLatent);
  cuda::MlaDecodeBy(choice, rig.stream(),
                    {.out = Dense(out, 1, kHeads * kLatent),
                     .q_lat = Dense<const bf16>(rig.Put(q_lat), 1, kHeads * kLatent),
                     .q = Dense<const bf16>(rig.Put(q), 1, kHeads * kHeadDim),
                     .layer = kv.Put(rig),
                     .index = {rig.Put(std::vector<int32_t>{0}), rig.Put(std::vector<int32_t>{position}), 1},
                     .head_count = kHeads,
                     .head_dim = kHeadDim,
                     .first_position = 0,
                     .scale = scale});
  const std::vector<bf16> values = rig.Get(out, kHeads * kLatent);
  for (const int head : {0, 15, 16, 63}) {
    const HeadReference reference = ReferenceAttention(
        Joined(Floats(&q_lat[head * kLatent], kLatent), Floats(&q[head * kHeadDim + 128], kRope)), scale,
        position + 1, [&](int t) { return Floats(kv.Row(0, t), kLatent + kRope); },
        [&](int t) { return Floats(kv.Row(0, t), kLatent); });
    for (int i = 0; i < kLatent; ++i) {
      ASSERT_NEAR(ToFloat(values[head * kLatent + i]), reference.out[i], reference.tolerance[i])
          << "head " << head << ", element " << i;
    }
  }
}

TEST(Ladder, MlaItems) { ExpectAttention({.blocks = 64, .hopper = false}, 63); }
TEST(Ladder, MlaItemsMasked) { ExpectAttention({.blocks = 64, .hopper = false}, 70); }
TEST(Ladder, MlaHopperOneTile) {
  SKIP_UNLESS_HOPPER();
  ExpectAttention({.blocks = 64}, 63);
}
TEST(Ladder, MlaHopperMasked) {
  SKIP_UNLESS_HOPPER();
  ExpectAttention({.blocks = 64}, 70);
}
TEST(Ladder, MlaHopperPipeline) {
  SKIP_UNLESS_HOPPER();
  ExpectAttention({.blocks = 64}, 319);
}
TEST(Ladder, MlaHopperSplits) {
  SKIP_UNLESS_HOPPER();
  ExpectAttention({.blocks = 64}, 1100);
}

}  // namespace
}  // namespace foredraft
