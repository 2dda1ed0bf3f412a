// The ops at DeepSeek-R1's shapes: a sample of each row's outputs against the plain-loop reference, and every
// row bit-equal alone and in batches of up to 256 rows, eager and replayed.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu/r1_rows.h"
#include "tests/ops/attention_reference.h"
#include "tests/ops/kv_fixture.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

// Checks about 40 of the n outputs, spread over all tiles.
void ExpectSampledDots(const TestWeight& weight, const bf16* x, int k, const Bytes& output) {
  const std::vector<float> values = FromBytes<float>(output);
  const std::vector<double> inputs = ReferenceInputs(weight, x, k);
  for (int i = 0; i < weight.n; i += weight.n / 40 + 1) {
    const DotReference dot = ReferenceDot(weight, i, inputs);
    ASSERT_NEAR(values[i], dot.sum, (k + 4) * kF32Roundoff * dot.magnitude + dot.coarse_error)
        << "output " << i;
  }
}

struct GemmShape {
  const char* name;
  int n, k;
  DType dtype;
  int group = 128;  // of FP8 blocks and of 4-bit codes
};

const GemmShape kGemmShapes[] = {
    {"q_a and kv_a", 2112, 7168, DType::kF8E4M3},
    {"q_b", 24576, 1536, DType::kF8E4M3},
    {"o", 7168, 16384, DType::kF8E4M3},
    {"shared gate and up", 4096, 7168, DType::kF8E4M3},
    {"shared down", 7168, 2048, DType::kF8E4M3},
    {"router", 256, 7168, DType::kBF16},
    {"a slice of the head", 4040, 7168, DType::kBF16},
    {"q_a and kv_a in INT4", 2112, 7168, DType::kInt4, 32},
    {"q_b in INT4", 24576, 1536, DType::kInt4},
    {"shared down in FP4", 7168, 2048, DType::kF4E2M1, 32},
};

TEST(R1Shapes, Gemm) {
  for (const GemmShape& s : kGemmShapes) {
    SCOPED_TRACE(s.name);
    Noise noise(51);
    const TestWeight weight = MakeTestWeight(noise, {s.n}, s.k, s.dtype, 128, s.group);
    const std::vector<bf16> x = noise.Bf16s(size_t(kRows) * s.k);
    const PackedWeight packed[] = {Rig(RunMode::kEager).Pack(weight.parts),
                                   Rig(RunMode::kReplayed).Pack(weight.parts)};
    for (const GemmForm form : {GemmForm::kDecode, GemmForm::kPrefill}) {
      const std::vector<Bytes> alone =
          ExpectRowsAlone(s.name, [&](RunMode mode, const std::vector<int>& rows) {
            OpRig& rig = Rig(mode);
            const int count = static_cast<int>(rows.size());
            float* const out = rig.Poisoned<float>(size_t(count) * s.n);
            const GemmParams params = {.out = Dense(out, count, s.n),
                                       .x = Dense<const bf16>(rig.Put(RowsOf(x, s.k, rows)), count, s.k),
                                       .weight = packed[mode == RunMode::kReplayed],
                                       .form = form};
            rig.Run([&] { rig.ops().gemm(rig.stream(), params); });
            return SplitRows(rig.Get(out, size_t(count) * s.n), s.n);
          });
      for (int row = 0; row < kRows; ++row) ExpectSampledDots(weight, &x[size_t(row) * s.k], s.k, alone[row]);
      if (HasFailure()) return;
    }
  }
}

