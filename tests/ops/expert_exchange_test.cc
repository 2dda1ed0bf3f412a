// group_rows over a part of the experts, expert_partials and add_partials together give the bits of
// combine_experts, for any number of ranks; add_partials_norm those of add_partials and rms_norm.

#include <algorithm>
#include <cmath>

#include "tests/ops/op_harness.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  int experts, top_k, width, rows;
  bool shared;
};

const Shape kShapes[] = {
    {"abacus", 8, 2, 128, 5, true},
    {"several of a group", 16, 8, 70, 7, true},
    {"no shared expert", 64, 6, 65, 6, false},
    {"one row", 64, 8, 33, 1, true},
    {"fewer experts than groups", 4, 3, 5, 4, true},
    {"groups of unequal size", 13, 4, 20, 9, true},
};

// A batch of rows, every third one idle. Expert outputs have all magnitudes: with similar magnitudes, sums of
// BF16 values would be exact in any order.
struct Rows {
  explicit Rows(const Shape& s) : hidden(noise.Floats(s.rows * s.width)) {
    shared = noise.Floats(s.rows * s.width);
    weights = noise.Floats(s.rows * s.top_k);
    pair_out = noise.Floats(s.rows * s.top_k * s.width);
    for (float& value : pair_out) value = std::ldexp(value, noise.Int(-14, 14));
    for (int row = 0; row < s.rows; ++row) {
      std::vector<int32_t> chosen(s.experts);
      for (int e = 0; e < s.experts; ++e) chosen[e] = e;
      for (int j = 0; j < s.top_k; ++j) std::swap(chosen[j], chosen[noise.Int(j, s.experts - 1)]);
      chosen.resize(s.top_k);
      std::sort(chosen.begin(), chosen.end());
      if (row % 3 == 2) std::fill(chosen.begin(), chosen.end(), -1);
      ids.insert(ids.end(), chosen.begin(), chosen.end());
    }
  }

  Noise noise{41};
  std::vector<float> hidden, shared, weights;
  std::vector<float> pair_out;  // [rows, top_k, width]: the expert's output for a choice
  std::vector<int32_t> ids;
};

class ExchangeRig {
 public:
  ExchangeRig(const Shape& shape, RunMode mode) : s_(shape), rows_(shape), rig_({}, mode) {}

  std::vector<float> Combined() {
    const int32_t* index = GroupOf(0, s_.experts, {0, s_.rows}, nullptr);
    float* const hidden = rig_.Put(rows_.hidden);
    CombineExpertsParams params = {.hidden = Dense(hidden, s_.rows, s_.width),
                                   .expert_out = ExpertOut(),
                                   .grouped_index = index,
                                   .expert_ids = rig_.Put(rows_.ids),
                                   .expert_weights = rig_.Put(rows_.weights),
                                   .top_k = s_.top_k,
                                   .expert_count = s_.experts};
    if (s_.shared) params.shared = Dense<const float>(rig_.Put(rows_.shared), s_.rows, s_.width);
    rig_.Run([&] { rig_.ops().combine_experts(rig_.stream(), params); });
    return rig_.Get(hidden, rows_.hidden.size());
  }

