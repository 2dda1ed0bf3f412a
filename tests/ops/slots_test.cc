// The slot ops: decode_rows, verify_drafts, accept_first_token, emitted_rows, border_blocks, next_draft_rows,
// store_drafts.

#include <numeric>
#include <string>

#include "tests/ops/op_rig.h"
#include "tests/ops/slot_fixture.h"

namespace foredraft {
namespace {

using Ids = std::vector<int32_t>;

constexpr int kVocab = 32;

// ---- decode_rows ----

struct DecodeRowsOut {
  Ids ids, slots, positions, row_in_slot;
};

DecodeRowsOut RunDecodeRows(const SlotFixture& slots, const Ids& live, int draft_len, RunMode mode) {
  OpRig rig({}, mode);
  const int bucket = static_cast<int>(live.size());
  const size_t rows = live.size() * (draft_len + 1);
  const DecodeRowsParams params = {rig.Poisoned<int32_t>(rows),
                                   rig.Poisoned<int32_t>(rows),
                                   rig.Poisoned<int32_t>(rows),
                                   rig.Poisoned<int32_t>(rows),
                                   rig.Put(live),
                                   slots.Put(rig),
                                   bucket,
                                   draft_len};
  rig.Run([&] { rig.ops().decode_rows(rig.stream(), params); });
  return {rig.Get(params.ids, rows), rig.Get(params.row_slots, rows), rig.Get(params.positions, rows),
          rig.Get(params.row_in_slot, rows)};
}

SlotFixture RunningSlots() {
  SlotFixture slots(5, kVocab);
  slots.progress[0] = {.length = 10, .last_token = 7, .finished = 0, .active = 1};
  slots.drafts[0] = {.draft_count = 3, .tokens = {8, 9, 11}};
  slots.progress[1] = {.length = 20, .last_token = 6, .finished = 1, .active = 1};
  slots.drafts[1] = {.draft_count = 3, .tokens = {1, 2, 3}};
  slots.progress[2] = {.length = 30, .last_token = 5, .finished = 0, .active = 1};
  slots.drafts[2] = {.draft_count = 3, .tokens = {-1, kVocab, 4}};                  // two illegal ids
  slots.progress[3] = {.length = 40, .last_token = 3, .finished = 0, .active = 0};  // still in its prompt
  slots.progress[4] = {.length = 50, .last_token = 2, .finished = 0, .active = 1};
  slots.drafts[4] = {.draft_count = 3, .tokens = {12, 13, 14}};
  slots.constants[4].draft_cap = 1;
  return slots;
}

TEST(DecodeRows, LaysOutTokenDraftsAndFill) {
  for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
    const DecodeRowsOut out = RunDecodeRows(RunningSlots(), {4, 0}, 3, mode);
    EXPECT_EQ(out.ids, (Ids{2, 12, 0, 0, 7, 8, 9, 11}));  // slot 4 is capped at one draft
    EXPECT_EQ(out.slots, (Ids{4, 4, -1, -1, 0, 0, 0, 0}));
    EXPECT_EQ(out.positions, (Ids{50, 51, 52, 53, 10, 11, 12, 13}));
    EXPECT_EQ(out.row_in_slot, (Ids{0, 1, 2, 3, 0, 1, 2, 3}));
  }
}

TEST(DecodeRows, TakesNoMoreThanKAndNoMoreThanWasDrafted) {
  EXPECT_EQ(RunDecodeRows(RunningSlots(), {0}, 0, RunMode::kEager).ids, (Ids{7}));
  EXPECT_EQ(RunDecodeRows(RunningSlots(), {0}, 2, RunMode::kEager).ids, (Ids{7, 8, 9}));
  const DecodeRowsOut wide = RunDecodeRows(RunningSlots(), {0}, 5, RunMode::kEager);
  EXPECT_EQ(wide.ids, (Ids{7, 8, 9, 11, 0, 0}));
  EXPECT_EQ(wide.slots, (Ids{0, 0, 0, 0, -1, -1}));
}

TEST(DecodeRows, GivesPaddingFinishedAndInactiveSlotsSlotMinusOne) {
  const DecodeRowsOut out = RunDecodeRows(RunningSlots(), {-1, 1, 3}, 1, RunMode::kEager);
  EXPECT_EQ(out.slots, (Ids{-1, -1, -1, -1, -1, -1}));
  for (const int32_t id : out.ids) EXPECT_EQ(id, 0);
  for (const int32_t position : out.positions) {
    EXPECT_GE(position, 0);
    EXPECT_LE(position, 1);
  }
}

TEST(DecodeRows, ReplacesIllegalDrafts) {
  const DecodeRowsOut out = RunDecodeRows(RunningSlots(), {2}, 3, RunMode::kEager);
  EXPECT_EQ(out.ids, (Ids{5, 0, 0, 4}));
  EXPECT_EQ(out.slots, (Ids{2, 2, 2, 2}));
}

// ---- verify_drafts ----

struct VerifyOut {
  std::vector<StepOutput> outputs;
  SlotFixture slots;
};

VerifyOut RunVerify(SlotFixture slots, const Ids& live, int draft_len, const Ids& target,
                    RunMode mode = RunMode::kEager) {
  OpRig rig({}, mode);
  const SlotArrays arrays = slots.Put(rig);
  StepOutput* outputs = rig.Poisoned<StepOutput>(live.size());
  const VerifyDraftsParams params = {outputs,       rig.Put(target), rig.Put(Ids(target.size(), 0)),
                                     rig.Put(live), arrays,          static_cast<int32_t>(live.size()),
                                     draft_len};
  rig.Run([&] { rig.ops().verify_drafts(rig.stream(), params); });
  slots.Get(rig, arrays);
  return {rig.Get(outputs, live.size()), slots};
}

// Letters as token ids: A = 1.
Ids Letters(const std::string& text) {
  Ids ids;
  for (const char c : text) ids.push_back(c - 'A' + 1);
  return ids;
}

struct VerifyCase {
  const char* name;
  std::string drafts;
  std::string target;  // the target's own tokens g_0..g_K
  int draft_cap;
  int length_limit;  // the slot's length is 10
  std::string stops;
  std::string expected;
  int verified;
  int finished;
};

const VerifyCase kVerifyCases[] = {
    // NVIDIA's Figure 1: input G, drafts ABCDE, the target continues A B C H.
    {"figure 1", "ABCDE", "ABCHXY", 7, 1000, "", "ABCH", 5, 0},
    {"none accepted", "ABC", "XBCD", 7, 1000, "", "X", 3, 0},
    {"all accepted", "ABC", "ABCD", 7, 1000, "", "ABCD", 3, 0},
    {"a later match does not count", "ABC", "AXCD", 7, 1000, "", "AX", 3, 0},
    {"no drafts", "", "ABCD", 7, 1000, "", "A", 0, 0},
    {"fewer drafts than K", "A", "ABCD", 7, 1000, "", "AB", 1, 0},
    {"capped at two", "ABC", "ABCD", 2, 1000, "", "ABC", 2, 0},
    {"capped at none", "ABC", "ABCD", 0, 1000, "", "A", 0, 0},
    {"limit cuts", "ABC", "ABCD", 7, 12, "", "AB", 3, 1},
    {"limit of one", "ABC", "ABCD", 7, 11, "", "A", 3, 1},
    {"limit reached exactly", "ABC", "ABCD", 7, 14, "", "ABCD", 3, 1},
    {"limit one further", "ABC", "ABCD", 7, 15, "", "ABCD", 3, 0},
    {"stop in the middle, inclusive", "ABC", "ABCD", 7, 1000, "B", "AB", 3, 1},
    {"stop first", "ABC", "ABCD", 7, 1000, "ZA", "A", 3, 1},
    {"stop last", "ABC", "ABCD", 7, 1000, "D", "ABCD", 3, 1},
    {"first of two stops", "ABC", "ABCD", 7, 1000, "CB", "AB", 3, 1},
    {"stop past the clamp is not reached", "ABC", "ABCD", 7, 12, "C", "AB", 3, 1},
    {"stop not emitted", "ABC", "AXCD", 7, 1000, "B", "AX", 3, 0},
};

SlotFixture SlotOf(const VerifyCase& c) {
  SlotFixture slots(2, kVocab);
  slots.progress[1] = {.length = 10, .last_token = 7, .finished = 0, .active = 1};
  slots.constants[1].draft_cap = c.draft_cap;
  slots.constants[1].length_limit = c.length_limit;
  for (const int32_t id : Letters(c.stops)) {
    slots.constants[1].stop_ids[slots.constants[1].stop_id_count++] = id;
  }
  for (const int32_t id : Letters(c.drafts)) {
    slots.drafts[1].tokens[slots.drafts[1].draft_count++] = id;
  }
  return slots;
}

TEST(VerifyDrafts, EmitsTheAcceptedPrefixAndOneMore) {
  for (const VerifyCase& c : kVerifyCases) {
    for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
      SCOPED_TRACE(c.name);
      const int draft_len = static_cast<int>(c.target.size()) - 1;
      // Padding first, so that the entry's own targets must be found.
      Ids target(draft_len + 1, 31);
      for (const int32_t id : Letters(c.target)) target.push_back(id);
      const VerifyOut out = RunVerify(SlotOf(c), {-1, 1}, draft_len, target, mode);
      const Ids expected = Letters(c.expected);
      const StepOutput& step = out.outputs[1];
      EXPECT_EQ(step.slot, 1);
      EXPECT_EQ(Ids(step.token_ids, step.token_ids + step.emitted_count), expected);
      EXPECT_EQ(step.length, 10 + static_cast<int>(expected.size()));
      EXPECT_EQ(step.drafts_verified, c.verified);
      EXPECT_EQ(step.finished, c.finished);
      const SlotProgress& progress = out.slots.progress[1];
      EXPECT_EQ(progress.length, step.length);
      EXPECT_EQ(progress.last_token, expected.back());
      EXPECT_EQ(progress.finished, c.finished);
      EXPECT_EQ(progress.active, 1);
      EXPECT_EQ(out.slots.drafts[1].draft_count, 0);
      Ids counts(2 * kVocab, 0);
      for (const int32_t id : expected) ++counts[kVocab + id];
      EXPECT_EQ(out.slots.output_counts, counts);
      EXPECT_EQ(out.outputs[0].slot, -1);
      EXPECT_EQ(out.outputs[0].emitted_count, 0);
    }
  }
}

