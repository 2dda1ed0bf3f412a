#include "tests/bench/copy_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model_weights.h"
#include "tests/bench/slowest_rank.h"

namespace foredraft {
namespace {

constexpr int kRanks = 4;
constexpr int kRows = 3;

template <class T>
T* Put(Device& device, Stream& stream, const std::vector<T>& values) {
  T* const memory = *device.AllocateArray<T>(values.size());
  device.CopyToDevice(stream, memory, values.data(), values.size() * sizeof(T));
  return memory;
}

template <class T>
std::vector<T> Get(Device& device, Stream& stream, const T* memory, size_t count) {
  std::vector<T> values(count);
  device.CopyToHost(stream, values.data(), memory, count * sizeof(T));
  stream.Synchronize();
  return values;
}

std::vector<int32_t> Counting(int count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), 1);
  return values;
}

TEST(CopyCommunicator, FillsTheRowsOfAllRanksAndTheOthersChoices) {
  auto device = CreateDevice("cpu", {});
  ASSERT_TRUE(device.ok());
  const auto stream = (*device)->CreateStream();
  constexpr int kWidth = 5, kTopK = 2;
  std::vector<int32_t> others = Counting((kRanks - 1) * (kRows + 1) * kTopK);  // of a larger exchange
  for (int32_t& id : others) id += 100;
  const auto comm = CopyCommunicator::Create(**device, kRanks, others);
  ASSERT_TRUE(comm.ok());
  const std::vector<int32_t> x = Counting(kRows * kWidth), ids = Counting(kRows * kTopK);
  int32_t* const all_x = Put(**device, *stream, std::vector<int32_t>(kRanks * x.size(), -7));
  int32_t* const all_ids = Put(**device, *stream, std::vector<int32_t>(kRanks * ids.size(), -7));
  AllGatherParams params = {.rows = RankRows::Uniform(kRanks, kRows)};
  params.parts[0] = {all_x, Put(**device, *stream, x), kWidth * 4};
  params.parts[1] = {all_ids, Put(**device, *stream, ids), kTopK * 4};
  params.parts[2] = {Put(**device, *stream, std::vector<int32_t>(kRanks * ids.size(), -7)),
                     Put(**device, *stream, ids), kTopK * 4};
  (*comm)->AllGather(*stream, params);
  const std::vector<int32_t> gathered_x = Get(**device, *stream, all_x, kRanks * x.size());
  const std::vector<int32_t> gathered_ids = Get(**device, *stream, all_ids, kRanks * ids.size());
  for (size_t i = 0; i < gathered_x.size(); ++i) EXPECT_EQ(gathered_x[i], x[i % x.size()]) << i;
  for (size_t i = 0; i < gathered_ids.size(); ++i)
    EXPECT_EQ(gathered_ids[i], i < ids.size() ? ids[i] : others[i - ids.size()]) << i;
}

// Layers whose own rows choose among the own experts alone, beside the other ranks' rows of OthersChoices.
class Layers {
 public:
  Layers(Device& device, const ExpertChoice& choice, CopyCommunicator& comm, int rows)
      : device_(device), stream_(device.CreateStream()), choice_(choice), comm_(comm), rows_(rows) {
    const int pairs = choice.ranks * rows * choice.top_k;
    ids_ = Room(rows * choice.top_k);
    gather_.rows = RankRows::Uniform(choice.ranks, rows);
    gather_.parts[1] = {Room(pairs), ids_, choice.top_k * 4};
    gather_.parts[2] = {Room(pairs), ids_, choice.top_k * 4};
    group_ = {.expert_offsets = Room(choice.rank_experts() + 1),
              .grouped_rows = Room(pairs),
              .grouped_index = Room(pairs),
              .expert_ids = static_cast<const int32_t*>(gather_.parts[1].out),
              .rows = choice.ranks * rows,
              .top_k = choice.top_k,
              .expert_count = choice.rank_experts()};
  }