  // Each rank's experts run in parts of the rows, [borders[i], borders[i + 1]).
  std::vector<float> Exchanged(int ranks, const std::vector<int32_t>& borders) {
    const bool rounded = ranks == 8;
    const size_t elements = static_cast<size_t>(s_.rows) * s_.width;
    float* const partials = rig_.Poisoned<float>(ranks * elements);
    bf16* const partials_bf16 = rig_.Poisoned<bf16>(ranks * elements);
    const int32_t* const ranges = rig_.Put(borders);
    const int parts = static_cast<int>(borders.size()) - 1;
    for (int i = 0; i < ranks * parts; ++i) {
      const int rank = i / parts, part = i % parts;
      const int first = rank * s_.experts / ranks;
      // Null is the same as all rows.
      const int32_t* const row_range = parts == 1 ? nullptr : ranges + part;
      const int32_t* index = GroupOf(first, (rank + 1) * s_.experts / ranks - first,
                                     {borders[part], borders[part + 1]}, row_range);
      ExpertPartialsParams params = {.expert_out = ExpertOut(),
                                     .grouped_index = index,
                                     .expert_ids = rig_.Put(rows_.ids),
                                     .expert_weights = rig_.Put(rows_.weights),
                                     .top_k = s_.top_k,
                                     .expert_count = s_.experts,
                                     .first_slice = 8 / ranks * rank,
                                     .slice_count = 8 / ranks,
                                     .row_range = row_range};
      if (rounded) params.out_bf16 = Dense(partials_bf16 + rank * elements, s_.rows, s_.width);
      if (!rounded) params.out = Dense(partials + rank * elements, s_.rows, s_.width);
      rig_.Run([&] { rig_.ops().expert_partials(rig_.stream(), params); });
    }
    float* const hidden = rig_.Put(rows_.hidden);
    AddPartialsParams params = {.hidden = Dense(hidden, s_.rows, s_.width),
                                .expert_ids = rig_.Put(rows_.ids),
                                .top_k = s_.top_k,
                                .rank_count = ranks};
    if (rounded) params.partials_bf16 = Dense<const bf16>(partials_bf16, ranks * s_.rows, s_.width);
    if (!rounded) params.partials = Dense<const float>(partials, ranks * s_.rows, s_.width);
    if (s_.shared) params.shared = Dense<const float>(rig_.Put(rows_.shared), s_.rows, s_.width);
    rig_.Run([&] { rig_.ops().add_partials(rig_.stream(), params); });
    return rig_.Get(hidden, rows_.hidden.size());
  }

 private:
  // Groups the rows of a range over these experts and arranges their outputs for ExpertOut; outputs of other
  // experts are NaN. row_range: null or the same range.
  const int32_t* GroupOf(int first_expert, int expert_count, std::pair<int, int> range,
                         const int32_t* row_range) {
    const size_t pairs = rows_.ids.size();
    int32_t* const offsets = rig_.Poisoned<int32_t>(expert_count + 1);
    int32_t* const grouped = rig_.Poisoned<int32_t>(pairs);
    int32_t* const index = rig_.Poisoned<int32_t>(pairs);
    const GroupRowsParams params = {.expert_offsets = offsets,
                                    .grouped_rows = grouped,
                                    .grouped_index = index,
                                    .expert_ids = rig_.Put(rows_.ids),
                                    .rows = s_.rows,
                                    .top_k = s_.top_k,
                                    .expert_count = expert_count,
                                    .first_expert = first_expert,
                                    .row_range = row_range};
    rig_.Run([&] { rig_.ops().group_rows(rig_.stream(), params); });
    const std::vector<int32_t> host_offsets = rig_.Get(offsets, expert_count + 1);
    const std::vector<int32_t> grouped_rows = rig_.Get(index, pairs);
    grouped_out_.assign(pairs * s_.width, NAN);
    for (size_t pair = range.first * s_.top_k; pair < size_t(range.second) * s_.top_k; ++pair) {
      const int expert = rows_.ids[pair] - first_expert;
      const bool local = rows_.ids[pair] >= 0 && expert >= 0 && expert < expert_count;
      EXPECT_EQ(grouped_rows[pair] >= 0, local) << "pair " << pair << " from expert " << first_expert;
      if (!local) continue;
      EXPECT_GE(grouped_rows[pair], host_offsets[expert]);
      EXPECT_LT(grouped_rows[pair], host_offsets[expert + 1]);
      std::copy_n(&rows_.pair_out[pair * s_.width], s_.width, &grouped_out_[grouped_rows[pair] * s_.width]);
    }
    return index;
  }

  Matrix<const float> ExpertOut() {
    return Dense<const float>(rig_.Put(grouped_out_), static_cast<int32_t>(rows_.ids.size()), s_.width);
  }