TEST(VerifyDrafts, AnIllegalDraftNeverMatches) {
  // decode_rows replaces the draft by id 0, and 0 is the target's token.
  SlotFixture slots = RunningSlots();
  const VerifyOut out = RunVerify(slots, {2}, 3, {0, 0, 4, 9});
  EXPECT_EQ(out.outputs[0].emitted_count, 1);
}

// Slot 0 has length 10 and drafts 8, 9, 11. The tokens before the row that is not usable are emitted, unless
// the sequence ends before it anyway, as it would without drafts.
TEST(VerifyDrafts, EndsBeforeARowWithoutAToken) {
  const struct {
    const char* name;
    Ids target;
    float forced_length;
    int length_limit, stop_id, emitted, nonfinite;
  } cases[] = {
      {"in its first row", {kNoToken, 9, 11, 12}, 0, 100, -2, 0, 1},
      {"after two drafts", {8, 9, kNoToken, 12}, 0, 100, -2, 2, 1},
      {"after a draft that was not accepted", {8, 7, kNoToken, kNoToken}, 0, 100, -2, 2, 0},
      {"in the last row", {8, 9, 11, kNoToken}, 0, 100, -2, 3, 1},
      {"after a stop token", {8, 9, kNoToken, 12}, 0, 100, 9, 2, 0},
      {"after the length limit", {8, 9, kNoToken, 12}, 0, 12, -2, 2, 0},
      {"in a forced step", {7, kNoToken, 7, 7}, 3, 100, -2, 1, 1},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    SlotFixture slots = RunningSlots();
    slots.rule.forced_length = c.forced_length;
    slots.constants[0].length_limit = c.length_limit;
    slots.constants[0].stop_id_count = 1;
    slots.constants[0].stop_ids[0] = c.stop_id;
    const VerifyOut out = RunVerify(slots, {0}, 3, c.target);
    EXPECT_EQ(out.outputs[0].emitted_count, c.emitted);
    EXPECT_EQ(out.outputs[0].nonfinite, c.nonfinite);
    const bool ended = c.nonfinite != 0 || c.stop_id == 9 || c.length_limit == 12;
    EXPECT_EQ(out.outputs[0].finished, ended ? 1 : 0);
    EXPECT_EQ(out.slots.progress[0].finished, ended ? 1 : 0);
    EXPECT_EQ(out.slots.progress[0].length, 10 + c.emitted);
    EXPECT_EQ(out.slots.progress[0].last_token, c.emitted == 0 ? 7 : out.outputs[0].token_ids[c.emitted - 1]);
  }
}