TEST(R1Shapes, GroupedGemm) {
  constexpr int kExperts = 3;
  const GemmShape shapes[] = {{"gate and up", 4096, 7168, DType::kF8E4M3},
                              {"down", 7168, 2048, DType::kF8E4M3},
                              {"gate and up in INT4", 4096, 7168, DType::kInt4, 32}};
  for (const GemmShape& s : shapes) {
    SCOPED_TRACE(s.name);
    Noise noise(52);
    std::vector<TestWeight> experts;
    for (int e = 0; e < kExperts; ++e) {
      experts.push_back(MakeTestWeight(noise, {s.n}, s.k, s.dtype, 128, s.group));
    }
    const std::vector<bf16> x = noise.Bf16s(size_t(kRows) * s.k);
    const auto of = [&](int e) -> const TestWeight& { return experts[e]; };
    const PackedWeights packed[] = {PackAll(Rig(RunMode::kEager), kExperts, of),
                                    PackAll(Rig(RunMode::kReplayed), kExperts, of)};
    // Row r goes to expert r % 3 only: batches of all sizes per expert, and experts without rows.
    const std::vector<Bytes> alone = ExpectRowsAlone(s.name, [&](RunMode mode, const std::vector<int>& rows) {
      OpRig& rig = Rig(mode);
      const int count = static_cast<int>(rows.size());
      std::vector<int32_t> grouped, offsets = {0}, index(count);
      for (int e = 0; e < kExperts; ++e) {
        for (int i = 0; i < count; ++i) {
          if (rows[i] % kExperts != e) continue;
          index[i] = static_cast<int32_t>(grouped.size());
          grouped.push_back(i);
        }
        offsets.push_back(static_cast<int32_t>(grouped.size()));
      }
      float* const out = rig.Poisoned<float>(size_t(count) * s.n);
      const GroupedGemmParams params = {.out = Dense(out, count, s.n),
                                        .x = Dense<const bf16>(rig.Put(RowsOf(x, s.k, rows)), count, s.k),
                                        .x_rows = rig.Put(grouped),
                                        .expert_offsets = rig.Put(offsets),
                                        .experts = packed[mode == RunMode::kReplayed]};
      rig.Run([&] { rig.ops().grouped_gemm(rig.stream(), params); });
      return SplitRows(RowsOf(rig.Get(out, size_t(count) * s.n), s.n, index), s.n);
    });
    for (int row = 0; row < kRows; ++row) {
      ExpectSampledDots(experts[row % kExperts], &x[size_t(row) * s.k], s.k, alone[row]);
    }
    if (HasFailure()) return;
  }
}

TEST(R1Shapes, RmsNorm) {
  constexpr int kWidth = 7168;
  Noise noise(53);
  const std::vector<float> x = noise.Floats(size_t(kRows) * kWidth, 3.0f);
  const std::vector<float> weight = noise.Floats(kWidth);
  const std::vector<Bytes> alone = ExpectRowsAlone("rms_norm", [&](RunMode mode,
                                                                   const std::vector<int>& rows) {
    OpRig& rig = Rig(mode);
    const int count = static_cast<int>(rows.size());
    float* const out = rig.Poisoned<float>(size_t(count) * kWidth);
    const RmsNormParams params = {.out = Dense(out, count, kWidth),
                                  .x = Dense<const float>(rig.Put(RowsOf(x, kWidth, rows)), count, kWidth),
                                  .weight = rig.Put(weight),
                                  .eps = 1e-6f};
    rig.Run([&] { rig.ops().rms_norm(rig.stream(), params); });
    return SplitRows(rig.Get(out, size_t(count) * kWidth), kWidth);
  });
  for (int row = 0; row < kRows; ++row) {
    const std::vector<float> values = FromBytes<float>(alone[row]);
    const float* const in = &x[size_t(row) * kWidth];
    double squares = 0.0;
    for (int i = 0; i < kWidth; ++i) squares += double(in[i]) * in[i];
    const double factor = 1.0 / std::sqrt(squares / kWidth + 1e-6);
    for (int i = 0; i < kWidth; ++i) {
      const double expected = weight[i] * factor * in[i];
      // The sum of squares, halved by the root, and four roundings.
      ASSERT_NEAR(values[i], expected, (kWidth / 2 + 4) * kF32Roundoff * std::abs(expected))
          << "element " << i;
    }
  }
}

struct DecodeInputs {
  static constexpr int kHeads = 128, kLatent = 512, kRope = 64, kNope = 128, kHeadDim = kNope + kRope;
  static constexpr int kPositions[kRows] = {0, 63, 1023, 1024, 2500, 4095};
  std::vector<bf16> q_lat;  // [kRows, kHeads * kLatent]
  std::vector<bf16> q;      // [kRows, kHeads * kHeadDim]

