// Relaxed and forced acceptance (docs/speculation.md section 2): the candidates, the phase in which they
// count, the tokens that a forced step emits.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/ops/op_rig.h"
#include "tests/ops/slot_fixture.h"

namespace foredraft {
namespace {

using Ids = std::vector<int32_t>;

constexpr int kVocab = 8;
constexpr int kBeginThinking = 6;
constexpr int kEndThinking = 7;

// One slot at position 10 with `drafts`.
SlotFixture OneSlot(const Ids& drafts, bool thinking) {
  SlotFixture slots(1, kVocab);
  slots.rule = {.relaxed_topk = 3, .relaxed_delta = 0.3f};
  slots.constants[0].thinking.begin = kBeginThinking;
  slots.constants[0].thinking.end = kEndThinking;
  slots.progress[0] = {.length = 10,
                       .last_token = 1,
                       .finished = 0,
                       .active = 1,
                       .thought = {.phase = thinking ? Phase::kThinking : Phase::kAnswer}};
  slots.drafts[0].draft_count = static_cast<int32_t>(drafts.size());
  std::copy(drafts.begin(), drafts.end(), slots.drafts[0].tokens);
  return slots;
}

// Runs verify_drafts on the slot, repeatedly.
class Verification {
 public:
  Verification(const SlotFixture& slots, const Ids& target, const Ids& relaxed)
      : rig_({}, RunMode::kReplayed),
        params_{.outputs = rig_.Poisoned<StepOutput>(1),
                .target_ids = rig_.Put(target),
                .relaxed = rig_.Put(relaxed),
                .live_slots = rig_.Put(Ids{0}),
                .slots = slots.Put(rig_),
                .bucket = 1,
                .draft_len = static_cast<int32_t>(target.size()) - 1} {}

  StepOutput Run() {
    rig_.Run([&] { rig_.ops().verify_drafts(rig_.stream(), params_); });
    return rig_.Get(params_.outputs, 1)[0];
  }

  void Draft(const SlotDrafts& drafts) {
    rig_.device().CopyToDevice(rig_.stream(), params_.slots.drafts, &drafts, sizeof(drafts));
  }
  SlotProgress progress() { return rig_.Get(params_.slots.progress, 1)[0]; }

