#include "tests/bench/copy_communicator.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model_weights.h"

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

TEST(CopyCommunicator, FillsTheRowsOfAllRanksAndLeavesTheExpertsToTheLast) {
  auto device = CreateDevice("cpu", {});
  ASSERT_TRUE(device.ok());
  const auto stream = (*device)->CreateStream();
  const auto comm =
      CopyCommunicator::Create(**device, kRanks, /*expert_count=*/32, /*max_choices=*/2 * kRows);
  ASSERT_TRUE(comm.ok());
  constexpr int kWidth = 5, kTopK = 2;
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
    EXPECT_EQ(gathered_ids[i], i < ids.size() ? ids[i] : 31) << i;
}

TEST(CopyCommunicator, GivesEveryRanksPartOfTheOwnRows) {
  auto device = CreateDevice("cpu", {});
  ASSERT_TRUE(device.ok());
  const auto stream = (*device)->CreateStream();
  const auto comm = CopyCommunicator::Create(**device, kRanks, 32, 1);
  ASSERT_TRUE(comm.ok());
  const std::vector<int32_t> in = Counting(kRanks * kRows);
  int32_t* const out = Put(**device, *stream, std::vector<int32_t>(kRanks * kRows, -7));
  (*comm)->AllToAll(*stream, {out, Put(**device, *stream, in), 4, RankRows::Uniform(kRanks, kRows)});
  const std::vector<int32_t> values = Get(**device, *stream, out, kRanks * kRows);
  for (int i = 0; i < kRanks * kRows; ++i) EXPECT_EQ(values[i], in[i % kRows]) << i;
}

// In a step of rank 0, its own rows choose only local experts, and the other ranks' rows choose none of them.
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
