// R1Shapes (r1_shapes_test.cc) for routing and the sums of experts: 256 experts in 8 groups, 8 for each row
// of 7,168. The CPU's bits are the reference (tests/ops holds them to plain loops): these ops have the same
// on every backend.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/gpu/r1_rows.h"

namespace foredraft {
namespace {

constexpr int kExperts = 256;
constexpr int kTopK = 8;

// ---- routing ----

struct Router {
  std::vector<float> logits;  // [kRows, kExperts]
  std::vector<float> bias;

  std::vector<Bytes> Run(OpRig& rig, const std::vector<int>& rows) const {
    const int count = static_cast<int>(rows.size());
    const std::vector<int32_t> slots(count, 0);
    const RouteExpertsParams params = {
        .expert_ids = rig.Poisoned<int32_t>(count * kTopK),
        .expert_weights = rig.Poisoned<float>(count * kTopK),
        .logits = Dense<const float>(rig.Put(RowsOf(logits, kExperts, rows)), count, kExperts),
        .bias = rig.Put(bias),
        .index = {rig.Put(slots), rig.Put(slots), count},
        .n_group = 8,
        .topk_group = 4,
        .top_k = kTopK,
        .norm_topk_prob = 1,
        .routed_scaling_factor = 2.5f};
    rig.Run([&] { rig.ops().route_experts(rig.stream(), params); });
    std::vector<Bytes> outputs = SplitRows(rig.Get(params.expert_ids, count * kTopK), kTopK);
    const std::vector<Bytes> weights = SplitRows(rig.Get(params.expert_weights, count * kTopK), kTopK);
    for (int i = 0; i < count; ++i) outputs[i].insert(outputs[i].end(), weights[i].begin(), weights[i].end());
    return outputs;
  }
};

TEST(R1Shapes, RouteExperts) {
  Noise noise(58);
  const Router router = {noise.Floats(kRows * kExperts, 2.0f), noise.Floats(kExperts, 0.1f)};
  const std::vector<Bytes> alone = ExpectRowsAlone(
      "route_experts",
      [&](RunMode mode, const std::vector<int>& rows) { return router.Run(Rig(mode), rows); });
  OpRig cpu({}, RunMode::kEager, "cpu");
  std::vector<int> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(alone, router.Run(cpu, all));
}

// ---- sums ----

// What combine_experts adds to distinct rows. Expert outputs have all magnitudes: with similar magnitudes,
// sums of BF16 values would be exact in any order.
struct ExpertRows {
  std::vector<float> hidden, shared, weights;
  std::vector<float> pair_out;  // [kRows, kTopK, kR1Hidden]
  std::vector<int32_t> ids;     // [kRows, kTopK], ascending

  explicit ExpertRows(Noise noise)
      : hidden(noise.Floats(kRows * kR1Hidden)),
        shared(noise.Floats(kRows * kR1Hidden)),
        weights(noise.Floats(kRows * kTopK)),
        pair_out(noise.Floats(size_t(kRows) * kTopK * kR1Hidden)) {
    for (float& value : pair_out) value = std::ldexp(value, noise.Int(-14, 14));
    for (int row = 0; row < kRows; ++row) {
      std::vector<int32_t> chosen(kExperts);
      std::iota(chosen.begin(), chosen.end(), 0);
      for (int j = 0; j < kTopK; ++j) std::swap(chosen[j], chosen[noise.Int(j, kExperts - 1)]);
      std::sort(chosen.begin(), chosen.begin() + kTopK);
      ids.insert(ids.end(), chosen.begin(), chosen.begin() + kTopK);
    }
  }
};

// The rows of a batch, grouped over the experts of one rank.
class GroupedBatch {
 public:
  GroupedBatch(OpRig& rig, const ExpertRows& rows, const std::vector<int>& batch)
      : rig_(rig), rows_(rows), batch_(batch), count_(static_cast<int>(batch.size())) {
    ids_ = rig.Put(RowsOf(rows.ids, kTopK, batch));
    weights_ = rig.Put(RowsOf(rows.weights, kTopK, batch));
    hidden_ = Dense(rig.Put(RowsOf(rows.hidden, kR1Hidden, batch)), count_, kR1Hidden);
    shared_ = Dense<const float>(rig.Put(RowsOf(rows.shared, kR1Hidden, batch)), count_, kR1Hidden);
  }

