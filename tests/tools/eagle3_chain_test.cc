// The chain of drafts of Eagle3 heads, and the drafts of the engine that serves, against the float64
// reference: random heads of every form, the trained one, and every number of drafts.

#include "tools/validate_mtp/eagle3_chain.h"

#include <iostream>

#include "absl/strings/str_format.h"
#include "engine/spec/eagle3/eagle3_drafter.h"
#include "gtest/gtest.h"
#include "tests/engine/eagle3_heads.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

// Near ties are a few drafts: the others are compared with one token each.
void ExpectAgreement(const std::string& head_dir, const MtpCheckOptions& options,
                     const std::string& target_dir = kAbacusDir) {
  const LoadedModel& model = LoadModelOnce(absl::StrCat(target_dir, "+", head_dir), "cpu");
  const absl::StatusOr<MtpCheckResult> result =
      CheckEagle3Chain(target_dir, model.config, *model.device, model.weights, options);
  ASSERT_TRUE(result.ok()) << result.status();
  for (const Boundary& boundary : result->boundaries) {
    std::cout << absl::StreamFormat("%-22s %5d rows, %d left out, %.2e of %.2e\n", boundary.name,
                                    boundary.rows, boundary.left_out, boundary.difference, boundary.allowed);
    EXPECT_TRUE(boundary.ok()) << boundary.name << ": " << boundary.difference << ", allowed "
                               << boundary.allowed;
    // Near ties are rare; a line of few rows may have one.
    EXPECT_LE(boundary.left_out, (boundary.rows + 15) / 16) << boundary.name;
  }
  EXPECT_EQ(result->boundaries.size(), 10u);
}

class Eagle3Chain : public testing::TestWithParam<HeadForm> {};

TEST_P(Eagle3Chain, AgreesWithTheReference) {
  for (int draft_len = 1; draft_len <= kMaxDraftLen; ++draft_len) {
    SCOPED_TRACE(draft_len);
    ExpectAgreement(RandomHeadDir(GetParam()),
                    {.draft_len = draft_len, .steps = 3, .seed = static_cast<uint64_t>(draft_len)});
  }
}
INSTANTIATE_TEST_SUITE_P(Heads, Eagle3Chain, testing::ValuesIn(HeadForms()),
                         [](const auto& info) { return info.param.name; });

// Its drafts are right at times, so steps of every length lie between them.
TEST(TrainedHead, AgreesWithTheReference) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    ExpectAgreement(kAbacusEagle3Dir, {.draft_len = 5, .steps = 12, .seed = seed});
  }
}

// Its tensors have a prefix.
TEST(NestedTarget, AgreesWithTheReference) {
  const std::string target_dir = NestedKimiDir();
  ExpectAgreement(RandomHeadDir(kKimiHead, target_dir), {.draft_len = 3, .steps = 6}, target_dir);
}

}  // namespace
}  // namespace foredraft
