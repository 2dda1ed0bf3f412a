// A spent thinking budget ends the thought: in verify_drafts, accept_first_token and sample, by the tokens
// before a row alone. The reference applies the rule token by token, without drafts.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/slot_fixture.h"

namespace foredraft {
namespace {

using Ids = std::vector<int32_t>;

constexpr int kVocab = 24;
constexpr int kBegin = 20;
constexpr int kEnd = 21;
constexpr int kK = 3;
constexpr int kPromptLen = 10;

struct Budget {
  int limit;
  Ids end_ids;
};

SlotFixture OneSlot(const Budget& budget, bool prompt_thinks) {
  SlotFixture slots(1, kVocab);
  SlotConstants& c = slots.constants[0];
  c.thinking = {.begin = kBegin, .end = kEnd};
  c.prompt_len = kPromptLen;
  c.thought_limit = budget.limit;
  c.thought_end_count = static_cast<int32_t>(budget.end_ids.size());
  std::copy(budget.end_ids.begin(), budget.end_ids.end(), c.thought_end_ids);
  slots.progress[0] = {.length = kPromptLen,
                       .last_token = 1,
                       .finished = 0,
                       .active = 1,
                       .thought = {.phase = prompt_thinks ? Phase::kThinking : Phase::kAnswer}};
  return slots;
}

// What the model chooses behind a prefix: any token, the marks more often than the others.
int32_t Choice(const Ids& prefix) {
  uint32_t hash = 2166136261u;
  for (const int32_t id : prefix) hash = (hash ^ static_cast<uint32_t>(id + 1)) * 16777619u;
  hash ^= hash >> 15;
  if (hash % 9 == 0) return kBegin;
  if (hash % 9 == 1) return kEnd;
  return static_cast<int32_t>(hash / 9 % 20);
}

// The rule as docs/speculation.md section 2 says it.
Ids Expected(const Budget& budget, bool prompt_thinks, int count) {
  Ids output;
  bool thinks = prompt_thinks;
  int thought = 0;
  while (static_cast<int>(output.size()) < count) {
    int32_t token = Choice(output);
    if (thinks && thought >= budget.limit && !budget.end_ids.empty()) {
      token = budget.end_ids[std::min<size_t>(thought - budget.limit, budget.end_ids.size() - 1)];
    }
    if (thinks && token != kBegin && token != kEnd) ++thought;
    if (token == kBegin) thinks = true;
    if (token == kEnd) thinks = false;
    output.push_back(token);
  }
  return output;
}

// Decode steps with drafts of which about `right_percent` are right, until the output has `count` tokens.
Ids Decode(SlotFixture slots, const Ids& expected, int count, int right_percent, uint32_t seed) {
  std::minstd_rand random(seed);
  Ids output;
  while (static_cast<int>(output.size()) < count) {
    SlotDrafts& drafts = slots.drafts[0];
    drafts.draft_count = kK;
    for (int j = 0; j < kK; ++j) {
      const size_t at = output.size() + static_cast<size_t>(j);
      const bool right = static_cast<int>(random() % 100) < right_percent && at < expected.size();
      drafts.tokens[j] = right ? expected[at] : static_cast<int32_t>(random() % kVocab);
    }
    Ids prefix = output, target;
    for (int j = 0; j <= kK; ++j) {
      target.push_back(Choice(prefix));
      if (j < kK) prefix.push_back(drafts.tokens[j]);
    }
    OpRig rig({}, RunMode::kEager);
    const SlotArrays arrays = slots.Put(rig);
    const VerifyDraftsParams verify{.outputs = rig.Poisoned<StepOutput>(1),
                                    .target_ids = rig.Put(target),
                                    .relaxed = rig.Put(Ids(kK + 1)),
                                    .live_slots = rig.Put(Ids{0}),
                                    .slots = arrays,
                                    .bucket = 1,
                                    .draft_len = kK,
                                    .first_rows = nullptr};
    rig.Run([&] { rig.ops().verify_drafts(rig.stream(), verify); });
    slots.Get(rig, arrays);
    const StepOutput step = rig.Get(verify.outputs, 1)[0];
    EXPECT_GT(step.emitted_count, 0);
    EXPECT_EQ(step.relaxed_count, 0);
    output.insert(output.end(), step.token_ids, step.token_ids + step.emitted_count);
    if (step.emitted_count == 0) break;
  }
  output.resize(static_cast<size_t>(count));
  return output;
}

std::vector<Budget> Budgets() {
  std::vector<Budget> budgets = {{0, {}}};
  for (int limit = 0; limit <= kK + 2; ++limit) {
    budgets.push_back({limit, {kEnd}});
    budgets.push_back({limit, {5, 6, 5, 7, kEnd}});
    Ids longest(kMaxThoughtEndIds, 9);
    longest.back() = kEnd;
    budgets.push_back({limit, longest});
  }
  return budgets;
}

TEST(ThinkingBudget, TokensAreThoseWithoutDrafts) {
  constexpr int kCount = 60;
  int differ = 0;
  for (const Budget& budget : Budgets()) {
    for (const bool thinks : {false, true}) {
      SCOPED_TRACE(
          absl::StrCat("limit ", budget.limit, ", ", budget.end_ids.size(), " end ids, prompt ", thinks));
      const Ids expected = Expected(budget, thinks, kCount);
      differ += expected != Expected({0, {}}, thinks, kCount) ? 1 : 0;
      for (const int right_percent : {0, 60, 100}) {
        EXPECT_EQ(Decode(OneSlot(budget, thinks), expected, kCount, right_percent, 7u), expected);
      }
    }
  }
  EXPECT_GT(differ, 20) << "budgets that change nothing show nothing";
}

// The row that forces a token takes no other one, however likely.
TEST(ThinkingBudget, AForcedRowIsNeverRelaxed) {
  SlotFixture slots = OneSlot({1, {kEnd}}, /*prompt_thinks=*/true);
  slots.rule = {.relaxed_topk = 4, .relaxed_delta = 1.0f};
  slots.drafts[0].draft_count = kK;
  const Ids drafts = {2, 3, 4};
  std::copy(drafts.begin(), drafts.end(), slots.drafts[0].tokens);
  OpRig rig({}, RunMode::kEager);
  const SlotArrays arrays = slots.Put(rig);
  const VerifyDraftsParams verify{.outputs = rig.Poisoned<StepOutput>(1),
                                  .target_ids = rig.Put(Ids{1, 1, 1, 1}),
                                  .relaxed = rig.Put(Ids{1, 1, 1, 0}),
                                  .live_slots = rig.Put(Ids{0}),
                                  .slots = arrays,
                                  .bucket = 1,
                                  .draft_len = kK,
                                  .first_rows = nullptr};
  rig.Run([&] { rig.ops().verify_drafts(rig.stream(), verify); });
  const StepOutput step = rig.Get(verify.outputs, 1)[0];
  EXPECT_EQ(Ids(step.token_ids, step.token_ids + step.emitted_count), (Ids{2, kEnd}));
  EXPECT_EQ(step.relaxed_count, 1);
}

TEST(ThinkingBudget, TheFirstTokenIsForcedTooAndAnUnusableRowIsNot) {
  struct Case {
    const char* name;
    int limit;
    bool thinks, behind_gate;
    int32_t chosen, expected;
  };
  const Case cases[] = {{"at once", 0, true, false, 4, kEnd},
                        {"not spent", 1, true, false, 4, 4},
                        {"outside of a thought", 0, false, false, 4, 4},
                        {"in the grammar", 0, true, true, 4, 4},
                        {"unusable", 0, true, false, kNoToken, kNoToken}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SlotFixture slots = OneSlot({c.limit, {kEnd}}, c.thinks);
    slots.constants[0].constrained = c.behind_gate ? 1 : 0;
    slots.progress[0].gate = Gate::kBehind;
    OpRig rig({}, RunMode::kEager);
    const SlotArrays arrays = slots.Put(rig);
    const AcceptFirstTokenParams params{.outputs = rig.Poisoned<StepOutput>(1),
                                        .tokens = rig.Put(Ids{c.chosen}),
                                        .slot_ids = rig.Put(Ids{0}),
                                        .slots = arrays,
                                        .count = 1};
    rig.Run([&] { rig.ops().accept_first_token(rig.stream(), params); });
    slots.Get(rig, arrays);
    const StepOutput output = rig.Get(params.outputs, 1)[0];
    if (c.expected == kNoToken) {
      EXPECT_EQ(output.nonfinite, 1);
      EXPECT_EQ(output.emitted_count, 0);
      continue;
    }
    EXPECT_EQ(output.token_ids[0], c.expected);
    EXPECT_EQ(slots.progress[0].last_token, c.expected);
    EXPECT_EQ(slots.progress[0].thought.phase == Phase::kThinking, c.thinks && c.expected != kEnd);
    EXPECT_EQ(slots.progress[0].thought.count, c.thinks && c.expected != kEnd ? 1 : 0);
  }
}

// Rows of `sample`: the token and the logprob are those of the forced one; rows of drafts go on from the
// drafts.
TEST(ThinkingBudget, SampleForcesRowsAndDraftsAndGivesTheirLogprobs) {
  const Budget budget{2, {5, 6, kEnd}};
  for (const float temperature : {0.0f, 0.8f}) {
    SlotFixture slots = OneSlot(budget, /*prompt_thinks=*/true);
    slots.constants[0].temperature = temperature;
    slots.constants[0].logprob_count = 0;
    OpRig rig({}, RunMode::kEager);
    std::vector<float> logits(4 * kVocab, 0.0f);
    for (int row = 0; row < 4; ++row) logits[row * kVocab + 3] = 9.0f;
    logits[3 * kVocab + 6] = -2.0f;
    const SlotArrays arrays = slots.Put(rig);
    const SampleParams params{.out = rig.Poisoned<int32_t>(4),
                              .logprobs = rig.Poisoned<LogprobOutput>(4),
                              .logits = {rig.Put(logits), 4, kVocab, kVocab},
                              .index = {rig.Put(Ids{0, 0, 0, 0}), rig.Put(Ids{10, 11, 12, 13}), 4},
                              .ids = rig.Put(Ids{1, 3, 3, 5}),
                              .row_in_slot = rig.Put(Ids{0, 1, 2, 3}),
                              .stored_drafts = 0,
                              .slots = arrays,
                              .scratch = rig.Poisoned<float>(4 * kVocab)};
    rig.Run([&] { rig.ops().sample(rig.stream(), params); });
    const Ids out = rig.Get(params.out, 4);
    EXPECT_EQ(out[2], 5);  // two thinking tokens before it
    EXPECT_EQ(out[3], 6);  // and the first end id
    const std::vector<LogprobOutput> logprobs = rig.Get(params.logprobs, 4);
    EXPECT_EQ(logprobs[3].token_id, 6);
    EXPECT_LT(logprobs[3].logprob, -10.0f);

    slots.drafts[0].draft_count = 3;
    std::copy_n(Ids{3, 3, 5}.begin(), 3, slots.drafts[0].tokens);
    const SampleParams draft{.out = rig.Poisoned<int32_t>(1),
                             .logprobs = nullptr,
                             .logits = {rig.Put(logits), 1, kVocab, kVocab},
                             .index = {rig.Put(Ids{0}), rig.Put(Ids{13}), 1},
                             .ids = rig.Put(Ids{5}),
                             .row_in_slot = nullptr,
                             .stored_drafts = 3,
                             .slots = slots.Put(rig),
                             .scratch = rig.Poisoned<float>(kVocab)};
    rig.Run([&] { rig.ops().sample(rig.stream(), draft); });
    EXPECT_EQ(rig.Get(draft.out, 1)[0], 6);
  }
}

}  // namespace
}  // namespace foredraft
