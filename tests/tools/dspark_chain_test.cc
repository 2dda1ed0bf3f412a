// The chain of `foredraft validate-mtp` on the tiny checkpoints with DSpark.

#include "tools/validate_mtp/dspark_chain.h"

#include <iostream>
#include <set>

#include "absl/strings/str_format.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model_weights.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

struct Loaded {
  std::string dir;
  ModelConfig config;
  std::unique_ptr<Device> device;
  LoadedWeights weights;
};

Loaded Load(const std::string& name) {
  Loaded model = {.dir = "tests/golden/checkpoints/" + name};
  model.config = *ReadModelConfig(model.dir + "/config.json");
  model.device = *CreateDevice("cpu", {.threads = 2});
  const std::unique_ptr<Stream> stream = model.device->CreateStream();
  model.weights = *LoadWeights(model.dir, model.config, model.config.num_nextn_predict_layers, *model.device,
                               *stream, nullptr);
  return model;
}

absl::StatusOr<MtpCheckResult> Check(const Loaded& model, const MtpCheckOptions& options) {
  return CheckDSparkChain(model.dir, model.config, *model.device, model.weights, options);
}

// The names of the boundaries that fail.
std::set<std::string> Failures(const Loaded& model, const MtpCheckOptions& options) {
  const absl::StatusOr<MtpCheckResult> result = Check(model, options);
  EXPECT_TRUE(result.ok()) << result.status();
  std::set<std::string> names;
  if (!result.ok()) return names;
  for (const Boundary& boundary : result->boundaries) {
    std::cout << absl::StreamFormat("%-24s %5d rows, %3d left out, %.2e of %.2e\n", boundary.name,
                                    boundary.rows, boundary.left_out, boundary.difference, boundary.allowed);
    if (!boundary.ok()) names.insert(boundary.name);
  }
  return names;
}

using Names = std::set<std::string>;

class DSparkChain : public testing::TestWithParam<const char*> {};

TEST_P(DSparkChain, AgreesWithTheReference) {
  const Loaded model = Load(GetParam());
  for (const int draft_len : {3, 5}) {
    EXPECT_EQ(Failures(model, {.draft_len = draft_len, .steps = 4}), Names()) << "K " << draft_len;
  }
}

TEST_P(DSparkChain, VerifiesAllDrafts) {
  const absl::StatusOr<MtpCheckResult> result = Check(Load(GetParam()), {.draft_len = 3, .steps = 4});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verified, 3 * 3 * 4);
  EXPECT_GE(result->accepted, 0 + 1 + 2 + 1 + 2 + 3 + 2 + 3 + 0 + 3 + 0 + 1);  // the drafts made right
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, DSparkChain,
                         testing::Values("deepseek_v4_dspark", "deepseek_v4_dspark_fp4"),
                         [](const auto& info) { return std::string(info.param); });

// Every boundary takes the device's own input, so the one at fault is named, besides those that the reference
// computes on its own.
TEST(DSparkChainFaults, NamesMainX) {
  Loaded model = Load("deepseek_v4_dspark");
  DSparkWeights& dspark = model.weights.Get<V4Weights>().dspark;
  dspark.main_norm = dspark.norm;
  const Names failures = Failures(model, {.draft_len = 3, .steps = 2});
  EXPECT_TRUE(failures.contains("dspark_main_x"));
  for (const char* const name : {"dspark_context_keys", "dspark_stage", "dspark_base_logits",
                                 "dspark_markov_bias", "serving drafts"}) {
    EXPECT_FALSE(failures.contains(name)) << name;
  }
}

TEST(DSparkChainFaults, NamesTheStage) {
  Loaded model = Load("deepseek_v4_dspark");
  DSparkWeights& dspark = model.weights.Get<V4Weights>().dspark;
  std::swap(dspark.stages[1].attn_norm, dspark.stages[1].ffn_norm);
  const Names failures = Failures(model, {.draft_len = 3, .steps = 2});
  EXPECT_TRUE(failures.contains("dspark_stage"));
  for (const char* const name : {"dspark_main_x", "dspark_context_keys", "dspark_base_logits",
                                 "dspark_markov_bias", "serving drafts"}) {
    EXPECT_FALSE(failures.contains(name)) << name;
  }
}

TEST(DSparkChainFaults, NamesTheMarkovHead) {
  Loaded model = Load("deepseek_v4_dspark");
  V4Weights& weights = model.weights.Get<V4Weights>();
  weights.dspark.markov_w1 = weights.embed;  // the longer table
  const Names failures = Failures(model, {.draft_len = 3, .steps = 2});
  EXPECT_TRUE(failures.contains("dspark_markov_bias"));
  for (const char* const name : {"dspark_main_x", "dspark_context_keys", "dspark_stage", "dspark_base_logits",
                                 "dspark_full_block", "serving drafts"}) {
    EXPECT_FALSE(failures.contains(name)) << name;
  }
}

TEST(DSparkChainFaults, RefusesMoreDraftsThanABlockHasRows) {
  const absl::Status status = Check(Load("deepseek_v4_dspark"), {.draft_len = 6, .steps = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "drafts: 6, allowed 1..5, dspark_block_size");
}

}  // namespace
}  // namespace foredraft