  std::vector<Bytes> Combined() {
    const int32_t* const index = Group(0, kExperts);
    rig_.Run([&] {
      rig_.ops().combine_experts(rig_.stream(), {.hidden = hidden_,
                                                 .expert_out = expert_out_,
                                                 .shared = shared_,
                                                 .grouped_index = index,
                                                 .expert_ids = ids_,
                                                 .expert_weights = weights_,
                                                 .top_k = kTopK,
                                                 .expert_count = kExperts});
    });
    return Outputs();
  }

  // The outputs of the experts when they are spread over eight ranks.
  std::vector<Bytes> Exchanged() {
    constexpr int kRanks = 8;
    bf16* const partials = rig_.Poisoned<bf16>(size_t(kRanks) * count_ * kR1Hidden);
    for (int rank = 0; rank < kRanks; ++rank) {
      const int32_t* const index = Group(rank * kExperts / kRanks, kExperts / kRanks);
      rig_.Run([&] {
        rig_.ops().expert_partials(
            rig_.stream(),
            {.out_bf16 = Dense(partials + size_t(rank) * count_ * kR1Hidden, count_, kR1Hidden),
             .expert_out = expert_out_,
             .grouped_index = index,
             .expert_ids = ids_,
             .expert_weights = weights_,
             .top_k = kTopK,
             .expert_count = kExperts,
             .first_slice = rank,
             .slice_count = 1});
      });
    }
    rig_.Run([&] {
      rig_.ops().add_partials(rig_.stream(),
                              {.hidden = hidden_,
                               .partials_bf16 = Dense<const bf16>(partials, kRanks * count_, kR1Hidden),
                               .shared = shared_,
                               .expert_ids = ids_,
                               .top_k = kTopK,
                               .rank_count = kRanks});
    });
    return Outputs();
  }

 private:
  // Groups the batch over these experts and places their outputs; those of other experts are NaN.
  const int32_t* Group(int first_expert, int expert_count) {
    const int pairs = count_ * kTopK;
    const GroupRowsParams params = {.expert_offsets = rig_.Poisoned<int32_t>(expert_count + 1),
                                    .grouped_rows = rig_.Poisoned<int32_t>(pairs),
                                    .grouped_index = rig_.Poisoned<int32_t>(pairs),
                                    .expert_ids = ids_,
                                    .rows = count_,
                                    .top_k = kTopK,
                                    .expert_count = expert_count,
                                    .first_expert = first_expert};
    rig_.Run([&] { rig_.ops().group_rows(rig_.stream(), params); });
    const std::vector<int32_t> index = rig_.Get(params.grouped_index, pairs);
    const int32_t grouped = rig_.Get(params.expert_offsets, expert_count + 1).back();
    std::vector<float> out(size_t(std::max(grouped, 1)) * kR1Hidden, NAN);
    for (int pair = 0; pair < pairs; ++pair) {
      if (index[pair] < 0) continue;
      const size_t source = size_t(batch_[pair / kTopK]) * kTopK + pair % kTopK;
      std::copy_n(&rows_.pair_out[source * kR1Hidden], kR1Hidden, &out[size_t(index[pair]) * kR1Hidden]);
    }
    expert_out_ = Dense<const float>(rig_.Put(out), std::max(grouped, 1), kR1Hidden);
    return params.grouped_index;
  }

  std::vector<Bytes> Outputs() {
    return SplitRows(rig_.Get(hidden_.data, size_t(count_) * kR1Hidden), kR1Hidden);
  }

  OpRig& rig_;
  const ExpertRows& rows_;
  const std::vector<int> batch_;
  const int count_;
  const int32_t* ids_;
  const float* weights_;
  Matrix<float> hidden_;
  Matrix<const float> shared_;
  Matrix<const float> expert_out_;
};

TEST(R1Shapes, CombineExperts) {
  const ExpertRows rows(Noise(59));
  const std::vector<Bytes> alone =
      ExpectRowsAlone("combine_experts", [&](RunMode mode, const std::vector<int>& batch) {
        return GroupedBatch(Rig(mode), rows, batch).Combined();
      });
  OpRig cpu({}, RunMode::kEager, "cpu");
  std::vector<int> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(alone, GroupedBatch(cpu, rows, all).Combined());
}

TEST(R1Shapes, EightRanksGiveTheBitsOfOne) {
  const ExpertRows rows(Noise(60));
  for (const int size : {1, 33, 128}) {
    std::vector<int> batch(size);
    for (int i = 0; i < size; ++i) batch[i] = i % kRows;
    EXPECT_EQ(GroupedBatch(Rig(RunMode::kReplayed), rows, batch).Exchanged(),
              GroupedBatch(Rig(RunMode::kEager), rows, batch).Combined())
        << size << " rows";
  }
}

}  // namespace
}  // namespace foredraft