TEST(VerifyDrafts, FreezesFinishedAndInactiveSlots) {
  const SlotFixture before = RunningSlots();
  const VerifyOut out = RunVerify(before, {1, 3}, 3, Ids(8, 1));
  for (const StepOutput& output : out.outputs) {
    EXPECT_EQ(output.slot, &output == out.outputs.data() ? 1 : 3);
    EXPECT_EQ(output.emitted_count, 0);
    EXPECT_EQ(output.drafts_verified, 0);
    EXPECT_EQ(output.length, before.progress[output.slot].length);
    EXPECT_EQ(output.finished, before.progress[output.slot].finished);
  }
  EXPECT_EQ(BytesOf(out.slots.progress.data(), 5), BytesOf(before.progress.data(), 5));
  EXPECT_EQ(BytesOf(out.slots.drafts.data(), 5), BytesOf(before.drafts.data(), 5));
  EXPECT_EQ(out.slots.output_counts, before.output_counts);
}

// ---- accept_first_token ----

TEST(AcceptFirstToken, StartsTheSlot) {
  const struct {
    const char* name;
    int token, length_limit, finished;
  } cases[] = {{"goes on", 4, 100, 0}, {"stop token", 9, 100, 1}, {"max_tokens 1", 4, 6, 1}};
  for (const auto& c : cases) {
    for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
      SCOPED_TRACE(c.name);
      SlotFixture slots(3, kVocab);
      slots.constants[2].prompt_len = 6;
      slots.constants[2].length_limit = c.length_limit;
      slots.constants[2].stop_id_count = 1;
      slots.constants[2].stop_ids[0] = 9;
      slots.drafts[2].draft_count = 5;  // of the slot's previous sequence
      OpRig rig({}, mode);
      const SlotArrays arrays = slots.Put(rig);
      StepOutput* outputs = rig.Poisoned<StepOutput>(2);
      const AcceptFirstTokenParams params = {outputs, rig.Put(Ids{0, c.token}), rig.Put(Ids{-1, 2}), arrays,
                                             2};
      rig.Run([&] { rig.ops().accept_first_token(rig.stream(), params); });
      slots.Get(rig, arrays);
      const std::vector<StepOutput> steps = rig.Get(outputs, 2);
      EXPECT_EQ(steps[0].slot, -1);
      EXPECT_EQ(steps[0].emitted_count, 0);
      EXPECT_EQ(steps[1].slot, 2);
      EXPECT_EQ(steps[1].emitted_count, 1);
      EXPECT_EQ(steps[1].token_ids[0], c.token);
      EXPECT_EQ(steps[1].length, 6);
      EXPECT_EQ(steps[1].drafts_verified, 0);
      EXPECT_EQ(steps[1].finished, c.finished);
      EXPECT_EQ(slots.progress[2].length, 6);
      EXPECT_EQ(slots.progress[2].last_token, c.token);
      EXPECT_EQ(slots.progress[2].active, 1);
      EXPECT_EQ(slots.progress[2].finished, c.finished);
      EXPECT_EQ(slots.drafts[2].draft_count, 0);
      EXPECT_EQ(slots.output_counts[2 * kVocab + c.token], 1);
      EXPECT_EQ(std::accumulate(slots.output_counts.begin(), slots.output_counts.end(), 0), 1);
    }
  }
}

