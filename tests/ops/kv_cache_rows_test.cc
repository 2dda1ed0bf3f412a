// rope_query, query_gemm, kv_write, gather_kv.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/kv_fixture.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

constexpr int kPositions = 300;

// [positions, rope / 2, 2]: plain RoPE.
std::vector<float> CosSin(int rope) {
  std::vector<float> table;
  for (int position = 0; position < kPositions; ++position) {
    for (int i = 0; i < rope / 2; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / rope);
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

// Interleaved pairs: (x[2i], x[2i+1]) is rotated by the angle of pair i.
void CheckRotated(const float* x, const float* cos_sin, int rope, const bf16* out) {
  for (int i = 0; i < rope; ++i) {
    const double cos = cos_sin[i / 2 * 2];
    const double sin = cos_sin[i / 2 * 2 + 1];
    const double a = (i % 2 == 0 ? cos : sin) * x[i / 2 * 2];
    const double b = (i % 2 == 0 ? -sin : cos) * x[i / 2 * 2 + 1];
    const double error = 2 * kF32Roundoff * (std::abs(a) + std::abs(b));
    ASSERT_NEAR(ToFloat(out[i]), a + b, error + kBf16Roundoff * (std::abs(a + b) + error)) << "element " << i;
  }
}

struct QueryShape {
  int heads, head_dim, rope;
};

TEST(RopeQuery, Holds) {
  for (const QueryShape& s : {QueryShape{4, 48, 16}, {16, 192, 64}, {3, 9, 2}}) {
    Noise noise(51);
    const int width = s.heads * s.head_dim;
    const std::vector<float> q = noise.Floats(6 * width);
    const std::vector<int32_t> position_of = {0, 1, 17, 100, 255, 299};
    const std::vector<float> table = CosSin(s.rope);
    OpCase op_case;
    op_case.name = "head_dim " + std::to_string(s.head_dim);
    op_case.row_count = 6;
    op_case.run = [&](OpRig& rig, const std::vector<int>& rows) {
      const int count = static_cast<int>(rows.size());
      bf16* out = rig.Poisoned<bf16>(count * width);
      const RopeQueryParams params = {
          .out = Dense(out, count, width),
          .q = Dense<const float>(rig.Put(RowsOf(q, width, rows)), count, width),
          .cos_sin = rig.Put(table),
          .index = {rig.Put(std::vector<int32_t>(count, 0)), rig.Put(RowsOf(position_of, 1, rows)), count},
          .head_count = s.heads,
          .head_dim = s.head_dim,
          .rope_dim = s.rope};
      rig.Run([&] { rig.ops().rope_query(rig.stream(), params); });
      return SplitRows(rig.Get(out, count * width), width);
    };
    op_case.check = [&](int row, const Bytes& output) {
      const std::vector<bf16> values = FromBytes<bf16>(output);
      const int nope = s.head_dim - s.rope;
      for (int h = 0; h < s.heads; ++h) {
        const float* x = &q[row * width + h * s.head_dim];
        const bf16* out = &values[h * s.head_dim];
        for (int i = 0; i < nope; ++i) ASSERT_EQ(out[i].bits, ToBf16(x[i]).bits);
        CheckRotated(x + nope, &table[position_of[row] * s.rope], s.rope, out + nope);
      }
    };
    ExpectOpHolds(op_case);
  }
}

struct QueryProduct {
  QueryShape shape;
  int k;
  DType dtype;
  int block;  // outputs and inputs of a scale
  bool bias = false;
};

// Rows without a slot stay as they are.
std::vector<bf16> Queries(const std::string& isa, const QueryProduct& c, int rows, bool fused) {
  Noise noise(52);
  const int width = c.shape.heads * c.shape.head_dim;
  const TestWeight weight =
      MakeTestWeight(noise, {width}, c.k, c.dtype, Is4Bit(c.dtype) ? 0 : c.block, c.block);
  std::vector<int32_t> slots(rows), positions(rows);
  for (int r = 0; r < rows; ++r) {
    slots[r] = r % 3 == 2 ? -1 : r;
    positions[r] = slots[r] < 0 ? 1 << 30 : 7 * r % 300;
  }
  OpRig rig({.isa = isa}, RunMode::kEager);
  const Matrix<float> product = Dense(rig.Poisoned<float>(rows * width), rows, width);
  const Matrix<bf16> out = Dense(rig.Poisoned<bf16>(rows * width), rows, width);
  const std::vector<float> bias = noise.Floats(width);
  const GemmParams gemm = {.out = product,
                           .x = Dense<const bf16>(rig.Put(noise.Bf16s(rows * c.k)), rows, c.k),
                           .weight = rig.Pack(weight.parts),
                           .bias = c.bias ? rig.Put(bias) : nullptr};
  const RopeQueryParams rope = {.out = out,
                                .q = product,
                                .cos_sin = rig.Put(CosSin(c.shape.rope)),
                                .index = {rig.Put(slots), rig.Put(positions), rows},
                                .head_count = c.shape.heads,
                                .head_dim = c.shape.head_dim,
                                .rope_dim = c.shape.rope};
  rig.Run([&] {
    if (fused) return rig.ops().query_gemm(rig.stream(), {.gemm = gemm, .rope = rope});
    rig.ops().gemm(rig.stream(), gemm);
    rig.ops().rope_query(rig.stream(), rope);
  });
  return rig.Get(out.data, rows * width);
}

TEST(QueryGemm, HasTheBitsOfGemmAndRopeQuery) {
  const QueryProduct products[] = {
      {{4, 48, 16}, 64, DType::kBF16, 0, true},       // by HopperGemm, where that runs
      {{3, 192, 64}, 256, DType::kF8E4M3, 128},       //
      {{1, 24, 8}, 4096, DType::kF8E4M3, 128, true},  // with k in splits
      {{3, 9, 2}, 64, DType::kBF16, 0},               // whose heads pairs of outputs do not divide
      {{2, 16, 4}, 7, DType::kBF16, 0},
      {{4, 16, 8}, 64, DType::kInt4, 32},
  };
  for (const QueryProduct& c : products) {
    if (!BackendHas(c.dtype, c.block)) continue;
    for (const std::string& isa : SupportedIsas()) {
      for (const int rows : {1, 6, 70}) {
        SCOPED_TRACE(isa + ", k " + std::to_string(c.k) + ", " + std::to_string(rows) + " rows");
        EXPECT_TRUE(std::ranges::equal(Queries(isa, c, rows, true), Queries(isa, c, rows, false),
                                       [](bf16 a, bf16 b) { return a.bits == b.bits; }));
      }
    }
  }
}

struct CacheShape {
  const char* name;
  int latent, rope, tokens_per_block;
};

const CacheShape kCacheShapes[] = {
    {"abacus", 64, 16, 32}, {"R1", 512, 64, 64}, {"ragged", 37, 6, 5}, {"three groups", 300, 8, 16}};

// Two slots of 20 positions; row i of the case is written at position 2 i of slot i % 2. BF16 rows are
// compared with the reference, FP8 rows with BF16 ones by the test below.
OpCase WriteCase(const CacheShape& s, const KvFixture& kv, const std::vector<float>& ckv,
                 const std::vector<float>& weight, const std::vector<float>& table) {
  const int width = s.latent + s.rope;
  OpCase op_case;
  op_case.name = s.name;
  op_case.row_count = 6;
  op_case.run = [=, &kv, &ckv, &weight, &table](OpRig& rig, const std::vector<int>& rows) {
    // An idle row follows every live one; it must not write to the cache.
    const int count = 2 * static_cast<int>(rows.size());
    std::vector<float> inputs(count * width, 5.0f);
    std::vector<int32_t> slots(count, -1), positions(count, 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      // Two threads must not write the same cache row, even with equal bytes: a repeated row is idle.
      const bool repeated = std::find(rows.begin(), rows.begin() + i, rows[i]) != rows.begin() + i;
      std::copy_n(&ckv[rows[i] * width], width, &inputs[2 * i * width]);
      slots[2 * i] = repeated ? -1 : rows[i] % 2;
      positions[2 * i] = 2 * rows[i];
    }
    const KvLayer layer = kv.Put(rig);
    const KvWriteParams params = {.layer = layer,
                                  .ckv = Dense<const float>(rig.Put(inputs), count, width),
                                  .norm_weight = rig.Put(weight),
                                  .cos_sin = rig.Put(table),
                                  .index = {rig.Put(slots), rig.Put(positions), count},
                                  .eps = 1e-6f};
    rig.Run([&] { rig.ops().kv_write(rig.stream(), params); });
    std::vector<bf16> cache = kv.Get(rig, layer);
    std::vector<Bytes> outputs;
    for (const int row : rows) {
      outputs.push_back(BytesOf(&cache[kv.RowOffset(row % 2, 2 * row)], width));
    }
    for (const int row : rows) {  // all other cache rows are unchanged
      std::copy_n(kv.Row(row % 2, 2 * row), width, &cache[kv.RowOffset(row % 2, 2 * row)]);
    }
    EXPECT_EQ(BytesOf(cache.data(), cache.size()), BytesOf(kv.rows().data(), kv.rows().size()));
    return outputs;
  };
  op_case.check = [=, &kv, &ckv, &weight, &table](int row, const Bytes& output) {
    if (kv.dtype() != DType::kBF16) return;
    const std::vector<bf16> values = FromBytes<bf16>(output);
    const float* c = &ckv[row * width];
    double squares = 0.0;
    for (int i = 0; i < s.latent; ++i) squares += static_cast<double>(c[i]) * c[i];
    const double factor = 1.0 / std::sqrt(squares / s.latent + 1e-6f);
    for (int i = 0; i < s.latent; ++i) {
      const double expected = weight[i] * c[i] * factor;
      const double relative = (s.latent / 2.0 + 8) * kF32Roundoff + kBf16Roundoff * 1.001;
      ASSERT_NEAR(ToFloat(values[i]), expected, relative * std::abs(expected)) << "element " << i;
    }
    CheckRotated(c + s.latent, &table[2 * row * s.rope], s.rope, &values[s.latent]);
  };
  return op_case;
}

TEST(KvWrite, HoldsAndWritesNothingElse) {
  for (const CacheShape& s : kCacheShapes) {
    for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
      SCOPED_TRACE(DTypeName(dtype));
      Noise noise(52);
      const KvFixture kv(noise, 2, 20, s.tokens_per_block, s.latent, s.rope, dtype);
      const std::vector<float> ckv = noise.Floats(6 * (s.latent + s.rope));
      ExpectOpHolds(WriteCase(s, kv, ckv, noise.Floats(s.latent), CosSin(s.rope)));
      if (HasFailure()) return;
    }
  }
}

TEST(KvWrite, WritesNoRowWithoutMemory) {
  Noise noise(53);
  const KvFixture kv(noise, 1, 20, 16, 64, 16);
  OpRig rig({}, RunMode::kEager);
  KvLayer layer = kv.Put(rig);
  layer.block_tables = rig.Put(std::vector<int32_t>(layer.table_stride, 0));
  rig.ops().kv_write(rig.stream(),
                     {.layer = layer,
                      .ckv = Dense<const float>(rig.Put(noise.Floats(2 * 80)), 2, 80),
                      .norm_weight = rig.Put(noise.Floats(64)),
                      .cos_sin = rig.Put(CosSin(16)),
                      .index = {rig.Put(std::vector<int32_t>{0, 0}), rig.Put(std::vector<int32_t>{3, 19}), 2},
                      .eps = 1e-6f});
  const std::vector<bf16> cache = kv.Get(rig, layer);
  EXPECT_EQ(BytesOf(cache.data(), cache.size()), BytesOf(kv.rows().data(), kv.rows().size()));
}

// Rows whose groups differ by powers of ten, one of them all zeros.
TEST(KvWrite, AnFp8RowIsTheBf16RowRounded) {
  for (const CacheShape& s : kCacheShapes) {
    constexpr int kRows = 6;
    Noise noise(55);
    const int width = s.latent + s.rope;
    const KvFixture kv(noise, 1, kRows, s.tokens_per_block, s.latent, s.rope);
    std::vector<float> ckv = noise.Floats(kRows * width);
    std::fill_n(ckv.begin(), width, 0.0f);
    std::vector<float> weight = noise.Floats(s.latent);
    for (int i = 0; i < s.latent; ++i) {
      const int group = i / KvRowLayout::kLatentGroup;
      weight[i] *= std::pow(10.0f, static_cast<float>(group));
    }
    std::vector<int32_t> positions(kRows);
    std::iota(positions.begin(), positions.end(), 0);
    const auto write = [&](DType dtype) {
      OpRig rig({.threads = 2}, RunMode::kEager);
      const KvLayer layer = kv.Put(rig, dtype);
      const KvWriteParams params = {
          .layer = layer,
          .ckv = Dense<const float>(rig.Put(ckv), kRows, width),
          .norm_weight = rig.Put(weight),
          .cos_sin = rig.Put(CosSin(s.rope)),
          .index = {rig.Put(std::vector<int32_t>(kRows, 0)), rig.Put(positions), kRows},
          .eps = 1e-6f};
      rig.Run([&] { rig.ops().kv_write(rig.stream(), params); });
      return kv.Get(rig, layer);
    };
    std::vector<bf16> expected = write(DType::kBF16);
    const std::vector<bf16> rounded = write(DType::kF8E4M3);
    for (int r = 0; r < kRows; ++r) {
      bf16* const row = &expected[kv.RowOffset(0, r)];
      RoundLatent({s.latent, s.rope, DType::kF8E4M3}, row);
      EXPECT_EQ(BytesOf(&rounded[kv.RowOffset(0, r)], width), BytesOf(row, width)) << s.name << ", row " << r;
    }
  }
}

// Also where the norm has more or fewer columns than the cache row, and idle rows, whose queries it norms.
TEST(KvWrite, NormsTheQueriesAsRmsNormDoes) {
  for (const CacheShape& s : kCacheShapes) {
    for (const int cols : {24, 77, 1536, 2048}) {
      Noise noise(54);
      const KvFixture kv(noise, 2, 20, s.tokens_per_block, s.latent, s.rope);
      constexpr int kRows = 5;
      const int width = s.latent + s.rope;
      const std::vector<float> rows = noise.Floats(kRows * (cols + width));
      const std::vector<float> norm_weight = noise.Floats(s.latent), q_weight = noise.Floats(cols);
      const std::vector<int32_t> slots = {0, 1, -1, 0, 1}, positions = {3, 4, 0, 5, 6};
      const auto run = [&](bool fused) {
        OpRig rig({.threads = 2}, RunMode::kReplayed);
        const Matrix<const float> x = Dense<const float>(rig.Put(rows), kRows, cols + width);
        // FP32: BF16 would hide a sum in another order.
        float* const normed = rig.Poisoned<float>(kRows * cols);
        const RmsNormParams norm = {.out = Dense(normed, kRows, cols),
                                    .x = x.columns(0, cols),
                                    .weight = rig.Put(q_weight),
                                    .eps = 1e-6f};
        KvWriteParams write = {.layer = kv.Put(rig),
                               .ckv = x.columns(cols, width),
                               .norm_weight = rig.Put(norm_weight),
                               .cos_sin = rig.Put(CosSin(s.rope)),
                               .index = {rig.Put(slots), rig.Put(positions), kRows},
                               .eps = 1e-6f};
        if (fused) write.q_norm = norm;
        rig.Run([&] {
          rig.ops().kv_write(rig.stream(), write);
          if (!fused) rig.ops().rms_norm(rig.stream(), norm);
        });
        const std::vector<float> queries = rig.Get(normed, kRows * cols);
        const std::vector<bf16> cache = kv.Get(rig, write.layer);
        return std::pair(BytesOf(queries.data(), queries.size()), BytesOf(cache.data(), cache.size()));
      };
      EXPECT_EQ(run(true), run(false)) << s.name << ", " << cols << " columns";
    }
  }
}

TEST(GatherKv, CopiesTheSlotsRowsInOrder) {
  for (const CacheShape& s : kCacheShapes) {
    Noise noise(53);
    const KvFixture kv(noise, 3, 100, s.tokens_per_block, s.latent, s.rope, DType::kF8E4M3);
    for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
      for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
        SCOPED_TRACE(std::string(s.name) + ", " + DTypeName(dtype));
        OpRig rig({.threads = 3}, mode);
        constexpr int kFirst = 3, kCount = 90;
        bf16* latent = rig.Poisoned<bf16>(kCount * s.latent);
        bf16* rope = rig.Poisoned<bf16>(kCount * s.rope);
        const GatherKvParams params = {Dense(latent, kCount, s.latent), Dense(rope, kCount, s.rope),
                                       kv.Put(rig, dtype), 1, kFirst};
        rig.Run([&] { rig.ops().gather_kv(rig.stream(), params); });
        const std::vector<bf16> latents = rig.Get(latent, kCount * s.latent);
        const std::vector<bf16> ropes = rig.Get(rope, kCount * s.rope);
        for (int i = 0; i < kCount; ++i) {
          const bf16* row = kv.Row(1, kFirst + i);
          EXPECT_EQ(BytesOf(&latents[i * s.latent], s.latent), BytesOf(row, s.latent)) << "row " << i;
          EXPECT_EQ(BytesOf(&ropes[i * s.rope], s.rope), BytesOf(row + s.latent, s.rope)) << "row " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
