// The part of `foredraft validate-mtp` that runs a server's engine passes with the drafters that serve.
// mtp_faults_test.cc has drafters with faults.

#include "tools/validate_mtp/serving_drafter.h"

#include <map>
#include <string>

#include "engine/kinds/read_model_config.h"
#include "engine/model_weights.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

// The boundaries by their names.
std::map<std::string, Boundary> Check(const std::string& dir, const ServingCheckOptions& options) {
  const ModelConfig config = *ReadModelConfig(dir + "/config.json");
  const std::unique_ptr<Device> device = *CreateDevice("cpu", {.threads = 2});
  const std::unique_ptr<Stream> stream = device->CreateStream();
  const LoadedWeights weights =
      *LoadWeights(dir, config, config.num_nextn_predict_layers, *device, *stream, nullptr);
  std::vector<std::vector<int32_t>> prompts = {{3, 1, 4, 1, 5}, {9}, {}};
  for (int i = 0; i < 40; ++i) prompts.back().push_back(2 * i % config.vocab_size);
  const auto boundaries = CheckServingDrafter(*device, config, weights, prompts, options);
  EXPECT_TRUE(boundaries.ok()) << boundaries.status();
  std::map<std::string, Boundary> by_name;
  if (boundaries.ok()) {
    for (const Boundary& boundary : *boundaries) by_name[boundary.name] = boundary;
  }
  return by_name;
}

class ServingDrafter : public testing::TestWithParam<const char*> {};

TEST_P(ServingDrafter, AgreesWithTheCommittedTokens) {
  for (const int draft_len : {1, 3}) {
    const auto boundaries = Check(GetParam(), {.draft_len = draft_len, .steps = 4});
    ASSERT_EQ(boundaries.size(), 4u);
    for (const auto& [name, boundary] : boundaries) {
      EXPECT_TRUE(boundary.ok()) << name << ": " << boundary.difference;
      EXPECT_EQ(boundary.rows, 2 * 6 + 4) << name;  // the last prompt ends in the third iteration
    }
  }
}

// A step without drafts and one behind it are there, however few steps are asked for.
TEST_P(ServingDrafter, HasAStepWithoutDraftsAndOneBehindIt) {
  for (const auto& [name, boundary] : Check(GetParam(), {.draft_len = 2, .steps = 1})) {
    EXPECT_TRUE(boundary.ok()) << name << ": " << boundary.difference;
    EXPECT_EQ(boundary.rows, 2 * 5 + 3) << name;
  }
}

// A run that would end in a step without drafts has one more.
TEST_P(ServingDrafter, EndsInAStepWithDrafts) {
  for (const auto& [name, boundary] : Check(GetParam(), {.draft_len = 2, .steps = 6})) {
    EXPECT_TRUE(boundary.ok()) << name << ": " << boundary.difference;
    EXPECT_EQ(boundary.rows, 2 * 9 + 7) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ServingDrafter,
                         testing::Values("deploy/models/abacus", "tests/golden/checkpoints/deepseek_v4",
                                         "tests/golden/checkpoints/deepseek_v4_dspark",
                                         "tests/golden/checkpoints/glm_moe_dsa_long"),
                         [](const auto& info) {
                           return std::string(info.param).substr(std::string(info.param).rfind('/') + 1);
                         });

}  // namespace
}  // namespace foredraft
