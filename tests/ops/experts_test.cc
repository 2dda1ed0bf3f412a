// part_rows, group_rows, grouped_gemm, combine_experts.

#include <algorithm>
#include <cmath>

#include "tests/ops/op_harness.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

struct Grouped {
  std::vector<int32_t> offsets, rows, index;
};

Grouped Group(OpRig& rig, const std::vector<int32_t>& ids, int top_k, int experts, int first_expert = 0) {
  const int rows = static_cast<int>(ids.size()) / top_k;
  int32_t* offsets = rig.Poisoned<int32_t>(experts + 1);
  int32_t* grouped = rig.Poisoned<int32_t>(ids.size());
  int32_t* index = rig.Poisoned<int32_t>(ids.size());
  const GroupRowsParams params = {offsets, grouped, index, rig.Put(ids), rows, top_k, experts, first_expert};
  rig.Run([&] { rig.ops().group_rows(rig.stream(), params); });
  return {rig.Get(offsets, experts + 1), rig.Get(grouped, ids.size()), rig.Get(index, ids.size())};
}

TEST(GroupRows, SortsPairsByExpertRowsAscending) {
  for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
    OpRig rig({}, mode);
    const Grouped g = Group(rig, {1, 3, -1, -1, 0, 3, 1, 2}, 2, 5);
    EXPECT_EQ(g.offsets, (std::vector<int32_t>{0, 1, 3, 4, 6, 6}));
    EXPECT_EQ(std::vector<int32_t>(g.rows.begin(), g.rows.begin() + 6),
              (std::vector<int32_t>{2, 0, 3, 3, 0, 2}));
    EXPECT_EQ(g.index, (std::vector<int32_t>{1, 4, -1, -1, 0, 5, 2, 3}));
  }
}

// A stable sort by expert, of a rank's experts alone, for counts around the borders of what is read at once.
TEST(GroupRows, SortsManyPairs) {
  constexpr int kFirst = 5, kCount = 6, kExperts = 20;
  Noise noise(45);
  for (const int rows : {42, 43, 2730, 2731, 6000}) {  // 126, 129, 8,190, 8,193, 18,000 pairs
    constexpr int kTopK = 3;
    std::vector<int32_t> ids(rows * kTopK);
    for (int32_t& id : ids) id = noise.Int(-1, kExperts - 1);
    ids.back() = kFirst;  // the last pair counts
    Grouped expected = {.offsets = {0}, .rows = {}, .index = std::vector<int32_t>(ids.size(), -1)};
    for (int32_t e = kFirst; e < kFirst + kCount; ++e) {
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] != e) continue;
        expected.index[i] = static_cast<int32_t>(expected.rows.size());
        expected.rows.push_back(static_cast<int32_t>(i) / kTopK);
      }
      expected.offsets.push_back(static_cast<int32_t>(expected.rows.size()));
    }
    OpRig rig({}, RunMode::kReplayed);
    Grouped g = Group(rig, ids, kTopK, kCount, kFirst);
    g.rows.resize(expected.rows.size());
    EXPECT_EQ(g.offsets, expected.offsets) << rows << " rows";
    EXPECT_EQ(g.rows, expected.rows) << rows << " rows";
    EXPECT_EQ(g.index, expected.index) << rows << " rows";
  }
}

TEST(GroupRows, AcceptsNoLiveRow) {
  OpRig rig({}, RunMode::kEager);
  EXPECT_EQ(Group(rig, {-1, -1}, 2, 3).offsets, (std::vector<int32_t>{0, 0, 0, 0}));
}

