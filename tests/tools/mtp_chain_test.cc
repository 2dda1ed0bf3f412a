// The MTP chain of `foredraft validate-mtp` on the tiny checkpoints of V3 and V4.

#include "tools/validate_mtp/mtp_chain.h"

#include <iostream>

#include "absl/strings/str_format.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model_weights.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

class MtpChain : public ::testing::TestWithParam<const char*> {};

TEST_P(MtpChain, AgreesWithTheReference) {
  const std::string dir = std::string("tests/golden/checkpoints/") + GetParam();
  const ModelConfig config = *ReadModelConfig(dir + "/config.json");
  const std::unique_ptr<Device> device = *CreateDevice("cpu", {.threads = 2});
  const std::unique_ptr<Stream> stream = device->CreateStream();
  const LoadedWeights weights = *LoadWeights(dir, config, 1, *device, *stream, nullptr);
  const absl::StatusOr<MtpCheckResult> result =
      CheckMtpChain(dir, config, *device, weights, {.draft_len = 3, .steps = 4});
  ASSERT_TRUE(result.ok()) << result.status();
  for (const Boundary& boundary : result->boundaries) {
    std::cout << absl::StreamFormat("%-36s %5d rows, %3d left out, %.2e of %.2e\n", boundary.name,
                                    boundary.rows, boundary.left_out, boundary.difference, boundary.allowed);
    EXPECT_TRUE(boundary.ok()) << boundary.name << ": " << boundary.difference << ", allowed "
                               << boundary.allowed;
  }
  EXPECT_EQ(result->verified, 3 * 3 * 4);
  EXPECT_GE(result->accepted, 0 + 1 + 2 + 1 + 2 + 3 + 2 + 3 + 0 + 3 + 0 + 1);  // the drafts made right
  EXPECT_LT(result->accepted, result->verified);
}

// Every boundary takes the device's own input, so the one at fault is named, and those behind it agree.
TEST(MtpChainOfV4, NamesTheBoundaryThatIsWrong) {
  const std::string dir = "tests/golden/checkpoints/deepseek_v4";
  const ModelConfig config = *ReadModelConfig(dir + "/config.json");
  const std::unique_ptr<Device> device = *CreateDevice("cpu", {.threads = 2});
  const std::unique_ptr<Stream> stream = device->CreateStream();
  LoadedWeights weights = *LoadWeights(dir, config, 1, *device, *stream, nullptr);
  V4ModuleWeights& module = weights.Get<V4Weights>().modules.front();
  std::swap(module.enorm, module.hnorm);
  const absl::StatusOr<MtpCheckResult> result =
      CheckMtpChain(dir, config, *device, weights, {.draft_len = 1, .steps = 1});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->ok());
  for (const Boundary& boundary : result->boundaries) {
    const bool behind =
        boundary.name == "mtp_forward_tail" || boundary.name == "mtp_full_chain" || boundary.name == "drafts";
    if (behind) continue;
    EXPECT_EQ(boundary.ok(), boundary.name != "mtp_projection_impl") << boundary.name;
  }
}

TEST(MtpChainOfV4, RefusesAModelWithShortSequences) {
  const std::string dir = "tests/golden/checkpoints/deepseek_v4";
  ModelConfig config = *ReadModelConfig(dir + "/config.json");
  config.max_position_embeddings = 20;
  const std::unique_ptr<Device> device = *CreateDevice("cpu", {.threads = 2});
  const absl::Status status =
      CheckMtpChain(dir, config, *device, LoadedWeights(), {.draft_len = 3, .steps = 4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("max_position_embeddings: 20, allowed at least 42"), std::string::npos)
      << status;
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, MtpChain,
                         ::testing::Values("deepseek_v4", "deepseek_v4_fp4", "deepseek_v4_f32", "grouped",
                                           "fp8", "int4", "joyai_llm_flash", "glm4_moe_lite", "deepseek_v32",
                                           "deepseek_v32_long", "glm_moe_dsa", "glm_moe_dsa_long"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foredraft