TEST(AcceptFirstToken, WithoutATokenTheSequenceEnds) {
  SlotFixture slots(1, kVocab);
  slots.constants[0].prompt_len = 6;
  slots.drafts[0].draft_count = 5;
  OpRig rig({}, RunMode::kReplayed);
  const SlotArrays arrays = slots.Put(rig);
  StepOutput* outputs = rig.Poisoned<StepOutput>(1);
  const AcceptFirstTokenParams params = {outputs, rig.Put(Ids{kNoToken}), rig.Put(Ids{0}), arrays, 1};
  rig.Run([&] { rig.ops().accept_first_token(rig.stream(), params); });
  slots.Get(rig, arrays);
  const StepOutput step = rig.Get(outputs, 1)[0];
  EXPECT_EQ(step.emitted_count, 0);
  EXPECT_EQ(step.nonfinite, 1);
  EXPECT_EQ(step.finished, 1);
  EXPECT_EQ(step.length, 6);
  EXPECT_EQ(slots.progress[0].length, 6);
  EXPECT_EQ(slots.progress[0].finished, 1);
  EXPECT_EQ(slots.drafts[0].draft_count, 0);
  EXPECT_EQ(slots.output_counts, Ids(kVocab, 0));
}

// ---- drafting ----

// Entries of a step: slot 2 emitted three tokens, its length is 23; padding; slot 0 had finished before; slot
// 1 finishes in this step.
std::vector<StepOutput> DraftingOutputs() {
  return {{.slot = 2, .emitted_count = 3, .token_ids = {5, 6, 7}, .length = 23},
          {.slot = -1},
          {.slot = 0, .emitted_count = 0, .length = 9, .finished = 1},
          {.slot = 1, .emitted_count = 1, .token_ids = {8}, .length = 12, .finished = 1}};
}