  const Shape s_;
  const Rows rows_;
  OpRig rig_;
  std::vector<float> grouped_out_;  // [pairs, width], as grouped
};

TEST(ExpertExchange, HasTheBitsOfCombineExpertsOverAnyNumberOfRanks) {
  for (const Shape& shape : kShapes) {
    for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
      ExchangeRig rig(shape, mode);
      const std::vector<float> combined = rig.Combined();
      for (const int ranks : {1, 2, 4, 8}) {
        SCOPED_TRACE(std::string(shape.name) + ", ranks " + std::to_string(ranks));
        const int middle = shape.rows / 2;
        const std::vector<int32_t> parts[] = {
            {0, shape.rows}, {0, middle, shape.rows}, {0, 0, middle, middle, shape.rows, shape.rows}};
        for (const std::vector<int32_t>& borders : parts) {
          const std::vector<float> exchanged = rig.Exchanged(ranks, borders);
          EXPECT_EQ(BytesOf(exchanged.data(), exchanged.size()), BytesOf(combined.data(), combined.size()))
              << borders.size() - 1 << " parts";
        }
      }
    }
  }
}

TEST(ExpertExchange, AddsASharedExpertInPartsAsItsTreeSum) {
  constexpr int kRows = 2, kRanks = 4;
  for (const int width : {30, 512, 1030}) {
    for (const int parts : {2, 4, 8}) {
      OpRig rig({}, RunMode::kEager);
      Noise noise(width + parts);
      const std::vector<float> hidden = noise.Floats(kRows * width);
      const Matrix<const float> shared =
          Dense<const float>(rig.Put(noise.Floats(parts * kRows * width)), parts * kRows, width);
      const Matrix<float> whole = Dense(rig.Poisoned<float>(kRows * width), kRows, width);
      AddPartialsParams separate = {.hidden = Dense(rig.Put(hidden), kRows, width),
                                    .partials = Dense<const float>(
                                        rig.Put(noise.Floats(kRanks * kRows * width)), kRanks * kRows, width),
                                    .shared = whole,
                                    .expert_ids = rig.Put(std::vector<int32_t>{0, 3}),
                                    .top_k = 1,
                                    .rank_count = kRanks};
      AddPartialsParams fused = separate;
      fused.hidden = Dense(rig.Put(hidden), kRows, width);
      fused.shared = shared;
      fused.shared_parts = parts;
      rig.ops().tree_sum(rig.stream(), {.out = whole, .parts = shared, .bias = nullptr, .part_count = parts});
      rig.ops().add_partials(rig.stream(), separate);
      rig.ops().add_partials(rig.stream(), fused);
      EXPECT_EQ(rig.Get(fused.hidden.data, kRows * width), rig.Get(separate.hidden.data, kRows * width));
    }
  }
}

TEST(ExpertExchange, LeavesIdleRowsAlone) {
  OpRig rig({}, RunMode::kEager);
  float* const hidden = rig.Put(std::vector<float>{1.0f, 2.0f});
  rig.ops().add_partials(rig.stream(), {.hidden = Dense(hidden, 1, 2),
                                        .partials = Dense<const float>(rig.Poisoned<float>(4), 2, 2),
                                        .shared = Dense<const float>(rig.Poisoned<float>(2), 1, 2),
                                        .expert_ids = rig.Put(std::vector<int32_t>{-1, -1}),
                                        .top_k = 2,
                                        .rank_count = 2});
  EXPECT_EQ(rig.Get(hidden, 2), (std::vector<float>{1.0f, 2.0f}));
}

struct NormCase {
  const char* name;
  int width, ranks;
  bool rounded;      // partial values in BF16
  int shared_parts;  // 0: no shared expert
};