  // The own experts that have rows, on average.
  double MeanMet(int layers) {
    int64_t met = 0;
    std::vector<int32_t> experts(choice_.rank_experts());
    std::iota(experts.begin(), experts.end(), 0);
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<int32_t> ids;
      for (int row = 0; row < rows_; ++row) {
        std::shuffle(experts.begin(), experts.end(), random_);
        ids.insert(ids.end(), experts.begin(), experts.begin() + choice_.top_k);
      }
      device_.CopyToDevice(*stream_, ids_, ids.data(), ids.size() * sizeof(int32_t));
      comm_.AllGather(*stream_, gather_);
      device_.ops().group_rows(*stream_, group_);
      const std::vector<int32_t> ends = Get(device_, *stream_, group_.expert_offsets, experts.size() + 1);
      for (size_t e = 0; e < experts.size(); ++e) met += ends[e + 1] > ends[e];
    }
    return static_cast<double>(met) / layers;
  }

 private:
  int32_t* Room(int count) { return Put(device_, *stream_, std::vector<int32_t>(count)); }

  Device& device_;
  const std::unique_ptr<Stream> stream_;
  const ExpertChoice choice_;
  CopyCommunicator& comm_;
  const int rows_;
  int32_t* ids_ = nullptr;
  AllGatherParams gather_;
  GroupRowsParams group_;
  std::mt19937 random_{1};
};

TEST(CopyCommunicator, MeetsAsManyExpertsAsTheSlowestRank) {
  const struct {
    const char* name;
    ExpertChoice choice;
  } cases[] = {{"R1", {.expert_count = 256, .ranks = 8, .top_k = 8, .groups = 8, .chosen_groups = 4}},
               {"R1 on 2", {.expert_count = 256, .ranks = 2, .top_k = 8, .groups = 8, .chosen_groups = 4}},
               {"V4", {.expert_count = 256, .ranks = 8, .top_k = 6}}};
  constexpr int kMaxRows = 32, kLayers = 1000;
  auto device = CreateDevice("cpu", {});
  ASSERT_TRUE(device.ok());
  for (const auto& [name, choice] : cases) {
    const SlowestRank slowest(choice);
    const auto comm = CopyCommunicator::Create(**device, choice.ranks, OthersChoices(slowest, kMaxRows));
    ASSERT_TRUE(comm.ok());
    for (const int rows : {1, 2, 3, 4, 8, kMaxRows}) {
      // Half a named expert, new with the chance that the own rows leave it; five standard errors of either
      // mean. That an expert is met makes it less likely of others, so the variance of their number is at
      // most the sum of theirs.
      const double own = choice.rank_experts();
      const double left = std::pow(1 - choice.top_k / own, rows);
      const double tolerance = 0.5 * left + 5 * std::sqrt(own * left * (1 - left) / kLayers) + 5 * 0.05;
      EXPECT_NEAR(Layers(**device, choice, **comm, rows).MeanMet(kLayers),
                  slowest.MostExperts(choice.ranks * rows), tolerance)
          << name << ", " << rows << " rows a rank";
    }
  }
}

TEST(CopyCommunicator, GivesEveryRanksPartOfTheOwnRows) {
  auto device = CreateDevice("cpu", {});
  ASSERT_TRUE(device.ok());
  const auto stream = (*device)->CreateStream();
  const auto comm = CopyCommunicator::Create(**device, kRanks, {});
  ASSERT_TRUE(comm.ok());
  const std::vector<int32_t> in = Counting(kRanks * kRows);
  int32_t* const out = Put(**device, *stream, std::vector<int32_t>(kRanks * kRows, -7));
  (*comm)->AllToAll(*stream, {out, Put(**device, *stream, in), 4, RankRows::Uniform(kRanks, kRows)});
  const std::vector<int32_t> values = Get(**device, *stream, out, kRanks * kRows);
  for (int i = 0; i < kRanks * kRows; ++i) EXPECT_EQ(values[i], in[i % kRows]) << i;
}