  static float scale() { return 1.0f / std::sqrt(static_cast<float>(kHeadDim)); }

  // The outputs of the rows, whose sequences take turns.
  std::vector<Bytes> RowsAlone(const KvFixture& kv, KvFormat format) const {
    const KvLayer layers[] = {kv.Put(Rig(RunMode::kEager), format), kv.Put(Rig(RunMode::kReplayed), format)};
    return ExpectRowsAlone("mla_decode", [&](RunMode mode, const std::vector<int>& rows) {
      OpRig& rig = Rig(mode);
      const int count = static_cast<int>(rows.size());
      std::vector<int32_t> slots, positions;
      for (const int row : rows) {
        slots.push_back(row % 2);
        positions.push_back(kPositions[row]);
      }
      const int width = kHeads * kLatent;
      bf16* const out = rig.Poisoned<bf16>(size_t(count) * width);
      const MlaDecodeParams params = {
          .out = Dense(out, count, width),
          .q_lat = Dense<const bf16>(rig.Put(RowsOf(q_lat, width, rows)), count, width),
          .q = Dense<const bf16>(rig.Put(RowsOf(q, kHeads * kHeadDim, rows)), count, kHeads * kHeadDim),
          .layer = layers[mode == RunMode::kReplayed],
          .index = {rig.Put(slots), rig.Put(positions), count},
          .head_count = kHeads,
          .head_dim = kHeadDim,
          .first_position = 0,
          .scale = scale()};
      rig.Run([&] { rig.ops().mla_decode(rig.stream(), params); });
      return SplitRows(rig.Get(out, size_t(count) * width), width);
    });
  }
};
DecodeInputs MakeDecodeInputs(Noise& noise) {
  DecodeInputs inputs;
  inputs.q_lat = noise.Bf16s(size_t(kRows) * DecodeInputs::kHeads * DecodeInputs::kLatent, 0.3f);
  inputs.q = noise.Bf16s(size_t(kRows) * DecodeInputs::kHeads * DecodeInputs::kHeadDim, 0.3f);
  return inputs;
}

TEST(R1Shapes, MlaDecode) {
  constexpr int kHeads = DecodeInputs::kHeads, kLatent = DecodeInputs::kLatent, kRope = DecodeInputs::kRope;
  Noise noise(54);
  const DecodeInputs inputs = MakeDecodeInputs(noise);
  for (const int tokens_per_block : {32, 64}) {
    const KvFixture kv(noise, 2, 4106, tokens_per_block, kLatent, kRope);
    const std::vector<Bytes> alone = inputs.RowsAlone(kv, DType::kBF16);
    for (int row = 0; row < kRows; ++row) {
      const std::vector<bf16> values = FromBytes<bf16>(alone[row]);
      for (const int head : {0, 63, 64, 127}) {
        const size_t at = size_t(row) * kHeads + head;
        const bf16* const lat = &inputs.q_lat[at * kLatent];
        const bf16* const pe = &inputs.q[at * DecodeInputs::kHeadDim + DecodeInputs::kNope];
        const HeadReference reference = ReferenceAttention(
            Joined(Floats(lat, kLatent), Floats(pe, kRope)), DecodeInputs::scale(),
            DecodeInputs::kPositions[row] + 1,
            [&](int t) { return Floats(kv.Row(row % 2, t), kLatent + kRope); },
            [&](int t) { return Floats(kv.Row(row % 2, t), kLatent); });
        for (int i = 0; i < kLatent; ++i) {
          ASSERT_NEAR(ToFloat(values[head * kLatent + i]), reference.out[i], reference.tolerance[i])
              << "row " << row << ", head " << head << ", element " << i;
        }
      }
    }
  }
}

// What the outputs are is Fp8Products' question.
TEST(R1Shapes, MlaDecodeOfFp8ProductsKeepsRowsApart) {
  Noise noise(55);
  const DecodeInputs inputs = MakeDecodeInputs(noise);
  const KvFixture kv(noise, 2, 4106, 64, DecodeInputs::kLatent, DecodeInputs::kRope, DType::kF8E4M3);
  inputs.RowsAlone(kv, {DType::kF8E4M3, /*fp8_products_of=*/true});
}

