// The slot ops on constrained slots (docs/structured-output.md section 5): which rows have masks, which slots
// a step holds, where the gate ends a step.

#include <algorithm>
#include <string>
#include <vector>

#include "tests/ops/op_rig.h"
#include "tests/ops/slot_fixture.h"

namespace foredraft {
namespace {

using Ids = std::vector<int32_t>;

constexpr int kVocab = 32;
constexpr int kBegin = 20;
constexpr int kEnd = 21;
constexpr int kTrigger = 22;
constexpr int kStop = 23;

// One constrained slot at position 10 with three drafts.
SlotFixture OneSlot(Gate gate, const Ids& drafts = {5, 6, 7}) {
  SlotFixture slots(1, kVocab);
  SlotConstants& c = slots.constants[0];
  c.thinking.begin = kBegin;
  c.thinking.end = kEnd;
  c.constrained = 1;
  c.stop_id_count = 1;
  c.stop_ids[0] = kStop;
  slots.progress[0] = {.length = 10,
                       .last_token = 1,
                       .finished = 0,
                       .active = 1,
                       .thought = {.phase = gate == Gate::kThinking ? Phase::kThinking : Phase::kAnswer},
                       .gate = gate};
  slots.drafts[0].draft_count = static_cast<int32_t>(drafts.size());
  std::copy(drafts.begin(), drafts.end(), slots.drafts[0].tokens);
  return slots;
}

SlotStepMasks Masks(const Ids& indices) {
  SlotStepMasks masks = {.count = static_cast<int32_t>(indices.size()), .mask_indices = {}};
  std::copy(indices.begin(), indices.end(), masks.mask_indices);
  return masks;
}

constexpr SlotStepMasks kNone = {.count = 0, .mask_indices = {}};
constexpr SlotStepMasks kHold = {.count = -1, .mask_indices = {}};

struct Stepped {
  Ids ids, row_slots, row_masks;
  StepOutput output;
  SlotFixture slots;

