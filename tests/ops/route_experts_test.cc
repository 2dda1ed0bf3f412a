#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/ops/op_harness.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  int experts, n_group, topk_group, top_k;
  bool norm;
  float factor;
};

const Shape kShapes[] = {
    {"R1", 256, 8, 4, 8, true, 2.5f},          {"abacus", 8, 4, 2, 2, true, 1.5f},
    {"no groups", 64, 1, 1, 6, true, 1.0f},    {"unnormalised", 16, 4, 3, 3, false, 1.0f},
    {"groups of one", 8, 8, 4, 2, true, 1.0f}, {"all experts", 8, 2, 2, 8, true, 1.0f},
};

struct Routed {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

// docs/deepseek-v3.md section 3.4, with sorts instead of scans.
Routed ReferenceRoute(const Shape& s, const float* logits, const float* bias) {
  std::vector<double> score(s.experts), biased(s.experts);
  for (int e = 0; e < s.experts; ++e) {
    score[e] = 1.0 / (1.0 + std::exp(-static_cast<double>(logits[e])));
    biased[e] = score[e] + bias[e];
  }
  const int size = s.experts / s.n_group;
  std::vector<int> groups(s.n_group);
  std::iota(groups.begin(), groups.end(), 0);
  const auto group_score = [&](int g) {
    std::vector<double> members(biased.begin() + g * size, biased.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    return members[0] + (size > 1 ? members[1] : 0.0);
  };
  std::stable_sort(groups.begin(), groups.end(),
                   [&](int a, int b) { return group_score(a) > group_score(b); });
  std::vector<int32_t> kept;
  for (int i = 0; i < s.topk_group; ++i) {
    for (int e = 0; e < size; ++e) kept.push_back(groups[i] * size + e);
  }
  std::sort(kept.begin(), kept.end());
  std::stable_sort(kept.begin(), kept.end(), [&](int a, int b) { return biased[a] > biased[b]; });
  Routed routed;
  routed.ids.assign(kept.begin(), kept.begin() + s.top_k);
  std::sort(routed.ids.begin(), routed.ids.end());
  double sum = 0.0;
  for (const int32_t id : routed.ids) sum += score[id];
  for (const int32_t id : routed.ids) {
    routed.weights.push_back(score[id] / (s.norm ? sum + 1e-20 : 1.0) * s.factor);
  }
  return routed;
}

OpCase RouteCase(const Shape& s, const std::vector<float>& logits, const std::vector<float>& bias) {
  OpCase op_case;
  op_case.name = s.name;
  op_case.row_count = static_cast<int>(logits.size()) / s.experts;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    const float* const inputs = rig.Put(RowsOf(logits, s.experts, rows));
    int32_t* ids = rig.Poisoned<int32_t>(count * s.top_k);
    float* weights = rig.Poisoned<float>(count * s.top_k);
    const std::vector<int32_t> slots(count, 0);
    const RouteExpertsParams params = {.expert_ids = ids,
                                       .expert_weights = weights,
                                       .logits = Dense(inputs, count, s.experts),
                                       .bias = rig.Put(bias),
                                       .index = {rig.Put(slots), rig.Put(slots), count},
                                       .n_group = s.n_group,
                                       .topk_group = s.topk_group,
                                       .top_k = s.top_k,
                                       .norm_topk_prob = s.norm ? 1 : 0,
                                       .routed_scaling_factor = s.factor};
    rig.Run([&] { rig.ops().route_experts(rig.stream(), params); });
    std::vector<Bytes> outputs = SplitRows(rig.Get(ids, count * s.top_k), s.top_k);
    const std::vector<Bytes> row_weights = SplitRows(rig.Get(weights, count * s.top_k), s.top_k);
    for (int i = 0; i < count; ++i) {
      outputs[i].insert(outputs[i].end(), row_weights[i].begin(), row_weights[i].end());
    }
    return outputs;
  };
  op_case.check = [=](int row, const Bytes& output) {
    const Routed expected = ReferenceRoute(s, &logits[row * s.experts], bias.data());
    const std::vector<int32_t> ids = FromBytes<int32_t>(output);
    const std::vector<float> weights = FromBytes<float>(output);
    for (int j = 0; j < s.top_k; ++j) {
      ASSERT_EQ(ids[j], expected.ids[j]) << "row " << row;
      // Sigmoid: Exp's 4 roundoffs and two more, in numerator and sum; then the sum's additions, a division,
      // a product.
      ASSERT_NEAR(weights[s.top_k + j], expected.weights[j],
                  (16 + s.top_k) * kF32Roundoff * expected.weights[j]);
    }
  };
  return op_case;
}

TEST(RouteExperts, Holds) {
  for (const Shape& s : kShapes) {
    Noise noise(41);
    const std::vector<float> logits = noise.Floats(8 * s.experts, 2.0f);
    ExpectOpHolds(RouteCase(s, logits, noise.Floats(s.experts, 0.3f)));
  }
}

TEST(RouteExperts, BreaksTiesByTheLowerIndex) {
  for (const Shape& s : kShapes) {
    // All equal; then equal within halves, the upper half larger.
    std::vector<float> logits(2 * s.experts, 0.5f);
    for (int e = s.experts / 2; e < s.experts; ++e) logits[s.experts + e] = 1.0f;
    ExpectOpHolds(RouteCase(s, logits, std::vector<float>(s.experts, 0.25f)));
  }
}

// A warp has several experts a lane. Scores are of few values, so that many are equal, also within a lane.
TEST(RouteExperts, BreaksTiesAmongManyExperts) {
  for (const Shape& s :
       {Shape{"8 a lane", 256, 1, 1, 40, true, 1.0f}, Shape{"R1", 256, 8, 4, 8, true, 2.5f},
        Shape{"12 a lane", 384, 1, 1, 8, true, 2.5f}, Shape{"32 a lane", 1024, 16, 5, 70, true, 1.0f},
        Shape{"groups of 24", 72, 3, 2, 6, true, 1.0f}}) {
    Noise noise(43);
    std::vector<float> logits = noise.Floats(8 * s.experts, 2.0f);
    for (float& logit : logits) logit = std::round(logit);
    ExpectOpHolds(RouteCase(s, logits, std::vector<float>(s.experts, 0.25f)));
  }
}

TEST(RouteExperts, GivesIdleRowsNoExpertAndNaNRowsDistinctOnes) {
  OpRig rig({}, RunMode::kEager);
  int32_t* ids = rig.Put(std::vector<int32_t>(4, 77));
  const std::vector<float> logits(16, std::numeric_limits<float>::quiet_NaN());
  rig.ops().route_experts(rig.stream(), {.expert_ids = ids,
                                         .expert_weights = rig.Poisoned<float>(4),
                                         .logits = Dense<const float>(rig.Put(logits), 2, 8),
                                         .bias = rig.Put(std::vector<float>(8, 0.0f)),
                                         .index = {rig.Put(std::vector<int32_t>{-1, 0}), nullptr, 2},
                                         .n_group = 4,
                                         .topk_group = 2,
                                         .top_k = 2,
                                         .norm_topk_prob = 1,
                                         .routed_scaling_factor = 1.0f});
  const std::vector<int32_t> values = rig.Get(ids, 4);
  EXPECT_EQ(values[0], -1);
  EXPECT_EQ(values[1], -1);
  EXPECT_GE(values[2], 0);
  EXPECT_GT(values[3], values[2]);
  EXPECT_LT(values[3], 8);
}

}  // namespace
}  // namespace foredraft
