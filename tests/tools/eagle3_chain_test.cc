// The chain of drafts of Eagle3 heads against the float64 reference: random heads of every form.

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

class Eagle3Chain : public testing::TestWithParam<HeadForm> {};

TEST_P(Eagle3Chain, AgreesWithTheReference) {
  const LoadedModel model =
      LoadModel(absl::StrCat(kAbacusDir, "+", RandomHeadDir(GetParam())), "cpu", {}, {.threads = 2});
  const absl::StatusOr<MtpCheckResult> result =
      CheckEagle3Chain(kAbacusDir, model.config, *model.device, model.weights, {.draft_len = 7, .steps = 3});
  ASSERT_TRUE(result.ok()) << result.status();
  for (const Boundary& boundary : result->boundaries) {
    std::cout << absl::StreamFormat("%-20s %5d rows, %.2e of %.2e\n", boundary.name, boundary.rows,
                                    boundary.difference, boundary.allowed);
    EXPECT_TRUE(boundary.ok()) << boundary.name << ": " << boundary.difference << ", allowed "
                               << boundary.allowed;
  }
}
INSTANTIATE_TEST_SUITE_P(Heads, Eagle3Chain, testing::ValuesIn(HeadForms()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foredraft