// The pairs of rows in the range come out as if there were no others; other rows' indices stay as they are.
TEST(GroupRows, TakesARangeOfRows) {
  constexpr int kFirst = 5, kCount = 6, kExperts = 20, kTopK = 3, kRows = 6000, kUnwritten = 77;
  Noise noise(46);
  std::vector<int32_t> ids(kRows * kTopK);
  for (int32_t& id : ids) id = noise.Int(-1, kExperts - 1);
  OpRig rig({}, RunMode::kReplayed);
  for (const auto& [first, end] :
       {std::pair{0, kRows}, {0, 1}, {701, 701}, {701, 5999}, {3, 2734}, {kRows, kRows}}) {
    SCOPED_TRACE(testing::Message() << "rows " << first << " to " << end);
    const std::vector<int32_t> taken(&ids[first * kTopK], ids.data() + end * kTopK);
    const Grouped expected = Group(rig, taken, kTopK, kCount, kFirst);
    const GroupRowsParams params = {.expert_offsets = rig.Poisoned<int32_t>(kCount + 1),
                                    .grouped_rows = rig.Poisoned<int32_t>(taken.size() + 1),
                                    .grouped_index = rig.Put(std::vector<int32_t>(ids.size(), kUnwritten)),
                                    .expert_ids = rig.Put(ids),
                                    .rows = kRows,
                                    .top_k = kTopK,
                                    .expert_count = kCount,
                                    .first_expert = kFirst,
                                    .row_range = rig.Put(std::vector<int32_t>{first, end})};
    rig.Run([&] { rig.ops().group_rows(rig.stream(), params); });
    EXPECT_EQ(rig.Get(params.expert_offsets, kCount + 1), expected.offsets);
    const int pairs = expected.offsets.back();
    const std::vector<int32_t> rows = rig.Get(params.grouped_rows, pairs);
    for (int i = 0; i < pairs; ++i) ASSERT_EQ(rows[i], expected.rows[i] + first) << i;
    const std::vector<int32_t> index = rig.Get(params.grouped_index, ids.size());
    for (int i = 0; i < static_cast<int>(ids.size()); ++i) {
      const bool inside = i >= first * kTopK && i < end * kTopK;
      ASSERT_EQ(index[i], inside ? expected.index[i - first * kTopK] : kUnwritten) << i;
    }
  }
}

// The definition, in plain loops, for rows around the borders of a warp's share and any share of own pairs.
TEST(PartRows, EndsAPartWhereItsPairsAreFull) {
  constexpr int kFirst = 2, kCount = 3, kTopK = 3;
  Noise noise(47);
  for (const int rows : {1, 32, 33, 1000, 4097}) {
    for (const int own_percent : {0, 10, 60, 100}) {
      std::vector<int32_t> ids(rows * kTopK);
      for (int32_t& id : ids) {
        const bool own = noise.Int(0, 99) < own_percent;
        id = own ? noise.Int(kFirst, kFirst + kCount - 1) : noise.Int(-1, kFirst - 1);
      }
      for (const int part_pairs : {kTopK, 64, rows * kTopK - 1, rows * kTopK}) {
        if (part_pairs < kTopK) continue;
        const int part_count = (rows * kTopK + part_pairs - 1) / part_pairs;
        std::vector<int32_t> expected(part_count + 1, rows);
        expected[0] = 0;
        int pairs = 0, part = 0;
        for (int row = 0; row < rows; ++row) {
          for (int j = 0; j < kTopK; ++j) pairs += ids[row * kTopK + j] >= kFirst ? 1 : 0;
          if (pairs / part_pairs > part) expected[++part] = row + 1;
        }
        OpRig rig({}, RunMode::kReplayed);
        int32_t* const borders = rig.Poisoned<int32_t>(part_count + 1);
        const PartRowsParams params = {borders, rig.Put(ids), rows,       kTopK,
                                       kCount,  kFirst,       part_pairs, part_count};
        rig.Run([&] { rig.ops().part_rows(rig.stream(), params); });
        EXPECT_EQ(rig.Get(borders, part_count + 1), expected)
            << rows << " rows, " << own_percent << "% own, " << part_pairs << " pairs a part";
      }
    }
  }
}