 private:
  OpRig rig_;
  const VerifyDraftsParams params_;
};

// Given tokens (docs/invariants.md, resume) are emitted whatever the target, the rule and the cap say.
TEST(GivenTokens, AreEmittedInsteadOfTheTargets) {
  for (const float forced_length : {0.0f, 1.5f}) {
    SlotFixture slots = OneSlot({}, /*thinking=*/true);
    slots.rule.forced_length = forced_length;
    slots.constants[0].draft_cap = 0;
    slots.drafts[0] = {.draft_count = 0, .given_count = 3, .tokens = {2, kEndThinking, 5}};
    Verification verification(slots, {4, 4, 4, 4}, {1, 0, 1, 0});
    const StepOutput output = verification.Run();
    EXPECT_EQ(output.emitted_count, 3);
    EXPECT_EQ(Ids(output.token_ids, output.token_ids + 3), (Ids{2, kEndThinking, 5}));
    EXPECT_EQ(output.length, 13);
    EXPECT_EQ(output.drafts_verified, 0);
    EXPECT_EQ(output.relaxed_count, 0);
    EXPECT_EQ(verification.progress().last_token, 5);
    EXPECT_EQ(verification.progress().thought.phase, Phase::kAnswer);
    EXPECT_EQ(verification.Run().token_ids[0], 4) << "they are given once";
  }
}

TEST(GivenTokens, HaveRowsForAllButTheLast) {
  OpRig rig({}, RunMode::kReplayed);
  SlotFixture slots = OneSlot({}, /*thinking=*/false);
  slots.constants[0].draft_cap = 0;
  slots.drafts[0] = {.draft_count = 0, .given_count = 3, .tokens = {2, 3, 5}};
  const DecodeRowsParams params{.ids = rig.Poisoned<int32_t>(4),
                                .row_slots = rig.Poisoned<int32_t>(4),
                                .positions = rig.Poisoned<int32_t>(4),
                                .row_in_slot = rig.Poisoned<int32_t>(4),
                                .live_slots = rig.Put(Ids{0}),
                                .slots = slots.Put(rig),
                                .bucket = 1,
                                .draft_len = 3};
  rig.Run([&] { rig.ops().decode_rows(rig.stream(), params); });
  EXPECT_EQ(rig.Get(params.ids, 4), (Ids{1, 2, 3, 0}));
  EXPECT_EQ(rig.Get(params.row_slots, 4), (Ids{0, 0, 0, -1}));
}

struct PhaseCase {
  const char* name;
  bool thinking;
  Ids drafts;
  Ids target;
  Ids relaxed;
  Ids expected;
  int relaxed_count;
  bool thinking_after;
};

const PhaseCase kPhaseCases[] = {
    {"candidates are taken while thinking", true, {2, 3}, {4, 5, 1}, {1, 1, 0}, {2, 3, 1}, 2, true},
    {"not in the answer", false, {2, 3}, {4, 5, 1}, {1, 1, 0}, {4}, 0, false},
    {"a refused draft ends the run", true, {2, 3}, {4, 5, 1}, {0, 1, 0}, {4}, 0, true},
    {"equal drafts are not counted as relaxed", true, {4, 3}, {4, 5, 1}, {1, 1, 0}, {4, 3, 1}, 1, true},
    {"strict from the row after the end token", true, {7, 3}, {7, 5, 1}, {1, 1, 0}, {7, 5}, 0, false},
    {"relaxed from the row after the begin token", false, {6, 3}, {6, 5, 1}, {1, 1, 0}, {6, 3, 1}, 1, true},
    {"an accepted end token closes the phase", true, {7, 5}, {4, 5, 1}, {1, 1, 0}, {7, 5, 1}, 1, false},
};

TEST(RelaxedVerification, FollowsThePhaseRowByRow) {
  for (const PhaseCase& c : kPhaseCases) {
    SCOPED_TRACE(c.name);
    Verification verification(OneSlot(c.drafts, c.thinking), c.target, c.relaxed);
    const StepOutput out = verification.Run();
    EXPECT_EQ(Ids(out.token_ids, out.token_ids + out.emitted_count), c.expected);
    EXPECT_EQ(out.relaxed_count, c.relaxed_count);
    EXPECT_EQ(verification.progress().thought.phase == Phase::kThinking, c.thinking_after);
  }
}

// A step that something cuts behind an accepted draft ends in it, and the draft is relaxed where it is.
TEST(RelaxedVerification, SaysThatACutStepEndsInADraft) {
  struct Case {
    const char* name;
    int room;  // up to length_limit
    int32_t stop_id;
    Ids target;
    int expected, ends_in_draft, relaxed_count;
  };
  // Drafts 2, 3, 4, of which the last two are relaxed.
  const Case cases[] = {{"whole", 9, -1, {2, 5, 5, 1}, 4, 0, 2},
                        {"room for the target's token", 4, -1, {2, 5, 5, 1}, 4, 0, 2},
                        {"room for the drafts", 3, -1, {2, 5, 5, 1}, 3, 1, 2},
                        {"room for one relaxed draft", 2, -1, {2, 5, 5, 1}, 2, 1, 1},
                        {"room for a draft that is no relaxed one", 1, -1, {2, 5, 5, 1}, 1, 1, 0},
                        {"a stop id that is a draft", 9, 3, {2, 5, 5, 1}, 2, 1, 1},
                        {"a stop id of the target", 9, 1, {2, 5, 5, 1}, 4, 0, 2},
                        {"no token behind the drafts", 9, -1, {2, 5, 5, kNoToken}, 3, 1, 2},
                        {"no token behind the first", 9, -1, {2, kNoToken, 5, 1}, 1, 1, 0}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SlotFixture slots = OneSlot({2, 3, 4}, /*thinking=*/true);
    slots.constants[0].length_limit = 10 + c.room;
    slots.constants[0].stop_id_count = 1;
    slots.constants[0].stop_ids[0] = c.stop_id;
    Verification verification(slots, c.target, {0, 1, 1, 0});
    const StepOutput out = verification.Run();
    EXPECT_EQ(out.emitted_count, c.expected);
    EXPECT_EQ(out.ends_in_draft, c.ends_in_draft);
    EXPECT_EQ(out.relaxed_count, c.relaxed_count);
  }
}

TEST(ForcedVerification, EmitsTheMeanAndTakesAnyLegalDraft) {
  for (const float mean : {1.0f, 1.92f, 2.82f, 4.0f}) {
    int64_t emitted = 0;
    constexpr int kSteps = 4000;
    SlotFixture slots = OneSlot({2, 3, 4}, false);
    slots.rule = {.forced_length = mean};
    slots.constants[0].length_limit = 1 << 30;
    Verification verification(slots, {5, 5, 5, 5}, {0, 0, 0, 0});
    for (int step = 0; step < kSteps; ++step) {
      verification.Draft(slots.drafts[0]);
      const StepOutput out = verification.Run();
      EXPECT_EQ(out.token_ids[out.emitted_count - 1], 5);
      EXPECT_EQ(out.relaxed_count, 0);
      emitted += out.emitted_count;
    }
    // One more token with probability p: the bound is five standard deviations sqrt(p (1-p) / n) of the mean.
    const double p = mean - std::floor(mean);
    const double bound = 5 * std::sqrt(p * (1 - p) / kSteps) + 1e-9;
    EXPECT_NEAR(static_cast<double>(emitted) / kSteps, mean, bound);
  }
  SlotFixture slots = OneSlot({2, kVocab, 4}, false);
  slots.rule.forced_length = 4.0f;
  EXPECT_EQ(Verification(slots, {5, 5, 5, 5}, {0, 0, 0, 0}).Run().emitted_count, 2)
      << "an illegal draft ends the run";
}

struct CandidateCase {
  const char* name;
  int draft;
  int topk;
  float delta;
  float temperature;
  int strict;
  int expected;
};

// Probabilities of the row below: 0.4, 0.3, 0.2, 0.1 for ids 0..3.
const CandidateCase kCandidateCases[] = {
    {"the most probable", 0, 10, 0.0f, 0, 0, 1}, {"delta 0 admits it alone", 1, 10, 0.0f, 0, 0, 0},
    {"within delta", 1, 10, 0.15f, 0, 0, 1},     {"outside delta", 2, 10, 0.15f, 0, 0, 0},
    {"outside the top", 2, 2, 0.5f, 0, 0, 0},    {"inside the top", 2, 3, 0.5f, 0, 0, 1},
    {"a strict request", 1, 10, 0.5f, 0, 1, 0},  {"a sampled request", 1, 10, 0.5f, 0.7f, 0, 0},
    {"the rule is off", 0, 0, 0.5f, 0, 0, 0},    {"an illegal id", kVocab, 10, 0.9f, 0, 0, 0},
    {"a negative id", -1, 10, 0.9f, 0, 0, 0},
};

// relax_drafts' result for the first of two rows; the second row is the draft's.
int Relaxed(const SlotFixture& slots, std::vector<float> logits) {
  logits.resize(2 * kVocab, -40.0f);
  OpRig rig({}, RunMode::kReplayed);
  int32_t* const relaxed = rig.Poisoned<int32_t>(2);
  const RelaxDraftsParams params = {.relaxed = relaxed,
                                    .logits = Dense<const float>(rig.Put(logits), 2, kVocab),
                                    .index = {rig.Put(Ids{0, 0}), rig.Put(Ids{10, 11}), 2},
                                    .ids = rig.Put(Ids{1, 0}),
                                    .row_in_slot = rig.Put(Ids{0, 1}),
                                    .slots = slots.Put(rig),
                                    .scratch = rig.Poisoned<float>(2 * kVocab)};
  rig.Run([&] { rig.ops().relax_drafts(rig.stream(), params); });
  EXPECT_EQ(rig.Get(relaxed, 2)[1], 0) << "no draft follows the last row";
  return rig.Get(relaxed, 2)[0];
}

TEST(RelaxDrafts, TakesTheTopkWithinDelta) {
  for (const CandidateCase& c : kCandidateCases) {
    SCOPED_TRACE(c.name);
    SlotFixture slots = OneSlot({c.draft}, true);
    slots.rule.relaxed_topk = c.topk;
    slots.rule.relaxed_delta = c.delta;
    slots.constants[0].temperature = c.temperature;
    slots.constants[0].strict = c.strict;
    std::vector<float> logits(4);
    for (int v = 0; v < 4; ++v) logits[v] = std::log(0.4f - 0.1f * static_cast<float>(v));
    EXPECT_EQ(Relaxed(slots, logits), c.expected);
  }
}

// Rows that a backend may divide over several blocks. The draft is the fourth most probable token.
TEST(RelaxDrafts, SumsUpLongRows) {
  constexpr int kLongVocab = 9001;
  constexpr int kDraft = 8192;
  Noise noise(91);
  std::vector<float> logits = noise.Floats(kLongVocab);
  logits[10] = logits[9000] = 8.0f;
  logits[4096] = 7.75f;
  logits[kDraft] = 7.5f;
  logits[kDraft + 1] = 7.5f;  // a tie: comes after the draft
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - 8.0);
  const double lead = (1.0 - std::exp(-0.5)) / sum;
  const struct {
    const char* name;
    int topk;
    double delta;
    float presence;  // penalty on the draft and the tokens before it
    int expected;
  } cases[] = {
      // Exp and the sum have 4 roundoffs each; delta is off by 16 times as much.
      {"within delta", 4, lead * (1 + 128 * kF32Roundoff), 0.0f, 1},
      {"outside delta", 4, lead * (1 - 128 * kF32Roundoff), 0.0f, 0},
      {"outside the top", 3, 2 * lead, 0.0f, 0},
      {"penalised like the tokens before it", 4, 0.9, 2.0f, 1},
  };
  for (const int rows : {2, 5}) {  // 2: the only pair; 5: behind idle rows, where rows have fewer blocks
    for (const auto& c : cases) {
      SCOPED_TRACE(c.name);
      SlotFixture slots(1, kLongVocab);
      slots.rule = {.relaxed_topk = c.topk, .relaxed_delta = static_cast<float>(c.delta)};
      slots.progress[0] = {
          .length = 10, .last_token = 1, .finished = 0, .active = 1, .thought = {.phase = Phase::kThinking}};
      slots.drafts[0] = {.draft_count = 1, .tokens = {kDraft}};
      slots.constants[0].presence_penalty = c.presence;
      for (const int id : {10, 9000, 4096, kDraft, kDraft + 1}) slots.output_counts[id] = 1;
      std::vector<float> all(size_t(rows) * kLongVocab);
      std::copy(logits.begin(), logits.end(), all.begin() + size_t(rows - 2) * kLongVocab);
      Ids row_slots(rows, -1), positions(rows, 0), ids(rows, 0), row_in_slot(rows, 0);
      row_slots[rows - 2] = row_slots[rows - 1] = 0;
      row_in_slot[rows - 1] = 1;
      OpRig rig({}, RunMode::kReplayed);
      int32_t* const relaxed = rig.Poisoned<int32_t>(rows);
      const RelaxDraftsParams params = {.relaxed = relaxed,
                                        .logits = Dense<const float>(rig.Put(all), rows, kLongVocab),
                                        .index = {rig.Put(row_slots), rig.Put(positions), rows},
                                        .ids = rig.Put(ids),
                                        .row_in_slot = rig.Put(row_in_slot),
                                        .slots = slots.Put(rig),
                                        .scratch = rig.Poisoned<float>(size_t(rows) * kLongVocab)};
      rig.Run([&] { rig.ops().relax_drafts(rig.stream(), params); });
      Ids expected(rows, 0);
      expected[rows - 2] = c.expected;
      EXPECT_EQ(rig.Get(relaxed, rows), expected) << rows << " rows";
    }
  }
}

// Columns behind the tokens are not among the most probable ones.
TEST(RelaxDrafts, CountsTokensAlone) {
  for (const int padding : {0, 3, 5000}) {
    SlotFixture slots = OneSlot({1}, true);
    slots.rule = {.relaxed_topk = 2, .relaxed_delta = 0.19f};
    slots.constants[0].presence_penalty = 1e-3f;  // the adjusted row has a copy of its own
    std::vector<float> logits(2 * (kVocab + padding), -40.0f);
    logits[0] = std::log(0.6f);
    logits[1] = std::log(0.4f);
    for (int v = kVocab; v < kVocab + padding; ++v) logits[v] = 30.0f;
    OpRig rig({}, RunMode::kReplayed);
    int32_t* const relaxed = rig.Poisoned<int32_t>(2);
    const RelaxDraftsParams params = {
        .relaxed = relaxed,
        .logits = Dense<const float>(rig.Put(logits), 2, kVocab + padding).columns(0, kVocab),
        .index = {rig.Put(Ids{0, 0}), rig.Put(Ids{10, 11}), 2},
        .ids = rig.Put(Ids{1, 0}),
        .row_in_slot = rig.Put(Ids{0, 1}),
        .slots = slots.Put(rig),
        .scratch = rig.Poisoned<float>(2 * (kVocab + padding))};
    rig.Run([&] { rig.ops().relax_drafts(rig.stream(), params); });
    EXPECT_EQ(rig.Get(relaxed, 2)[0], 0) << "0.6 - 0.4 is not within it";
    slots.rule.relaxed_delta = 0.21f;
    RelaxDraftsParams more = params;
    more.slots = slots.Put(rig);
    rig.Run([&] { rig.ops().relax_drafts(rig.stream(), more); });
    EXPECT_EQ(rig.Get(relaxed, 2)[0], 1);
  }
}

TEST(RelaxDrafts, CountsTheLowerIdsOfATieFirst) {
  for (const int draft : {1, 2}) {
    SlotFixture slots = OneSlot({draft}, true);
    slots.rule.relaxed_topk = 2;
    slots.rule.relaxed_delta = 0.9f;
    EXPECT_EQ(Relaxed(slots, {2.0f, 1.0f, 1.0f}), draft == 1) << "draft " << draft;
  }
}

}  // namespace
}  // namespace foredraft