  Ids tokens() const { return {output.token_ids, output.token_ids + output.emitted_count}; }
};

// decode_rows, then verify_drafts with the target's tokens, K = 3.
Stepped Step(SlotFixture slots, const SlotStepMasks& masks, const Ids& target, const Ids& relaxed = Ids(4)) {
  constexpr int kRows = 4;
  OpRig rig({}, RunMode::kReplayed);
  SlotArrays arrays = slots.Put(rig);
  arrays.step_masks = rig.Put(std::vector<SlotStepMasks>{masks});
  const int32_t* const live = rig.Put(Ids{0});
  const DecodeRowsParams rows{.ids = rig.Poisoned<int32_t>(kRows),
                              .row_slots = rig.Poisoned<int32_t>(kRows),
                              .positions = rig.Poisoned<int32_t>(kRows),
                              .row_in_slot = rig.Poisoned<int32_t>(kRows),
                              .live_slots = live,
                              .slots = arrays,
                              .bucket = 1,
                              .draft_len = 3,
                              .first_rows = nullptr,
                              .row_masks = rig.Poisoned<int32_t>(kRows)};
  const VerifyDraftsParams verify{.outputs = rig.Poisoned<StepOutput>(1),
                                  .target_ids = rig.Put(target),
                                  .relaxed = rig.Put(relaxed),
                                  .live_slots = live,
                                  .slots = arrays,
                                  .bucket = 1,
                                  .draft_len = 3,
                                  .first_rows = nullptr};
  rig.Run([&] {
    rig.ops().decode_rows(rig.stream(), rows);
    rig.ops().verify_drafts(rig.stream(), verify);
  });
  slots.Get(rig, arrays);
  return {rig.Get(rows.ids, kRows), rig.Get(rows.row_slots, kRows), rig.Get(rows.row_masks, kRows),
          rig.Get(verify.outputs, 1)[0], slots};
}

TEST(MaskedStep, ARowHasTheMaskOfItsPlaceAndRowsEndWithTheMasks) {
  const Stepped step = Step(OneSlot(Gate::kBehind), Masks({4, 2, 9}), {5, 6, 8, 9});
  EXPECT_EQ(step.row_masks, (Ids{4, 2, 9, -1}));
  EXPECT_EQ(step.row_slots, (Ids{0, 0, 0, -1}));
  EXPECT_EQ(step.ids, (Ids{1, 5, 6, 0}));
  EXPECT_EQ(step.tokens(), (Ids{5, 6, 8}));
  EXPECT_EQ(step.output.drafts_verified, 2);
}

TEST(MaskedStep, OneMaskIsOneToken) {
  const Stepped step = Step(OneSlot(Gate::kBehind), Masks({0}), {5, 6, 7, 8});
  EXPECT_EQ(step.tokens(), (Ids{5}));
  EXPECT_EQ(step.output.drafts_verified, 0);
}

// Masks and given tokens change nothing for slots that are not constrained, whose gate means nothing.
TEST(MaskedStep, OthersDoNotNotice) {
  SlotFixture slots = OneSlot(Gate::kBehind);
  slots.constants[0].constrained = 0;
  const Stepped step = Step(slots, kHold, {5, 6, 7, 8});
  EXPECT_EQ(step.row_masks, (Ids{-1, -1, -1, -1}));
  EXPECT_EQ(step.tokens(), (Ids{5, 6, 7, 8}));
}

void ExpectHeld(const SlotFixture& before, const SlotStepMasks& masks) {
  const Stepped step = Step(before, masks, {5, 6, 7, 8});
  EXPECT_EQ(step.row_slots, (Ids{-1, -1, -1, -1}));
  EXPECT_EQ(step.row_masks, (Ids{-1, -1, -1, -1}));
  EXPECT_EQ(step.output.slot, 0);
  EXPECT_EQ(step.output.emitted_count, 0);
  EXPECT_EQ(step.output.length, 10);
  EXPECT_EQ(step.output.finished, 0);
  EXPECT_EQ(BytesOf(step.slots.progress.data(), 1), BytesOf(before.progress.data(), 1));
  EXPECT_EQ(BytesOf(step.slots.drafts.data(), 1), BytesOf(before.drafts.data(), 1));
  EXPECT_EQ(step.slots.output_counts, before.output_counts);
}

TEST(HeldSlot, StaysAsItIs) {
  ExpectHeld(OneSlot(Gate::kBehind), kNone);
  ExpectHeld(OneSlot(Gate::kBehind), kHold);
  ExpectHeld(OneSlot(Gate::kThinking), kHold);
  ExpectHeld(OneSlot(Gate::kTrigger), kHold);
}

TEST(HeldSlot, TakesGivenTokens) {
  for (const SlotStepMasks& masks : {kNone, kHold, Masks({1, 2})}) {
    SlotFixture slots = OneSlot(Gate::kBehind);
    slots.drafts[0] = {.draft_count = 0, .given_count = 3, .tokens = {11, 12, 13}};
    const Stepped step = Step(slots, masks, {5, 6, 7, 8});
    EXPECT_EQ(step.row_masks, (Ids{-1, -1, -1, -1}));
    EXPECT_EQ(step.tokens(), (Ids{11, 12, 13}));
  }
}

struct GateCase {
  const char* name;
  Gate gate;
  bool triggers;
  Ids drafts, target;  // the target's own tokens g_0..g_K
  Ids expected;
  Gate gate_after;
};

const GateCase kGateCases[] = {
    {"no gate token", Gate::kThinking, false, {5, 6, 7}, {5, 6, 7, 8}, {5, 6, 7, 8}, Gate::kThinking},
    {"the end as the first token", Gate::kThinking, false, {5, 6, 7}, {kEnd, 6, 7, 8}, {kEnd}, Gate::kBehind},
    {"as an accepted draft, others after it",
     Gate::kThinking,
     false,
     {kEnd, 6, 7},
     {kEnd, 6, 7, 8},
     {kEnd},
     Gate::kBehind},
    {"as a draft in the middle",
     Gate::kThinking,
     false,
     {5, kEnd, 7},
     {5, kEnd, 7, 8},
     {5, kEnd},
     Gate::kBehind},
    {"as the last draft", Gate::kThinking, false, {5, 6, kEnd}, {5, 6, kEnd, 8}, {5, 6, kEnd}, Gate::kBehind},
    {"as the last token, not a draft",
     Gate::kThinking,
     false,
     {5, 6, 7},
     {5, 6, 7, kEnd},
     {5, 6, 7, kEnd},
     Gate::kBehind},
    {"as a refused draft", Gate::kThinking, false, {5, kEnd, 7}, {5, 6, 7, 8}, {5, 6}, Gate::kThinking},
    {"free text follows, with a trigger",
     Gate::kThinking,
     true,
     {kEnd, 6, 7},
     {kEnd, 6, 7, 8},
     {kEnd, 6, 7, 8},
     Gate::kTrigger},
    {"the trigger in the step of the end",
     Gate::kThinking,
     true,
     {kEnd, kTrigger, 7},
     {kEnd, kTrigger, 7, 8},
     {kEnd, kTrigger},
     Gate::kBehind},
    {"a trigger in a thought is text",
     Gate::kThinking,
     true,
     {kTrigger, 6, 7},
     {kTrigger, 6, 7, 8},
     {kTrigger, 6, 7, 8},
     Gate::kThinking},
    {"a trigger", Gate::kTrigger, true, {5, kTrigger, 7}, {5, kTrigger, 7, 8}, {5, kTrigger}, Gate::kBehind},
    {"an end without a thought",
     Gate::kTrigger,
     true,
     {5, kEnd, 7},
     {5, kEnd, 7, 8},
     {5, kEnd, 7, 8},
     Gate::kTrigger},
    {"a thought that begins before the trigger",
     Gate::kTrigger,
     true,
     {kBegin, kTrigger, 7},
     {kBegin, kTrigger, 7, 8},
     {kBegin, kTrigger, 7, 8},
     Gate::kThinking},
    {"a stop id before the end",
     Gate::kThinking,
     false,
     {kStop, kEnd, 7},
     {kStop, kEnd, 7, 8},
     {kStop},
     Gate::kThinking},
    {"no token after the end",
     Gate::kThinking,
     false,
     {kEnd, 6, 7},
     {kEnd, kNoToken, 7, 8},
     {kEnd},
     Gate::kBehind},
};

TEST(Gate, EndsTheStepThatLowersIt) {
  for (const GateCase& c : kGateCases) {
    SCOPED_TRACE(c.name);
    SlotFixture slots = OneSlot(c.gate, c.drafts);
    slots.constants[0].opens_thought = 1;
    slots.constants[0].trigger_count = c.triggers ? 1 : 0;
    slots.constants[0].trigger_ids[0] = kTrigger;
    const Stepped step = Step(slots, kNone, c.target);
    EXPECT_EQ(step.tokens(), c.expected);
    EXPECT_EQ(step.slots.progress[0].gate, c.gate_after);
    EXPECT_EQ(step.output.nonfinite, 0);
    EXPECT_EQ(step.output.finished, c.expected.back() == kStop ? 1 : 0);
    EXPECT_EQ(step.output.length, 10 + static_cast<int>(c.expected.size()));
  }
}

// Behind the gate its tokens mean nothing.
TEST(Gate, StaysDown) {
  SlotFixture slots = OneSlot(Gate::kBehind, {kBegin, kEnd, kTrigger});
  slots.constants[0].opens_thought = 1;
  const Stepped step = Step(slots, Masks({0, 1, 2, 3}), {kBegin, kEnd, kTrigger, 5});
  EXPECT_EQ(step.tokens(), (Ids{kBegin, kEnd, kTrigger, 5}));
  EXPECT_EQ(step.slots.progress[0].gate, Gate::kBehind);
}

TEST(Gate, GivenTokensPassIt) {
  SlotFixture slots = OneSlot(Gate::kThinking);
  slots.drafts[0] = {.draft_count = 0, .given_count = 3, .tokens = {kEnd, 12, 13}};
  const Stepped step = Step(slots, kNone, {5, 6, 7, 8});
  EXPECT_EQ(step.tokens(), (Ids{kEnd, 12, 13}));
  EXPECT_EQ(step.slots.progress[0].gate, Gate::kBehind);
}

// Relaxed and forced acceptance apply up to the gate. With grammar_from_first_token a mask may fall into a
// thought.
TEST(Gate, AcceptanceIsStrictBehindIt) {
  SlotFixture relaxed = OneSlot(Gate::kThinking);
  relaxed.rule = {.relaxed_topk = 3, .relaxed_delta = 0.3f};
  EXPECT_EQ(Step(relaxed, kNone, {1, 2, 3, 4}, {1, 1, 1, 0}).tokens(), (Ids{5, 6, 7, 4}));
  relaxed.progress[0].gate = Gate::kBehind;
  EXPECT_EQ(Step(relaxed, Masks({0, 1, 2, 3}), {1, 2, 3, 4}, {1, 1, 1, 0}).tokens(), (Ids{1}));

  SlotFixture forced = OneSlot(Gate::kTrigger);
  forced.rule = {.forced_length = 3.0f};
  EXPECT_EQ(Step(forced, kNone, {1, 2, 3, 4}).tokens(), (Ids{5, 6, 3}));
  forced.progress[0].gate = Gate::kBehind;
  EXPECT_EQ(Step(forced, Masks({0, 1, 2, 3}), {1, 2, 3, 4}).tokens(), (Ids{1}));
  EXPECT_EQ(Step(forced, Masks({0, 1, 2, 3}), {5, 6, 7, 4}).tokens(), (Ids{5, 6, 7, 4}));
}

// Relaxed acceptance up to the end of the thought, in one step.
TEST(Gate, RelaxedAcceptanceEndsWithTheThought) {
  SlotFixture slots = OneSlot(Gate::kThinking, {5, kEnd, 7});
  slots.rule = {.relaxed_topk = 3, .relaxed_delta = 0.3f};
  EXPECT_EQ(Step(slots, kNone, {1, 2, 3, 4}, {1, 1, 1, 0}).tokens(), (Ids{5, kEnd}));
}

struct FirstCase {
  const char* name;
  Gate gate;
  bool opens;
  int token;
  Gate gate_after;
};

TEST(Gate, TheFirstTokenMayBeginAThought) {
  for (const FirstCase& c : {FirstCase{"begins", Gate::kBehind, true, kBegin, Gate::kThinking},
                             FirstCase{"may not", Gate::kBehind, false, kBegin, Gate::kBehind},
                             FirstCase{"does not", Gate::kBehind, true, 5, Gate::kBehind},
                             FirstCase{"ends at once", Gate::kThinking, true, kEnd, Gate::kBehind},
                             FirstCase{"triggers", Gate::kTrigger, true, kTrigger, Gate::kBehind}}) {
    SlotFixture slots = OneSlot(c.gate);
    slots.constants[0].opens_thought = c.opens ? 1 : 0;
    slots.constants[0].prompt_len = 10;
    if (c.gate == Gate::kTrigger) {
      slots.constants[0].trigger_count = 1;
      slots.constants[0].trigger_ids[0] = kTrigger;
    }
    OpRig rig({}, RunMode::kEager);
    const SlotArrays arrays = slots.Put(rig);
    const AcceptFirstTokenParams params{.outputs = rig.Poisoned<StepOutput>(1),
                                        .tokens = rig.Put(Ids{c.token}),
                                        .slot_ids = rig.Put(Ids{0}),
                                        .slots = arrays,
                                        .count = 1};
    rig.Run([&] { rig.ops().accept_first_token(rig.stream(), params); });
    slots.Get(rig, arrays);
    EXPECT_EQ(slots.progress[0].gate, c.gate_after) << c.name;
    EXPECT_EQ(slots.progress[0].last_token, c.token) << c.name;
  }
}

}  // namespace
}  // namespace foredraft
