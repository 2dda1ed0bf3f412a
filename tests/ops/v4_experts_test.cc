// silu_mul with a limit, route_softplus against docs/deepseek-v4.md section 5 in double.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/exp.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/row_case.h"

namespace foredraft {
namespace {

constexpr int kRows = 7;

// ---- silu_mul with a limit ----

TEST(LimitedSiluMul, Holds) {
  constexpr int kWidth = 37;
  constexpr float kLimit = 1.5f;
  Noise noise(64);
  std::vector<float> gate_up = noise.Floats(size_t{kRows} * 2 * kWidth, 3.0f);
  gate_up[0] = gate_up[kWidth] = kLimit;
  gate_up[1] = -100.0f;  // only the upper side of the gate is clamped
  ExpectOpHolds(RowCase<bf16, float>(
      "clamped", gate_up, 2 * kWidth, kWidth,
      [](OpRig& rig, Matrix<bf16> out, Matrix<const float> x) {
        const SiluMulParams params = {.out = out, .gate_up = x, .limit = kLimit};
        return [&rig, params] { rig.ops().silu_mul(rig.stream(), params); };
      },
      [](const float* x, const bf16* out) {
        for (int i = 0; i < kWidth; ++i) {
          const double gate = std::min<double>(x[i], kLimit);
          const double up = std::clamp<double>(x[kWidth + i], -kLimit, kLimit);
          const double expected = gate / (1 + std::exp(-gate)) * up;
          // Sigmoid's six roundings (Exp alone is within 4), two products, then BF16.
          const double error = 9 * kF32Roundoff * std::abs(expected) + 1e-38;
          ASSERT_NEAR(ToFloat(out[i]), expected, error + kBf16Roundoff * (std::abs(expected) + error)) << i;
        }
      }));
}

TEST(LimitedSiluMul, LeavesRowsPastTheCount) {
  OpRig rig({}, RunMode::kEager);
  bf16* const out = rig.Poisoned<bf16>(3 * 4);
  const float* const gate_up = rig.Put(std::vector<float>(3 * 8, 1.0f));
  rig.ops().silu_mul(rig.stream(), {.out = Dense(out, 3, 4),
                                    .gate_up = Dense(gate_up, 3, 8),
                                    .row_count = rig.Put(std::vector<int32_t>{2}),
                                    .limit = 10.0f});
  const std::vector<bf16> values = rig.Get(out, 12);
  EXPECT_EQ(values[7].bits, values[0].bits);
  EXPECT_EQ(values[8].bits, 0xffff);
}

// ---- route_softplus ----

TEST(Softplus, IsWithinItsBound) {
  for (double x = -80; x <= 90; x += 0.0137) {
    const float argument = static_cast<float>(x);
    const double expected = std::max<double>(argument, 0) + std::log1p(std::exp(-std::abs(double{argument})));
    ASSERT_NEAR(Softplus(argument), expected, 12 * kF32Roundoff * expected) << argument;
  }
  EXPECT_EQ(Softplus(-200.0f), 0.0f);
  EXPECT_EQ(Softplus(200.0f), 200.0f);
}

struct RouteShape {
  const char* name;
  int experts, top_k;
  bool hashed;
};

constexpr int kVocab = 5;

// Distinct experts for every token: [kVocab, top_k].
std::vector<int32_t> HashTable(const RouteShape& s) {
  Noise noise(65);
  std::vector<int32_t> table;
  for (int token = 0; token < kVocab; ++token) {
    std::vector<int32_t> ids(s.experts);
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size() - 1; i > 0; --i) std::swap(ids[i], ids[noise.Int(0, static_cast<int>(i))]);
    table.insert(table.end(), ids.begin(), ids.begin() + s.top_k);
  }
  return table;
}

// Row 3's id is no token and counts as 0.
int IdOf(int row) { return row == 3 ? 99 : row % kVocab; }

std::vector<int32_t> ReferenceIds(const RouteShape& s, int row, const std::vector<double>& score,
                                  const std::vector<float>& bias) {
  std::vector<int32_t> ids(s.experts);
  std::iota(ids.begin(), ids.end(), 0);
  if (s.hashed) {
    const std::vector<int32_t> table = HashTable(s);
    const int token = row == 3 ? 0 : IdOf(row);
    ids.assign(table.begin() + token * s.top_k, table.begin() + (token + 1) * s.top_k);
  } else {
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int a, int b) { return score[a] + bias[a] > score[b] + bias[b]; });
    ids.resize(s.top_k);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

OpCase RouteCase(const RouteShape& s, const std::vector<float>& logits, const std::vector<float>& bias) {
  OpCase op_case;
  op_case.name = s.name;
  op_case.row_count = kRows;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    std::vector<int32_t> tokens;
    for (const int row : rows) tokens.push_back(IdOf(row));
    int32_t* const ids = rig.Poisoned<int32_t>(count * s.top_k);
    float* const weights = rig.Poisoned<float>(count * s.top_k);
    const float* const inputs = rig.Put(RowsOf(logits, s.experts, rows));
    const std::vector<int32_t> slots(count, 0);
    const RouteSoftplusParams params = {.expert_ids = ids,
                                        .expert_weights = weights,
                                        .logits = Dense(inputs, count, s.experts),
                                        .bias = s.hashed ? nullptr : rig.Put(bias),
                                        .expert_table = s.hashed ? rig.Put(HashTable(s)) : nullptr,
                                        .ids = s.hashed ? rig.Put(tokens) : nullptr,
                                        .index = {rig.Put(slots), rig.Put(slots), count},
                                        .vocab_size = kVocab,
                                        .top_k = s.top_k,
                                        .routed_scaling_factor = 1.5f};
    rig.Run([&] { rig.ops().route_softplus(rig.stream(), params); });
    std::vector<Bytes> outputs = SplitRows(rig.Get(ids, count * s.top_k), s.top_k);
    const std::vector<Bytes> row_weights = SplitRows(rig.Get(weights, count * s.top_k), s.top_k);
    for (int i = 0; i < count; ++i)
      outputs[i].insert(outputs[i].end(), row_weights[i].begin(), row_weights[i].end());
    return outputs;
  };
  op_case.check = [=](int row, const Bytes& output) {
    std::vector<double> score(s.experts);
    for (int e = 0; e < s.experts; ++e)
      score[e] = std::sqrt(std::log1p(std::exp(double{logits[row * s.experts + e]})));
    const std::vector<int32_t> expected = ReferenceIds(s, row, score, bias);
    double sum = 0;
    for (const int32_t e : expected) sum += score[e];
    const std::vector<int32_t> ids = FromBytes<int32_t>(output);
    const std::vector<float> weights = FromBytes<float>(output);
    for (int j = 0; j < s.top_k; ++j) {
      ASSERT_EQ(ids[j], expected[j]);
      const double weight = score[expected[j]] / sum * 1.5;
      // Softplus' 12, halved by the root and twice (numerator and sum), the root's own, the sum's, two more.
      ASSERT_NEAR(weights[s.top_k + j], weight, (18 + s.top_k) * kF32Roundoff * weight);
    }
  };
  return op_case;
}

