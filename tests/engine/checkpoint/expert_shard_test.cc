// A rank loads the experts of its own groups only.

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/model_description.h"
#include "engine/checkpoint/model_shard.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tests/engine/checkpoint/fake_device.h"
#include "tools/synth/synth.h"

namespace foredraft {
namespace {

constexpr char kConfig[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 400, "hidden_size": 64, "num_hidden_layers": 3,
  "num_nextn_predict_layers": 1, "first_k_dense_replace": 1, "intermediate_size": 96, "moe_intermediate_size": 48,
  "n_routed_experts": 64, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
  "routed_scaling_factor": 2.5, "num_attention_heads": 2, "q_lora_rank": 32, "kv_lora_rank": 32,
  "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20, "max_position_embeddings": 512,
  "bos_token_id": 0, "eos_token_id": 1})";

struct Loaded {
  FakeDevice device;
  V3Weights weights;
  int64_t read_bytes = 0;
};

class ExpertShardTest : public ::testing::Test {
 protected:
  ExpertShardTest() {
    const std::string dir = MakeTestDir("shards");
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
    int64_t total = 0;
    const auto progress = [&](int64_t done_bytes, int64_t total_bytes) {
      loaded->read_bytes = done_bytes;
      total = total_bytes;
    };
    auto weights =
        As<V3Weights>(LoadWeights(checkpoint_, config_, 1, loaded->device, stream, progress, shard));
    EXPECT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(loaded->read_bytes, total);
    loaded->weights = *std::move(weights);
    return loaded;
  }

  std::string checkpoint_;
  ModelConfig config_;
};

TEST_F(ExpertShardTest, ARankReadsAndHoldsItsPartOfTheExpertsAndTheRest) {
  const auto all = Load({});
  int64_t expert_elements = 0;
  const ModelDescription description = DescribeModel(config_, 1);
  for (const TensorSpec& spec : description.tensors) {
    if (spec.expert >= 0) expert_elements += spec.element_count();
  }
  const int64_t expert_file_bytes = expert_elements * int64_t{sizeof(bf16)};
  const int64_t expert_device_bytes = expert_elements * int64_t{sizeof(float)};  // as the fake packs them
  ASSERT_GT(expert_file_bytes, all->read_bytes * 8 / 10) << "mostly experts, or the test says little";
  for (const int ranks : {1, 2, 4, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto part = Load({.layout = RankLayout::DataParallel(ranks), .rank = rank});
      const int64_t file_bytes = all->read_bytes - expert_file_bytes + expert_file_bytes / ranks;
      const auto all_bytes = static_cast<int64_t>(all->device.allocated_bytes());
      const int64_t device_bytes = all_bytes - expert_device_bytes + expert_device_bytes / ranks;
      EXPECT_EQ(part->read_bytes, file_bytes) << "rank " << rank << " of " << ranks;
      EXPECT_NEAR(static_cast<double>(part->device.allocated_bytes()), static_cast<double>(device_bytes),
                  0.05 * static_cast<double>(device_bytes))
          << "rank " << rank << " of " << ranks;
    }
  }
}

TEST_F(ExpertShardTest, EveryExpertIsOnOneRankUnchanged) {
  const auto all = Load({});
  for (const int ranks : {2, 4, 8}) {
    int next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto part = Load({.layout = RankLayout::DataParallel(ranks), .rank = rank});
      const MoeWeights& here = part->weights.layers[2].moe;
      const MoeWeights& there = all->weights.layers[2].moe;
      ASSERT_EQ(here.expert_gate_up.count, here.expert_down.count);
      for (int i = 0; i < here.expert_gate_up.count; ++i, ++next) {
        const PackedWeight& gate_up = here.expert_gate_up.items[i];
        const PackedWeight& down = here.expert_down.items[i];
        EXPECT_EQ(std::memcmp(gate_up.data, there.expert_gate_up.items[next].data,
                              sizeof(float) * gate_up.n * gate_up.k),
                  0)
            << "expert " << next;
        EXPECT_EQ(std::memcmp(down.data, there.expert_down.items[next].data, sizeof(float) * down.n * down.k),
                  0)
            << "expert " << next;
      }
    }
    EXPECT_EQ(next, 64);
  }
}

// A rank's experts are those of its canonical slices: else partial sums would not add up to the same bits.
TEST(ExpertShard, HoldsWholeGroups) {
  for (const int experts : {4, 8, 13, 64, 256}) {
    for (const int ranks : {1, 2, 4, 8}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const ExpertShard shard = {.rank = rank, .size = ranks};
        const int end_slice = shard.first_slice() + shard.slice_count();
        EXPECT_EQ(shard.first_expert(experts), shard.first_slice() * experts / 8);
        EXPECT_EQ(shard.first_expert(experts) + shard.expert_count_here(experts), end_slice * experts / 8);
      }
      EXPECT_EQ((ExpertShard{.rank = ranks, .size = ranks}.first_slice()), 8);
    }
  }
}

}  // namespace
}  // namespace foredraft