// A row's experts: a function of the row alone.
std::vector<int32_t> ExpertsOf(int row, int top_k, int experts) {
  std::vector<int32_t> ids;
  for (int j = 0; j < top_k; ++j) ids.push_back((row * 3 + j * 5) % experts);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<int32_t> ExpertsOf(const std::vector<int>& rows, int top_k, int experts) {
  std::vector<int32_t> ids;
  for (const int row : rows) {
    for (const int32_t id : ExpertsOf(row, top_k, experts)) ids.push_back(id);
  }
  return ids;
}

struct GemmShape {
  const char* name;
  int experts, top_k, n, k;
  DType dtype;
  int group = 128;
};

const GemmShape kGemmShapes[] = {
    {"abacus", 8, 2, 96, 128, DType::kBF16},          {"ragged", 7, 3, 21, 45, DType::kBF16},
    {"f8, R1 slice", 16, 4, 64, 512, DType::kF8E4M3}, {"int4, R1 slice", 16, 4, 64, 512, DType::kInt4},
    {"fp4, ragged", 7, 3, 21, 256, DType::kF4E2M1},   {"nvfp4, ragged", 7, 3, 21, 304, DType::kF4E2M1, 16},
};

OpCase GroupedGemmCase(const GemmShape& s, const std::vector<TestWeight>& experts,
                       const std::vector<bf16>& x) {
  OpCase op_case;
  op_case.name = s.name;
  op_case.row_count = static_cast<int>(x.size()) / s.k;
  op_case.run = [=, &experts, &x](OpRig& rig, const std::vector<int>& rows) {
    const Grouped grouped = Group(rig, ExpertsOf(rows, s.top_k, s.experts), s.top_k, s.experts);
    const int pairs = static_cast<int>(rows.size()) * s.top_k;
    float* out = rig.Poisoned<float>(pairs * s.n);
    const GroupedGemmParams params = {
        .out = Dense(out, pairs, s.n),
        .x = Dense<const bf16>(rig.Put(RowsOf(x, s.k, rows)), static_cast<int>(rows.size()), s.k),
        .x_rows = rig.Put(grouped.rows),
        .expert_offsets = rig.Put(grouped.offsets),
        .experts = PackAll(rig, s.experts, [&](int e) -> const TestWeight& { return experts[e]; })};
    rig.Run([&] { rig.ops().grouped_gemm(rig.stream(), params); });
    return SplitRows(RowsOf(rig.Get(out, pairs * s.n), s.n, grouped.index), s.top_k * s.n);
  };
  op_case.check = [=, &experts, &x](int row, const Bytes& output) {
    const std::vector<float> values = FromBytes<float>(output);
    const std::vector<int32_t> ids = ExpertsOf(row, s.top_k, s.experts);
    for (int j = 0; j < s.top_k; ++j) {
      const std::vector<double> inputs = ReferenceInputs(experts[ids[j]], &x[row * s.k], s.k);
      for (int i = 0; i < s.n; ++i) {
        const DotReference dot = ReferenceDot(experts[ids[j]], i, inputs);
        const double tolerance = dot.coarse_error + (s.k + 4) * kF32Roundoff * dot.magnitude;
        ASSERT_NEAR(values[j * s.n + i], dot.sum, tolerance) << "choice " << j;
      }
    }
  };
  return op_case;
}

TEST(GroupedGemm, Holds) {
  for (const GemmShape& s : kGemmShapes) {
    if (!BackendHas(s.dtype, s.group)) continue;
    Noise noise(31);
    std::vector<TestWeight> experts;
    for (int e = 0; e < s.experts; ++e) {
      experts.push_back(MakeTestWeight(noise, {s.n}, s.k, s.dtype, 128, s.group));
    }
    ExpectOpHolds(GroupedGemmCase(s, experts, noise.Bf16s(6 * s.k)));
  }
}

void ExpectTheBitsOfGemm(DType dtype, int k, int group = 128) {
  if (!BackendHas(dtype, group)) return;
  Noise noise(32);
  const TestWeight weight = MakeTestWeight(noise, {50}, k, dtype, 128, group);
  const std::vector<bf16> x = noise.Bf16s(10 * k);
  for (const std::string& isa : SupportedIsas()) {
    OpRig rig({.isa = isa}, RunMode::kEager);
    const PackedWeight packed = rig.Pack(weight.parts);
    const Matrix<const bf16> in = Dense<const bf16>(rig.Put(x), 10, k);
    float* expected = rig.Poisoned<float>(500);
    float* out = rig.Poisoned<float>(500);
    rig.ops().gemm(rig.stream(), {.out = Dense(expected, 10, 50), .x = in, .weight = packed});
    // One expert has 3 rows, one none, one 7.
    rig.ops().grouped_gemm(rig.stream(),
                           {.out = Dense(out, 10, 50),
                            .x = in,
                            .x_rows = nullptr,
                            .expert_offsets = rig.Put(std::vector<int32_t>{0, 3, 3, 10}),
                            .experts = PackAll(rig, 3, [&](int) -> const TestWeight& { return weight; })});
    EXPECT_EQ(BytesOf(rig.Get(out, 500).data(), 500), BytesOf(rig.Get(expected, 500).data(), 500)) << isa;
  }
}

TEST(GroupedGemm, HasTheBitsOfGemm) {
  ExpectTheBitsOfGemm(DType::kF8E4M3, 300);
  ExpectTheBitsOfGemm(DType::kInt4, 256);
  ExpectTheBitsOfGemm(DType::kF4E2M1, 304, 16);
}

// ---- combine_experts ----

struct CombineShape {
  const char* name;
  int experts, top_k, width;
  bool shared;
};

const CombineShape kCombineShapes[] = {
    {"abacus", 8, 2, 128, true},
    {"several of a group", 16, 8, 70, true},
    {"no shared expert", 64, 6, 65, false},
    {"fewer experts than groups", 4, 3, 5, true},
};

// The canonical order of docs/invariants.md section 3, spelled out.
float CombinedElement(const CombineShape& s, const std::vector<int32_t>& ids, const float* weights,
                      const std::vector<float>& expert_out, int column, float shared, float hidden) {
  float groups[8];
  for (int g = 0; g < 8; ++g) {
    float sum = 0.0f;
    for (int j = 0; j < s.top_k; ++j) {
      const bool inside = ids[j] >= g * s.experts / 8 && ids[j] < (g + 1) * s.experts / 8;
      if (!inside) continue;
      const float product = weights[j] * expert_out[j * s.width + column];
      sum += product;
    }
    groups[g] = ToFloat(ToBf16(sum));
  }
  const float low = (groups[0] + groups[1]) + (groups[2] + groups[3]);
  const float high = (groups[4] + groups[5]) + (groups[6] + groups[7]);
  return hidden + (s.shared ? shared + (low + high) : low + high);
}

OpCase CombineCase(const CombineShape& s, int row_count) {
  Noise noise(33);
  const std::vector<float> hidden = noise.Floats(row_count * s.width);
  const std::vector<float> shared = noise.Floats(row_count * s.width);
  std::vector<float> expert_out = noise.Floats(row_count * s.top_k * s.width);
  // All magnitudes: with similar magnitudes, sums of BF16 values would be exact in any order.
  for (float& value : expert_out) value = std::ldexp(value, noise.Int(-14, 14));
  const std::vector<float> weights = noise.Floats(row_count * s.top_k);
  OpCase op_case;
  op_case.name = s.name;
  op_case.row_count = row_count;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    std::vector<float> grouped_out(count * s.top_k * s.width);
    const std::vector<int32_t> ids = ExpertsOf(rows, s.top_k, s.experts);
    const Grouped grouped = Group(rig, ids, s.top_k, s.experts);
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < s.top_k; ++j) {
        std::copy_n(&expert_out[(rows[i] * s.top_k + j) * s.width], s.width,
                    &grouped_out[grouped.index[i * s.top_k + j] * s.width]);
      }
    }
    float* out = rig.Put(RowsOf(hidden, s.width, rows));
    CombineExpertsParams params = {
        .hidden = Dense(out, count, s.width),
        .expert_out = Dense<const float>(rig.Put(grouped_out), count * s.top_k, s.width),
        .grouped_index = rig.Put(grouped.index),
        .expert_ids = rig.Put(ids),
        .expert_weights = rig.Put(RowsOf(weights, s.top_k, rows)),
        .top_k = s.top_k,
        .expert_count = s.experts};
    if (s.shared) params.shared = Dense<const float>(rig.Put(RowsOf(shared, s.width, rows)), count, s.width);
    rig.Run([&] { rig.ops().combine_experts(rig.stream(), params); });
    return SplitRows(rig.Get(out, count * s.width), s.width);
  };
  op_case.check = [=](int row, const Bytes& output) {
    const std::vector<float> values = FromBytes<float>(output);
    const std::vector<float> row_out = RowsOf(expert_out, s.top_k * s.width, {row});
    for (int i = 0; i < s.width; ++i) {
      const float expected =
          CombinedElement(s, ExpertsOf(row, s.top_k, s.experts), &weights[row * s.top_k], row_out, i,
                          shared[row * s.width + i], hidden[row * s.width + i]);
      ASSERT_EQ(values[i], expected) << "row " << row << " column " << i;
    }
  };
  return op_case;
}

TEST(CombineExperts, HoldsTheCanonicalOrderToTheBit) {
  for (const CombineShape& s : kCombineShapes) ExpectOpHolds(CombineCase(s, 6));
}

TEST(CombineExperts, LeavesIdleRowsAlone) {
  OpRig rig({}, RunMode::kEager);
  float* hidden = rig.Put(std::vector<float>{1.0f, 2.0f});
  rig.ops().combine_experts(rig.stream(), {.hidden = Dense(hidden, 1, 2),
                                           .expert_out = Dense<const float>(rig.Poisoned<float>(4), 2, 2),
                                           .shared = Dense<const float>(rig.Poisoned<float>(2), 1, 2),
                                           .grouped_index = rig.Put(std::vector<int32_t>{-1, -1}),
                                           .expert_ids = rig.Put(std::vector<int32_t>{-1, -1}),
                                           .expert_weights = rig.Poisoned<float>(2),
                                           .top_k = 2,
                                           .expert_count = 8});
  EXPECT_EQ(rig.Get(hidden, 2), (std::vector<float>{1.0f, 2.0f}));
}

}  // namespace
}  // namespace foredraft
