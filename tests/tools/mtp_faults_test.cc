// `foredraft validate-mtp` finds faults in what makes drafts, each compiled into the product's source
// (tests/tools/faults.cmake), and passes without them. None of them changes a token.

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/eagle3_heads.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"
#include "tests/tools/faults.h"
#include "tools/validate_mtp/dspark_chain.h"
#include "tools/validate_mtp/eagle3_chain.h"
#include "tools/validate_mtp/mtp_chain.h"

namespace foredraft {
namespace {

using Names = std::vector<std::string>;

struct FaultCase {
  std::string fault;
  Names found_by;     // boundaries that fail
  Names checkpoints;  // under tests/golden/checkpoints; all but the first one in the full tier
};

// Of those that share a way of drafting, the first one stands for all in the fast tier.
const Names kV3 = {"grouped", "fp8", "int4", "fp4", "nvfp4", "joyai_llm_flash", "glm4_moe_lite"};
const Names kV4 = {"deepseek_v4", "deepseek_v4_fp4", "deepseek_v4_f32"};
const Names kSparse = {"deepseek_v32_long", "glm_moe_dsa_long"};
const Names kSharing = {"glm_moe_dsa_long", "glm_moe_dsa"};
const Names kDSparkModels = {"deepseek_v4_dspark", "deepseek_v4_dspark_fp4"};

const FaultCase kCases[] = {
    {"recycled output", {"serving drafts"}, kV3},
    {"recycled output", {"serving drafts"}, kV4},
    {"recycled position", {"serving drafts"}, kV3},
    {"recycled position", {"serving drafts"}, kV4},
    {"no rows without drafts", {"serving cache"}, kV3},
    {"no rows without drafts", {"serving cache"}, kV4},
    {"lost boundary", {"serving cache"}, kV3},
    {"lost boundary", {"serving cache"}, kV4},
    {"lost boundary", {"serving cache"}, kSparse},
    {"halves of eh_proj", {"mtp_forward_tail", "mtp_full_chain"}, kV3},
    {"bias of the indexer's keys", {"mtp_selected_positions"}, kSparse},
    {"weights of the indexer's heads", {"mtp_selected_positions"}, kSparse},
    {"lists that are not shared", {"mtp_selected_positions"}, kSharing},
    {"row k of the block", {"serving drafts"}, kDSparkModels},
    {"Markov head behind the anchor", {"serving drafts"}, kDSparkModels},
    {"noise id", {"serving drafts"}, kDSparkModels},
    {"no last stage", {"serving drafts"}, kDSparkModels},
    {"main_norm", {"dspark_main_x", "dspark_full_block"}, kDSparkModels},
    {"stage 0's wkv for all stages", {"dspark_context_keys", "dspark_full_block"}, kDSparkModels},
    {"keys of all stages but the last", {"dspark_context_keys"}, kDSparkModels},
    {"taps of other layers", {"dspark_taps", "dspark_full_block"}, kDSparkModels},
};

bool FullTier() { return std::getenv("FOREDRAFT_FULL") != nullptr; }

// The boundaries that fail while the code has the fault; "" has none.
Names Failures(const std::string& name, const std::string& fault, uint64_t seed) {
  const std::string dir = "tests/golden/checkpoints/" + name;
  const ModelConfig config = *ReadModelConfig(dir + "/config.json");
  const std::unique_ptr<Device> device = *CreateDevice("cpu", {.threads = 2});
  const std::unique_ptr<Stream> stream = device->CreateStream();
  const bool dspark = config.dspark.has_value();
  const LoadedWeights weights =
      *LoadWeights(dir, config, dspark ? config.num_nextn_predict_layers : 1, *device, *stream, nullptr);
  present_fault = fault;
  const absl::StatusOr<MtpCheckResult> result = (dspark ? CheckDSparkChain : CheckMtpChain)(
      dir, config, *device, weights, {.draft_len = 3, .steps = 3, .seed = seed});
  present_fault = "";
  EXPECT_TRUE(result.ok()) << result.status();
  Names failures;
  if (!result.ok()) return failures;
  for (const Boundary& boundary : result->boundaries) {
    if (!boundary.ok()) failures.push_back(boundary.name);
  }
  return failures;
}

TEST(MtpFaults, NothingFailsWithoutOne) {
  Names all;
  for (const Names& names : {kV3, kV4, kSparse, kSharing, kDSparkModels}) {
    all.insert(all.end(), names.begin(), FullTier() ? names.end() : names.begin() + 1);
  }
  for (const std::string& name : all) {
    for (uint64_t seed = 1; seed <= (FullTier() ? 3 : 1); ++seed) {
      EXPECT_THAT(Failures(name, "", seed), testing::IsEmpty()) << name << ", seed " << seed;
    }
  }
}

class MtpFault : public testing::TestWithParam<FaultCase> {};

TEST_P(MtpFault, IsFoundAndChangesNoToken) {
  const auto& [fault, found_by, checkpoints] = GetParam();
  const size_t count = FullTier() ? checkpoints.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    for (uint64_t seed = 1; seed <= (FullTier() ? 3 : 1); ++seed) {
      const Names failures = Failures(checkpoints[i], fault, seed);
      for (const std::string& boundary : found_by) {
        EXPECT_THAT(failures, testing::Contains(boundary)) << checkpoints[i] << ", seed " << seed;
      }
      for (const char* const tokens : {"tokens", "serving tokens", "serving acceptance"}) {
        EXPECT_THAT(failures, testing::Not(testing::Contains(tokens))) << checkpoints[i] << ", seed " << seed;
      }
      std::cout << checkpoints[i] << ", seed " << seed << ": " << absl::StrJoin(failures, ", ") << "\n";
    }
  }
}

std::string NameOf(const testing::TestParamInfo<FaultCase>& info) {
  std::string name = info.param.fault + " of " + info.param.checkpoints.front();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Cases, MtpFault, testing::ValuesIn(kCases), NameOf);

struct HeadFaultCase {
  const char* fault;
  const char* form;      // of the head that shows it
  const char* found_by;  // boundary that fails
};

const HeadFaultCase kHeadCases[] = {
    {"taps one layer off", "plain", "eagle3_fused"},
    {"taps in another order", "plain", "eagle3_fused"},
    {"a norm of taps left out", "normed", "eagle3_fused"},
    {"the norm over taps left out", "residual", "eagle3_fused"},
    {"halves of x", "plain", "eagle3_layer"},
    {"norms of the halves", "plain", "eagle3_layer"},
    {"residual of the other kind", "plain", "eagle3_layer"},
    {"residual of the other kind", "residual", "eagle3_layer"},
    {"recycled rows normed or not", "plain", "eagle3_full_chain"},
    {"recycled rows normed or not", "normed", "eagle3_full_chain"},
    {"the target's theta", "plain", "eagle3_layer"},
    {"mscale's quotient", "plain", "eagle3_layer"},
    {"the target's head", "plain", "eagle3_logits"},
    {"no norm before the head", "plain", "eagle3_logits"},
    {"recycled output", "plain", "serving drafts"},
    {"recycled position", "plain", "serving cache"},
    {"no rows without drafts", "plain", "serving cache"},
    {"lost boundary", "plain", "serving cache"},
    {"noise of the first draft", "small_vocabulary", "serving sampled drafts"},
    {"drafts that are not counted", "small_vocabulary", "serving sampled drafts"},
};

Names HeadFailures(const std::string& form, const std::string& fault) {
  const auto found = std::find_if(HeadForms().begin(), HeadForms().end(),
                                  [&](const HeadForm& row) { return row.name == form; });
  const LoadedModel& model = LoadModelOnce(absl::StrCat(kAbacusDir, "+", RandomHeadDir(*found)), "cpu");
  present_fault = fault;
  const absl::StatusOr<MtpCheckResult> result =
      CheckEagle3Chain(kAbacusDir, model.config, *model.device, model.weights, {.draft_len = 3, .steps = 2});
  present_fault = "";
  EXPECT_TRUE(result.ok()) << result.status();
  Names failures;
  for (const Boundary& boundary : result->boundaries) {
    if (!boundary.ok()) failures.push_back(boundary.name);
  }
  return failures;
}

TEST(HeadFaults, AreFoundAndNothingFailsWithoutOne) {
  for (const HeadForm& form : HeadForms()) EXPECT_THAT(HeadFailures(form.name, ""), testing::IsEmpty());
  for (const HeadFaultCase& c : kHeadCases) {
    const Names failures = HeadFailures(c.form, c.fault);
    EXPECT_THAT(failures, testing::Contains(c.found_by)) << c.fault << " of " << c.form;
    for (const char* const tokens : {"serving tokens", "serving acceptance"}) {
      EXPECT_THAT(failures, testing::Not(testing::Contains(tokens))) << c.fault << " of " << c.form;
    }
    std::cout << c.fault << " of " << c.form << ": " << absl::StrJoin(failures, ", ") << "\n";
  }
}

}  // namespace
}  // namespace foredraft
