#include "tests/golden/golden_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace foredraft {
namespace {

class GoldenReader : public testing::TestWithParam<const char*> {};

// A golden of noughts, NaN or one constant would agree with a broken engine.
TEST_P(GoldenReader, HoldsLogitsThatSaySomething) {
  const ModelGolden golden = ReadModelGolden(GetParam());
  size_t positions = 0;
  EXPECT_GT(golden.bfloat16_argmax_agreement, 0.9);
  bool any_draft = false;
  const auto expect_spread = [&](const std::vector<float>& logits, size_t rows) {
    ASSERT_EQ(logits.size(), rows * golden.vocab_size);
    for (size_t row = 0; row < rows; ++row) {
      const float* first = logits.data() + row * golden.vocab_size;
      const float* last = first + golden.vocab_size;
      ASSERT_TRUE(std::all_of(first, last, [](float logit) { return std::isfinite(logit); }));
      EXPECT_GT(*std::max_element(first, last) - *std::min_element(first, last), 2) << "row " << row;
    }
  };
  for (const GoldenPrompt& prompt : golden.prompts) {
    SCOPED_TRACE(prompt.name);
    positions += prompt.ids.size();
    expect_spread(prompt.logits, prompt.ids.size());
    for (const GoldenBlock& block : prompt.blocks) {
      SCOPED_TRACE(block.position);
      expect_spread(block.logits, block.drafts.size());
      EXPECT_EQ(block.margins.size(), block.drafts.size());
      EXPECT_EQ(block.confidences.size(), block.drafts.size());
      EXPECT_GT(*std::min_element(block.margins.begin(), block.margins.end()), 0);
      EXPECT_LE(block.prompt_len, block.position);
      any_draft = true;
    }
    for (const GoldenMtp& mtp : prompt.mtp) {
      EXPECT_EQ(mtp.first_position, mtp.module);
      expect_spread(mtp.logits, prompt.ids.size() - mtp.first_position);
      any_draft = true;
    }
  }
  EXPECT_TRUE(any_draft);
  EXPECT_GE(positions, 100u);
}

INSTANTIATE_TEST_SUITE_P(, GoldenReader,
                         testing::Values("abacus", "grouped", "fp8", "deepseek_v4", "deepseek_v4_fp4",
                                         "deepseek_v4_f32", "deepseek_v4_dspark", "deepseek_v4_dspark_fp4"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foredraft