// ---- prefill ----

struct PrefillInputs {
  static constexpr int kHeads = 128, kNope = 128, kRope = 64, kValue = 128, kPositions = 321;
  static constexpr int kQWidth = kHeads * (kNope + kRope), kKvWidth = kHeads * (kNope + kValue);
  std::vector<bf16> q;     // [kPositions, kQWidth]
  std::vector<bf16> kv;    // [kPositions, kKvWidth]
  std::vector<bf16> k_pe;  // [kPositions, kRope]

  static float scale() { return 1.0f / std::sqrt(static_cast<float>(kNope + kRope)); }

  // Positions [begin, end) as one chunk.
  std::vector<bf16> Run(RunMode mode, int begin, int end) const {
    OpRig& rig = Rig(mode);
    const int count = end - begin;
    bf16* const out = rig.Poisoned<bf16>(size_t(count) * kHeads * kValue);
    const std::vector<bf16> rows(q.begin() + size_t(begin) * kQWidth, q.begin() + size_t(end) * kQWidth);
    const std::vector<bf16> keys(kv.begin(), kv.begin() + size_t(end) * kKvWidth);
    const MlaPrefillParams params = {.out = Dense(out, count, kHeads * kValue),
                                     .q = Dense<const bf16>(rig.Put(rows), count, kQWidth),
                                     .kv = Dense<const bf16>(rig.Put(keys), end, kKvWidth),
                                     .k_pe = Dense<const bf16>(rig.Put(k_pe), end, kRope),
                                     .chunk_first = begin,
                                     .first_position = 0,
                                     .head_count = kHeads,
                                     .nope_dim = kNope,
                                     .rope_dim = kRope,
                                     .value_dim = kValue,
                                     .scale = scale()};
    rig.Run([&] { rig.ops().mla_prefill(rig.stream(), params); });
    return rig.Get(out, size_t(count) * kHeads * kValue);
  }

  void Check(int position, int head, const bf16* out) const {
    const auto keys_of = [&](int t) { return &kv[size_t(t) * kKvWidth + head * (kNope + kValue)]; };
    const HeadReference reference = ReferenceAttention(
        Floats(&q[size_t(position) * kQWidth + head * (kNope + kRope)], kNope + kRope), scale(), position + 1,
        [&](int t) { return Joined(Floats(keys_of(t), kNope), Floats(&k_pe[t * kRope], kRope)); },
        [&](int t) { return Floats(keys_of(t) + kNope, kValue); });
    for (int i = 0; i < kValue; ++i) {
      ASSERT_NEAR(ToFloat(out[head * kValue + i]), reference.out[i], reference.tolerance[i])
          << "position " << position << ", head " << head << ", element " << i;
    }
  }
};

// A prompt's rows are those of one sequence: chunks take the place of batches.
TEST(R1Shapes, MlaPrefill) {
  using In = PrefillInputs;
  Noise noise(61);
  const In in = {noise.Bf16s(size_t{In::kPositions} * In::kQWidth),
                 noise.Bf16s(size_t{In::kPositions} * In::kKvWidth),
                 noise.Bf16s(size_t{In::kPositions} * In::kRope)};
  const std::vector<bf16> whole = in.Run(RunMode::kEager, 0, In::kPositions);
  for (const int position : {0, 63, 64, 200, In::kPositions - 1}) {
    for (const int head : {0, 77, 127})
      in.Check(position, head, &whole[size_t(position) * In::kHeads * In::kValue]);
  }
  for (const int chunk : {63, 64, 65, 128, 200}) {
    std::vector<bf16> joined;
    for (int begin = 0; begin < In::kPositions; begin += chunk) {
      const std::vector<bf16> part =
          in.Run(RunMode::kReplayed, begin, std::min(begin + chunk, In::kPositions));
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(BytesOf(joined.data(), joined.size()) == BytesOf(whole.data(), whole.size()), true)
        << "chunks of " << chunk;
  }
}

}  // namespace
}  // namespace foredraft
