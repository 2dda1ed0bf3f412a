// DSpark's blocks against a float64 reference from the committed tokens alone
// (tests/golden/make_dspark_golden.py): base logits, and the drafts that they give with the Markov head. The
// bounds are not fitted: they follow from the reference's own distance when it computes in BF16, as in
// golden_logits_test.cc.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/logit_distance.h"
#include "tests/golden/golden_reader.h"

namespace foredraft {
namespace {

// Where two experts are tied more closely than this, rounding a layer's input to BF16 (2^-9 of a value, in
// each of three stages) may choose the other one, which changes a block by any amount.
constexpr double kNearTie = 1.0 / 64;
constexpr int kDecodeFrom = 5;  // tokens of the prompt when the rest goes in the decode form

class DSparkGolden : public ::testing::TestWithParam<const char*> {
 protected:
  DSparkGolden()
      : golden_(ReadModelGolden(GetParam())),
        model_(LoadModelOnce(golden_.checkpoint)),
        scratch_(*model_.device, model_.config, model_.weights, 640) {}

  // t_0..t_P of a block.
  std::vector<int32_t> TokensOf(const GoldenBlock& block) const {
    const std::vector<int32_t>& ids = golden_.prompts[0].ids;
    return {ids.begin(), ids.begin() + block.position + 1};
  }

  const ModelGolden golden_;
  const LoadedModel& model_;
  FromScratch scratch_;
};

TEST_P(DSparkGolden, BlocksAreAsNearAsTheReferenceInBf16) {
  for (const bool decode_form : {false, true}) {
    LogitDistance distance, calm;
    for (const GoldenBlock& block : golden_.prompts[0].blocks) {
      const int prompt_len = decode_form ? std::min(block.position, kDecodeFrom) : block.position;
      const std::vector<float> logits = scratch_.BlockLogits(TokensOf(block), prompt_len);
      distance.Add(logits, block.logits, golden_.vocab_size);
      if (block.closest_choice >= kNearTie) calm.Add(logits, block.logits, golden_.vocab_size);
    }
    std::cout << absl::StreamFormat(
        "%s, %s form, %d rows: error over rms %.4f mean, %.4f max (reference in BF16: %.4f, %.4f)\n",
        GetParam(), decode_form ? "decode" : "prefill", distance.rows, distance.mean_error(),
        distance.largest_error, golden_.blocks_bfloat16_mean_error, golden_.blocks_bfloat16_max_error);
    EXPECT_LE(distance.mean_error(), golden_.blocks_bfloat16_mean_error);
    EXPECT_LE(calm.largest_error, golden_.blocks_bfloat16_max_error);
    EXPECT_GE(2 * calm.rows, distance.rows);
  }
}

// A draft whose lead is smaller than what rounding moves two logits may fall either way, and so may those
// after it.
TEST_P(DSparkGolden, DraftsAreTheReferences) {
  int compared = 0;
  for (const bool decode_form : {false, true}) {
    for (const GoldenBlock& block : golden_.prompts[0].blocks) {
      const int prompt_len = decode_form ? std::min(block.position, kDecodeFrom) : block.position;
      if (block.closest_choice < kNearTie) continue;
      const int count = static_cast<int>(block.drafts.size());
      const std::vector<int32_t> drafts =
          scratch_.DSparkDrafts(TokensOf(block), prompt_len, count, SamplingParams{.temperature = 0}).ids;
      for (int k = 0; k < count && block.margins[k] > 2 * golden_.blocks_bfloat16_mean_error;
           ++k, ++compared) {
        ASSERT_EQ(drafts[k], block.drafts[k]) << "draft " << k + 1 << " at " << block.position;
      }
    }
  }
  EXPECT_GT(compared, static_cast<int>(golden_.prompts[0].blocks.size()) * 3);
}

// A confidence is one more linear map of the streams that the logits are made of, so its logit may be as far
// from the reference's as theirs are, over the root of their mean square.
TEST_P(DSparkGolden, ConfidencesAreTheReferences) {
  for (const bool decode_form : {false, true}) {
    double distance = 0, bound = 0, low = 1, high = 0, square = 0;
    int compared = 0;
    std::vector<double> slopes;
    for (const GoldenBlock& block : golden_.prompts[0].blocks) {
      const int prompt_len = decode_form ? std::min(block.position, kDecodeFrom) : block.position;
      if (block.closest_choice < kNearTie) continue;
      const int count = static_cast<int>(block.drafts.size());
      const FromScratch::BlockDrafts made =
          scratch_.DSparkDrafts(TokensOf(block), prompt_len, count, SamplingParams{.temperature = 0});
      for (int k = 0; k < count; ++k, ++compared) {
        const double expected = block.confidences[k], logit = std::log(expected / (1 - expected));
        distance += std::abs(1 / (1 + std::exp(-made.confidences[k])) - expected);
        slopes.push_back(expected * (1 - expected));
        square += logit * logit;
        low = std::min(low, expected);
        high = std::max(high, expected);
        if (made.ids[k] != block.drafts[k]) break;  // the drafts after it follow another token
      }
    }
    const double rms = std::sqrt(square / compared);
    for (const double slope : slopes) bound += slope * golden_.blocks_bfloat16_mean_error * rms + 1e-6;
    std::cout << absl::StreamFormat("%s: %d confidences in %.2f..%.2f, distance %.5f, bound %.5f\n",
                                    GetParam(), compared, low, high, distance / compared, bound / compared);
    EXPECT_LE(distance, bound);
    EXPECT_GT(compared, static_cast<int>(golden_.prompts[0].blocks.size()) * 2);
    EXPECT_GT(high - low, 0.3) << "the bound would pass any constant";
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, DSparkGolden,
                         ::testing::Values("deepseek_v4_dspark", "deepseek_v4_dspark_fp4"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foredraft