TEST(RouteSoftplus, Holds) {
  for (const RouteShape& s : {RouteShape{"flash", 256, 6, false}, RouteShape{"hash layer", 256, 6, true},
                              RouteShape{"all experts", 4, 4, false}, RouteShape{"hash, few", 5, 2, true}}) {
    Noise noise(66);
    const std::vector<float> logits = noise.Floats(size_t{kRows} * s.experts, 3.0f);
    ExpectOpHolds(RouteCase(s, logits, noise.Floats(s.experts, 0.3f)));
  }
}

// A warp has several experts a lane. Scores are of few values, so that many are equal, also within a lane.
TEST(RouteSoftplus, BreaksTiesAmongManyExperts) {
  for (const RouteShape& s : {RouteShape{"flash", 256, 6, false}, RouteShape{"pro", 384, 40, false}}) {
    Noise noise(67);
    std::vector<float> logits = noise.Floats(size_t{kRows} * s.experts, 2.0f);
    for (float& logit : logits) logit = std::round(logit);
    ExpectOpHolds(RouteCase(s, logits, std::vector<float>(s.experts, 0.25f)));
  }
}

TEST(RouteSoftplus, BreaksTiesByTheLowerIndex) {
  const RouteShape s = {"ties", 16, 3, false};
  std::vector<float> logits(size_t{kRows} * s.experts, 0.5f);
  for (int row = 0; row < kRows; ++row) logits[row * s.experts + 15 - row] = 1.0f;
  ExpectOpHolds(RouteCase(s, logits, std::vector<float>(s.experts, 0.25f)));
}

TEST(RouteSoftplus, GivesIdleRowsNoExpertAndNaNRowsDistinctOnes) {
  OpRig rig({}, RunMode::kEager);
  int32_t* const ids = rig.Put(std::vector<int32_t>(4, 77));
  const float* const logits = rig.Put(std::vector<float>(16, std::nanf("")));
  rig.ops().route_softplus(rig.stream(), {.expert_ids = ids,
                                          .expert_weights = rig.Poisoned<float>(4),
                                          .logits = Dense(logits, 2, 8),
                                          .bias = rig.Put(std::vector<float>(8, 0.0f)),
                                          .index = {rig.Put(std::vector<int32_t>{-1, 0}), nullptr, 2},
                                          .top_k = 2,
                                          .routed_scaling_factor = 1.0f});
  const std::vector<int32_t> values = rig.Get(ids, 4);
  EXPECT_EQ(values, (std::vector<int32_t>{-1, -1, 0, 1}));
}

}  // namespace
}  // namespace foredraft