// In a step of rank 0, its own rows choose only local experts.
TEST(CopyCommunicator, OnlyOwnRowsChooseOwnExperts) {
  ModelConfig config;
  config.architecture = "DeepseekV3ForCausalLM";
  config.kind = &kDeepseekV3Kind;
  config.vocab_size = 64;
  config.hidden_size = 32;
  config.num_hidden_layers = 1;
  config.moe_intermediate_size = 16;
  config.n_routed_experts = 16;
  config.num_experts_per_tok = 2;
  config.num_attention_heads = 2;
  config.q_lora_rank = 16;
  config.kv_lora_rank = 32;
  config.qk_nope_head_dim = 16;
  config.qk_rope_head_dim = 16;
  config.v_head_dim = 16;
  config.intermediate_size = 32;
  config.max_position_embeddings = 64;
  auto device = CreateDevice("cpu", {});
  ASSERT_TRUE(device.ok());
  const auto stream = (*device)->CreateStream();
  const auto weights =
      MakeDummyWeights(config, 0, **device, *stream, nullptr, {.layout = RankLayout::DataParallel(kRanks)});
  ASSERT_TRUE(weights.ok()) << weights.status();
  ChooseOwnExperts(**device, *weights, config, config.n_routed_experts / kRanks);
  const MoeWeights& moe = weights->Find<V3Weights>()->layers[0].moe;
  EXPECT_EQ(moe.expert_gate_up.count, 4);
  int32_t* const ids = Put(**device, *stream, std::vector<int32_t>(kRows * 2, -7));
  const Matrix<const float> logits =
      Dense<const float>(Put(**device, *stream, std::vector<float>(kRows * 16, 3.0f)), kRows, 16);
  const RowIndex index = {.slots = Put(**device, *stream, Counting(kRows)),
                          .positions = Put(**device, *stream, Counting(kRows)),
                          .rows = kRows};
  (*device)->ops().route_experts(*stream,
                                 {.expert_ids = ids,
                                  .expert_weights = Put(**device, *stream, std::vector<float>(kRows * 2)),
                                  .logits = logits,
                                  .bias = moe.bias,
                                  .index = index,
                                  .n_group = 1,
                                  .topk_group = 1,
                                  .top_k = 2,
                                  .norm_topk_prob = 1,
                                  .routed_scaling_factor = 1.0f});
  for (const int32_t id : Get(**device, *stream, ids, kRows * 2)) EXPECT_LT(id, 4);
}

TEST(CopyCommunicator, HashLayersNameOwnExperts) {
  const auto config = ReadModelConfig("tests/golden/checkpoints/deepseek_v4/config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  auto device = CreateDevice("cpu", {});
  ASSERT_TRUE(device.ok());
  const auto stream = (*device)->CreateStream();
  const auto weights =
      MakeDummyWeights(*config, 1, **device, *stream, nullptr, {.layout = RankLayout::DataParallel(2)});
  ASSERT_TRUE(weights.ok()) << weights.status();
  const int experts = config->n_routed_experts, own = experts / 2, top_k = config->num_experts_per_tok;
  ChooseOwnExperts(**device, *weights, *config, own);
  int tables = 0;
  for (const V4LayerWeights& layer : weights->Find<V4Weights>()->layers) {
    if (layer.ffn.expert_table == nullptr) {
      const std::vector<float> bias = Get(**device, *stream, layer.ffn.bias, experts);
      for (int e = 0; e < experts; ++e) EXPECT_EQ(bias[e] > 0, e < own) << e;
      continue;
    }
    ++tables;
    const std::vector<int32_t> table =
        Get(**device, *stream, layer.ffn.expert_table, size_t{1} * config->vocab_size * top_k);
    for (int token = 0; token < config->vocab_size; ++token) {
      const std::set<int32_t> ids(&table[token * top_k], &table[token * top_k] + top_k);
      EXPECT_EQ(static_cast<int>(ids.size()), top_k) << token;
      EXPECT_GE(*ids.begin(), 0);
      EXPECT_LT(*ids.rbegin(), own);
    }
  }
  EXPECT_EQ(tables, 1);
}

}  // namespace
}  // namespace foredraft