TEST(EmittedRows, LaysOutEmittedTokensAtTheirPositions) {
  for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
    OpRig rig({}, mode);
    const EmittedRowsParams params = {rig.Poisoned<int32_t>(16),
                                      rig.Poisoned<int32_t>(16),
                                      rig.Poisoned<int32_t>(16),
                                      rig.Poisoned<int32_t>(4),
                                      rig.Put(DraftingOutputs()),
                                      4,
                                      3,
                                      1};
    rig.Run([&] { rig.ops().emitted_rows(rig.stream(), params); });
    EXPECT_EQ(rig.Get(params.ids, 16), (Ids{5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0}));
    EXPECT_EQ(rig.Get(params.row_slots, 16),
              (Ids{2, 2, 2, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, -1, -1, -1}));
    const Ids positions = rig.Get(params.positions, 16);
    EXPECT_EQ(Ids(positions.begin(), positions.begin() + 4), (Ids{21, 22, 23, 24}));
    EXPECT_EQ(Ids(positions.begin() + 12, positions.end()), (Ids{12, 13, 14, 15}));
    for (const int32_t position : positions) EXPECT_GE(position, 0);
    EXPECT_EQ(rig.Get(params.last_row, 4), (Ids{2, 4, 8, 12}));
  }
}

TEST(BorderBlocks, FindsTheRowsAtTheLastPositionsOfBlocks) {
  for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
    OpRig rig({}, mode);
    // Slot 1's table begins at entry 3; its block at index 2 is scratch.
    const BorderBlocksParams params = {.blocks = rig.Poisoned<int32_t>(8),
                                       .row_slots = rig.Put(Ids{0, 0, 0, 1, 1, 1, -1, 0}),
                                       .positions = rig.Put(Ids{2, 3, 4, 3, 7, 11, 3, 11}),
                                       .block_tables = rig.Put(Ids{5, 6, 7, 8, 9, 0}),
                                       .table_stride = 3,
                                       .tokens_per_block = 4,
                                       .count = 8};
    rig.Run([&] { rig.ops().border_blocks(rig.stream(), params); });
    EXPECT_EQ(rig.Get(params.blocks, 8), (Ids{-1, 5, -1, 8, 9, -1, -1, 7}));
  }
}

TEST(NextDraftRows, StandsOnePositionFurtherPerDraft) {
  for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
    OpRig rig({}, mode);
    const NextDraftRowsParams params = {rig.Poisoned<int32_t>(4),
                                        rig.Poisoned<int32_t>(4),
                                        rig.Poisoned<int32_t>(4),
                                        rig.Put(Ids{14, 15, 16, 17}),
                                        rig.Put(DraftingOutputs()),
                                        4,
                                        2};
    rig.Run([&] { rig.ops().next_draft_rows(rig.stream(), params); });
    EXPECT_EQ(rig.Get(params.ids, 4), (Ids{14, 0, 0, 0}));
    EXPECT_EQ(rig.Get(params.row_slots, 4), (Ids{2, -1, -1, -1}));
    EXPECT_EQ(rig.Get(params.positions, 4)[0], 25);
  }
}

TEST(StoreDrafts, KeepsDraftsOfRunningSlotsOnly) {
  for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
    OpRig rig({}, mode);
    SlotFixture slots(3, kVocab);
    slots.progress[0] = {.length = 9, .last_token = 1, .finished = 1, .active = 1};
    slots.progress[1] = {.length = 12, .last_token = 8, .finished = 1, .active = 1};
    slots.progress[2] = {.length = 23, .last_token = 7, .finished = 0, .active = 1};
    const SlotArrays arrays = slots.Put(rig);
    const StepOutput* outputs = rig.Put(DraftingOutputs());
    for (int i = 1; i <= 3; ++i) {
      const Ids drafts(4, 20 + i);
      const StoreDraftsParams params = {rig.Put(drafts), outputs, arrays, 4, i};
      rig.Run([&] { rig.ops().store_drafts(rig.stream(), params); });
    }
    slots.Get(rig, arrays);
    EXPECT_EQ(slots.drafts[2].draft_count, 3);
    EXPECT_EQ(Ids(slots.drafts[2].tokens, slots.drafts[2].tokens + 3), (Ids{21, 22, 23}));
    EXPECT_EQ(slots.drafts[0].draft_count, 0);
    EXPECT_EQ(slots.drafts[1].draft_count, 0);
  }
}

}  // namespace
}  // namespace foredraft
