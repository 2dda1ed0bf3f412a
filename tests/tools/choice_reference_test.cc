// The choice of tokens in double against the op that serves, whose logits are off by an error.

#include "tools/validate_mtp/choice_reference.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/ops/op_rig.h"
#include "tests/ops/sample_fixture.h"

namespace foredraft {
namespace {

using reference::Choices;
using reference::PossibleChoices;
using testing::ElementsAre;

constexpr int kVocab = 300;
constexpr int kRows = 150;
constexpr int kPosition = 40;  // of the token before

struct Penalties {
  const char* name;
  float repetition, presence, frequency;
};
constexpr Penalties kPenalties[] = {
    {"none", 1, 0, 0}, {"all", 1.4f, 0.3f, 0.2f}, {"reward", 0.7f, -0.5f, -0.1f}};

SamplingParams SamplingOf(const Filters& filters, const Penalties& penalties, uint64_t seed) {
  return {.temperature = filters.temperature,
          .top_p = filters.top_p,
          .top_k = filters.top_k,
          .min_p = filters.min_p,
          .repetition_penalty = penalties.repetition,
          .presence_penalty = penalties.presence,
          .frequency_penalty = penalties.frequency,
          .seed = seed,
          .logit_bias = {{2, 1.5f}, {7, -2.0f}}};
}

const std::vector<int32_t> kPrompt = {1, 2, 3, 5, 8, 13, 21, 34};
const std::vector<int32_t> kOutput = {4, 4, 2, 9, 30, 31, 4};

SlotFixture SlotsOf(const Filters& filters, const Penalties& penalties) {
  SlotFixture slots(kRows, kVocab);
  for (int slot = 0; slot < kRows; ++slot) {
    const SamplingParams sampling = SamplingOf(filters, penalties, slot);
    SlotConstants& c = slots.constants[slot];
    c = ConstantsOf(filters, slot);
    c.repetition_penalty = sampling.repetition_penalty;
    c.presence_penalty = sampling.presence_penalty;
    c.frequency_penalty = sampling.frequency_penalty;
    c.bias_count = static_cast<int32_t>(sampling.logit_bias.size());
    std::copy(sampling.logit_bias.begin(), sampling.logit_bias.end(), c.biases);
    for (const int32_t token : kPrompt) slots.prompt_seen[slot * kVocab + token] = 1;
    for (const int32_t token : kOutput) ++slots.output_counts[slot * kVocab + token];
  }
  return slots;
}

// Every logit is off by the whole error, upwards or downwards: the op's token is a possible one, and with an
// error of rounding alone it is the best one.
TEST(ChoiceReference, HasTheOpsToken) {
  for (const double error : {0.0, 0.01, 0.3}) {
    int rows = 0, several = 0, others = 0;
    for (const Filters& filters : kFilters) {
      for (const Penalties& penalties : kPenalties) {
        SCOPED_TRACE(testing::Message() << filters.name << ", penalties " << penalties.name << ", " << error);
        Noise noise(17);
        std::vector<Row> batch;
        std::vector<reference::Vector> exact(kRows);
        for (int row = 0; row < kRows; ++row) {
          const std::vector<float> logits = noise.Floats(kVocab, 3.0f);
          exact[row] = {logits.begin(), logits.end()};
          batch.push_back({row, kPosition, logits});
          for (float& logit : batch.back().logits) {
            logit += static_cast<float>(noise.Int(0, 1) == 0 ? error : -error);
          }
        }
        OpRig rig({}, RunMode::kEager);
        const std::vector<int32_t> tokens = RunSample(rig, SlotsOf(filters, penalties), batch).tokens;
        for (int row = 0; row < kRows; ++row) {
          const Choices choices =
              PossibleChoices(SamplingOf(filters, penalties, row), {.prompt = kPrompt, .output = kOutput},
                              kPosition + 1, exact[row], error);
          EXPECT_THAT(choices.possible, testing::Contains(tokens[row])) << row;
          ++rows;
          several += choices.possible.size() > 1 ? 1 : 0;
          others += tokens[row] != choices.best ? 1 : 0;
        }
      }
    }
    std::cout << error << ": " << several << " of " << rows << " rows have several possible tokens, "
              << others << " have another one than the best\n";
    if (error == 0) {
      EXPECT_EQ(others, 0);
      EXPECT_LE(several, rows / 1000);
    } else {
      EXPECT_GT(others, 0);
    }
    if (error == 0.01) {
      EXPECT_LE(several, rows / 10);
    }
  }
}

TEST(ChoiceReference, NamesTheTokensOfANearTie) {
  const reference::ChoiceHistory none;
  const auto greedy = [&](double error) {
    return PossibleChoices({}, none, 5, {1.0, 2.0, 1.9, -3.0}, error);
  };
  EXPECT_THAT(greedy(0.04).possible, ElementsAre(1));
  EXPECT_THAT(greedy(0.06).possible, ElementsAre(1, 2));
  EXPECT_EQ(greedy(0.06).best, 1);
  // Only the first of top_k is kept, whatever the noise; the second may take its place.
  const auto first = [&](double error) {
    return PossibleChoices({.temperature = 1.0f, .top_k = 1}, none, 5, {1.0, 2.0, 1.9, -3.0}, error).possible;
  };
  EXPECT_THAT(first(0.04), ElementsAre(1));
  EXPECT_THAT(first(0.06), ElementsAre(1, 2));
  // A token without a chance is none of them.
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  EXPECT_THAT(
      PossibleChoices({.temperature = 2.0f}, none, 5, {minus_infinity, 0.0, minus_infinity}, 50).possible,
      ElementsAre(1));
}

}  // namespace
}  // namespace foredraft
