// The parts of the ranks of a tensor group make up the whole weights, of files and of random numbers.

#include "engine/checkpoint/model_shard.h"

#include <set>

#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tests/engine/checkpoint/fake_device.h"
#include "tools/synth/synth.h"

namespace foredraft {
namespace {

// Three heads of 128 columns: with two, four or eight ranks some head has columns on two of them.
constexpr char kConfig[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 410, "hidden_size": 256, "num_hidden_layers": 2,
  "num_nextn_predict_layers": 1, "first_k_dense_replace": 1, "intermediate_size": 1024,
  "moe_intermediate_size": 256, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
  "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "num_attention_heads": 3, "q_lora_rank": 128,
  "kv_lora_rank": 128, "qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "v_head_dim": 128,
  "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1})";

struct Loaded {
  FakeDevice device;
  V3Weights weights;
};

// Rows [row, row + part.n) and columns [column, column + part.k) of `whole`, `part` says so, and it has those
// values; of `skipped` rows of the part, from the front.
void ExpectPart(const PackedWeight& whole, const PackedWeight& part, int row, int column, int skipped,
                int count) {
  EXPECT_EQ(part.plan_n(), whole.n);
  EXPECT_EQ(part.plan_k(), whole.k);
  ASSERT_LE(row + count, whole.n);
  ASSERT_LE(column + part.k, whole.k);
  for (int r = 0; r < count; ++r) {
    for (int c = 0; c < part.k; ++c) {
      ASSERT_EQ(FakeDevice::At(part, skipped + r, c), FakeDevice::At(whole, row + r, column + c))
          << "row " << r << ", column " << c;
    }
  }
}

class ModelShardTest : public ::testing::TestWithParam<bool> {
 protected:
  ModelShardTest() {
    const std::string dir = MakeTestDir("model_shard");
    WriteFile(dir + "/config.json", kConfig);
    checkpoint_ = dir + "/checkpoint";
    const auto report =
        WriteRandomCheckpoint({.config_json = dir + "/config.json", .out_dir = checkpoint_, .seed = 11});
    EXPECT_TRUE(report.ok()) << report.status();
    config_ = *ReadModelConfig(checkpoint_ + "/config.json");
  }

  std::unique_ptr<Loaded> Load(const ModelShard& shard) {
    auto loaded = std::make_unique<Loaded>();
    FakeStream stream;
    auto weights =
        As<V3Weights>(GetParam() ? LoadWeights(checkpoint_, config_, 1, loaded->device, stream, {}, shard)
                                 : MakeDummyWeights(config_, 1, loaded->device, stream, {}, shard));
    EXPECT_TRUE(weights.ok()) << weights.status();
    loaded->weights = *std::move(weights);
    return loaded;
  }

  std::string checkpoint_;
  ModelConfig config_;
};

TEST_P(ModelShardTest, EveryRankHasItsPart) {
  const auto all = Load({});
  for (const int ranks : {2, 8}) {
    for (const int rank : {0, 1, ranks - 1}) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << ranks);
      const auto part = Load({.layout = RankLayout::TensorParallel(ranks), .rank = rank});
      const MlaWeights& whole = all->weights.layers[0].self_attn;
      const MlaWeights& own = part->weights.layers[0].self_attn;
      const int columns = 3 * 128 / ranks, first_head = rank * columns / 128;
      EXPECT_EQ(own.o_proj.segments, 8 / ranks);
      EXPECT_EQ(own.o_first_column, rank * columns - first_head * 128);
      ExpectPart(whole.o_proj, own.o_proj, 0, rank * columns, 0, 256);
      ExpectPart(whole.q_b, own.q_b, first_head * 128, 0, 0, own.w_uk.count * 128);
      ExpectPart(whole.kv_b, own.kv_b, first_head * 224, 0, 0, own.w_uk.count * 224);
      for (int head = 0; head < own.w_uk.count; ++head) {
        EXPECT_EQ(FakeDevice::At(own.w_uk.items[head], 5, 7),
                  FakeDevice::At(whole.w_uk.items[first_head + head], 5, 7));
        EXPECT_EQ(FakeDevice::At(own.w_uv.items[head], 5, 7),
                  FakeDevice::At(whole.w_uv.items[first_head + head], 5, 7));
      }
      EXPECT_EQ(own.qkv_a.n, whole.qkv_a.n) << "latents are on every rank";

      const DenseMlpWeights& mlp = all->weights.layers[0].mlp;
      const DenseMlpWeights& own_mlp = part->weights.layers[0].mlp;
      const int inner = 1024 / ranks;
      ExpectPart(mlp.gate_up, own_mlp.gate_up, rank * inner, 0, 0, inner);
      ExpectPart(mlp.gate_up, own_mlp.gate_up, 1024 + rank * inner, 0, inner, inner);
      ExpectPart(mlp.down, own_mlp.down, 0, rank * inner, 0, 256);

      const int width = ranks == 2 ? 208 : 56;  // of 410, a multiple of 8
      const PackedWeight& head = part->weights.lm_head;
      EXPECT_EQ(head.n, std::min(width, 410 - rank * width));
      ExpectPart(all->weights.lm_head, head, rank * width, 0, 0, head.n);
    }
  }
}

TEST_P(ModelShardTest, RanksShareTheColumnsOfExperts) {
  const auto all = Load({});
  const MoeWeights& whole = all->weights.layers[1].moe;
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(testing::Message() << "rank " << rank);
    const auto part = Load({.layout = {.attention_tp = 4, .moe_ep = 2, .moe_tp = 2}, .rank = rank});
    const MoeWeights& own = part->weights.layers[1].moe;
    ASSERT_EQ(own.expert_down.count, 4);
    const int first_expert = rank / 2 * 4, column = rank % 2 * 128;
    EXPECT_EQ(own.expert_down.first.plan_n(), 256);
    for (int expert = 0; expert < 4; ++expert) {
      PackedWeight gate_up = own.expert_gate_up.items[expert], down = own.expert_down.items[expert];
      gate_up.whole_n = 512, gate_up.whole_k = 256, down.whole_n = 256, down.whole_k = 256;
      const PackedWeight& all_gate_up = whole.expert_gate_up.items[first_expert + expert];
      ExpectPart(all_gate_up, gate_up, column, 0, 0, 128);
      ExpectPart(all_gate_up, gate_up, 256 + column, 0, 128, 128);
      ExpectPart(whole.expert_down.items[first_expert + expert], down, column, 0, 0, 128);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ModelShardTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "files" : "random_numbers"; });

TEST(ModelShard, WhatCannotBeCutIsOnEveryRank) {
  const ModelShard shard = {.layout = RankLayout::TensorParallel(8), .rank = 5};
  EXPECT_EQ(shard.Inputs(1024, 128), (IndexRange{640, 128}));
  EXPECT_EQ(shard.Inputs(512, 128), (IndexRange{0, 512})) << "four segments";
  EXPECT_EQ(shard.Inputs(1000, 16), (IndexRange{0, 1000}));
  EXPECT_EQ(ModelShard::HeadsOf({640, 640}, 256), (IndexRange{2, 3}));
  EXPECT_EQ(shard.Vocabulary(41), (IndexRange{40, 1})) << "one row, which nobody reads, behind the last";
}

}  // namespace
}  // namespace foredraft