const NormCase kNormCases[] = {
    {"eight ranks", 7168, 8, true, 1},
    {"eight ranks, no shared expert", 512, 8, true, 0},
    {"eight ranks, threads without columns", 516, 8, true, 1},
    {"eight ranks, columns of no vector", 70, 8, true, 1},
    {"eight ranks, the widest row of a block's registers", 8192, 8, true, 1},
    {"eight ranks, a wider row", 8320, 8, true, 1},
    {"eight ranks in FP32", 512, 8, false, 1},
    {"four ranks", 2048, 4, false, 1},
    {"four ranks in BF16", 640, 4, true, 1},
    {"two ranks", 1024, 2, false, 1},
    {"two ranks, the shared expert in parts", 1024, 2, false, 2},
    {"one part", 128, 1, false, 1},
};

// Some rows, one of them idle, whose partial values are NaN.
class NormRig {
 public:
  NormRig(const NormCase& c, RunMode mode) : c_(c), rig_({}, mode) {
    Noise noise(c.width + c.ranks);
    hidden_ = noise.Floats(kRows * c.width);
    add_ = {
        .expert_ids = rig_.Put(std::vector<int32_t>{0, 3, -1, -1, 2, 5}), .top_k = 2, .rank_count = c.ranks};
    std::vector<float> partials = noise.Floats(c.ranks * kRows * c.width);
    for (int rank = 0; rank < c.ranks; ++rank) {
      std::fill_n(&partials[(rank * kRows + kIdle) * c.width], c.width, NAN);
    }
    std::vector<bf16> rounded(partials.size());
    std::transform(partials.begin(), partials.end(), rounded.begin(), ToBf16);
    if (c.rounded) add_.partials_bf16 = Dense<const bf16>(rig_.Put(rounded), c.ranks * kRows, c.width);
    if (!c.rounded) add_.partials = Dense<const float>(rig_.Put(partials), c.ranks * kRows, c.width);
    if (c.shared_parts == 0) return;
    add_.shared_parts = c.shared_parts;
    add_.shared = Dense<const float>(rig_.Put(noise.Floats(c.shared_parts * kRows * c.width)),
                                     c.shared_parts * kRows, c.width);
  }

  // What is in hidden and in both outputs of the norm afterwards.
  std::vector<Bytes> Run(bool fused) {
    const size_t elements = kRows * c_.width;
    AddPartialsParams add = add_;
    add.hidden = Dense(rig_.Put(hidden_), kRows, c_.width);
    const RmsNormParams norm = {.out = Dense(rig_.Poisoned<float>(elements), kRows, c_.width),
                                .out_bf16 = Dense(rig_.Poisoned<bf16>(elements), kRows, c_.width),
                                .x = add.hidden,
                                .weight = rig_.Put(Noise(4).Floats(c_.width)),
                                .eps = 1e-6f};
    rig_.Run([&] {
      if (fused) return rig_.ops().add_partials_norm(rig_.stream(), {.partials = add, .norm = norm});
      rig_.ops().add_partials(rig_.stream(), add);
      rig_.ops().rms_norm(rig_.stream(), norm);
    });
    const std::vector<float> sums = rig_.Get(add.hidden.data, elements);
    EXPECT_TRUE(
        std::equal(&hidden_[kIdle * c_.width], &hidden_[(kIdle + 1) * c_.width], &sums[kIdle * c_.width]));
    return {BytesOf(sums.data(), elements), BytesOf(rig_.Get(norm.out.data, elements).data(), elements),
            BytesOf(rig_.Get(norm.out_bf16.data, elements).data(), elements)};
  }

 private:
  static constexpr int kRows = 3, kIdle = 1;

  const NormCase c_;
  OpRig rig_;
  std::vector<float> hidden_;
  AddPartialsParams add_;
};

TEST(ExpertExchange, AddsAndNormsWithTheBitsOfBoth) {
  for (const NormCase& c : kNormCases) {
    SCOPED_TRACE(c.name);
    const std::vector<Bytes> separate = NormRig(c, RunMode::kEager).Run(/*fused=*/false);
    EXPECT_EQ(NormRig(c, RunMode::kEager).Run(/*fused=*/true), separate);
    EXPECT_EQ(NormRig(c, RunMode::kReplayed).Run(/*fused=*/true), separate);
  }
}

}  // namespace
}  // namespace foredraft
