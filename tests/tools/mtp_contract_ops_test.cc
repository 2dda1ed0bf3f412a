// The slot ops of a captured step compute what the contract's helpers specify (docs/mtp-contract.md section
// 3), over random batches, under strict acceptance.
//
// The two conventions, for a sequence whose last committed token t_p is at position p, with v drafts:
//   contract                                    ops
//   current token, W drafts                     last_token, the v drafts that the step verifies
//   kv_len = position of the last row           length + v
//   row of the target at position p             the same
//   row of the MTP layer at position p          position p + 1: a row belongs to its token t_{p+1}
//   accepted_num                                emitted_count - 1: the ops count the target's own token
// A helper takes requests with equally many drafts, so each entry of a batch is one call with batch 1.
// Entries that the ops treat as idle have no request.

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/slot_fixture.h"
#include "tools/validate_mtp/mtp_contract.h"

namespace foredraft {
namespace {

constexpr int kVocab = 4;  // few, so that drafts are often right
constexpr int kSlots = 6;
constexpr int kBatches = 300;

struct Batch {
  SlotFixture slots{kSlots, kVocab};
  std::vector<int32_t> live;    // [bucket], -1 = padding
  std::vector<int32_t> target;  // [bucket * (K + 1)]
  int draft_len;

  int bucket() const { return static_cast<int>(live.size()); }
  int rows() const { return bucket() * (draft_len + 1); }
};

Batch RandomBatch(Noise& noise) {
  Batch batch;
  batch.draft_len = noise.Int(0, kMaxDraftLen);
  for (int slot = 0; slot < kSlots; ++slot) {
    batch.slots.progress[slot] = {.length = noise.Int(1, 500),
                                  .last_token = noise.Int(0, kVocab - 1),
                                  .finished = noise.Int(0, 9) == 0,
                                  .active = 1};
    batch.slots.drafts[slot].draft_count = noise.Int(0, batch.draft_len);
    for (int32_t& draft : batch.slots.drafts[slot].tokens) draft = noise.Int(0, kVocab - 1);
    batch.slots.constants[slot].draft_cap = noise.Int(0, 3) == 0 ? noise.Int(0, kMaxDraftLen) : kMaxDraftLen;
    batch.slots.constants[slot].length_limit =
        batch.slots.progress[slot].length + (noise.Int(0, 3) == 0 ? noise.Int(1, kMaxDraftLen + 1) : 100);
  }
  std::vector<int32_t> order = {0, 1, 2, 3, 4, 5, -1, -1};
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[noise.Int(0, static_cast<int>(i))]);
  batch.live.assign(order.begin(), order.begin() + noise.Int(1, static_cast<int>(order.size())));
  for (int row = 0; row < batch.rows(); ++row) batch.target.push_back(noise.Int(0, kVocab - 1));
  return batch;
}

// What the ops computed for a batch: a whole step but for the model.
struct Step {
  std::vector<int32_t> ids, row_slots, positions;              // decode_rows
  std::vector<StepOutput> outputs;                             // verify_drafts
  std::vector<int32_t> mtp_ids, mtp_row_slots, mtp_positions;  // emitted_rows
  std::vector<int32_t> last_row;
};

Step RunStep(const Batch& batch, RunMode mode) {
  OpRig rig({}, mode);
  const SlotArrays slots = batch.slots.Put(rig);
  const int32_t* const live = rig.Put(batch.live);
  const int rows = batch.rows();
  const auto ints = [&](int count) { return rig.Poisoned<int32_t>(count); };
  const DecodeRowsParams decode = {ints(rows), ints(rows), ints(rows),     ints(rows),
                                   live,       slots,      batch.bucket(), batch.draft_len};
  const VerifyDraftsParams verify = {.outputs = rig.Poisoned<StepOutput>(batch.bucket()),
                                     .target_ids = rig.Put(batch.target),
                                     .relaxed = rig.Put(std::vector<int32_t>(rows, 0)),
                                     .live_slots = live,
                                     .slots = slots,
                                     .bucket = batch.bucket(),
                                     .draft_len = batch.draft_len};
  const EmittedRowsParams emitted = {.ids = ints(rows),
                                     .row_slots = ints(rows),
                                     .positions = ints(rows),
                                     .last_row = ints(batch.bucket()),
                                     .outputs = verify.outputs,
                                     .bucket = batch.bucket(),
                                     .draft_len = batch.draft_len,
                                     .level = 1};
  rig.Run([&] {
    rig.ops().decode_rows(rig.stream(), decode);
    rig.ops().verify_drafts(rig.stream(), verify);
    rig.ops().emitted_rows(rig.stream(), emitted);
  });
  return {.ids = rig.Get(decode.ids, rows),
          .row_slots = rig.Get(decode.row_slots, rows),
          .positions = rig.Get(decode.positions, rows),
          .outputs = rig.Get(verify.outputs, batch.bucket()),
          .mtp_ids = rig.Get(emitted.ids, rows),
          .mtp_row_slots = rig.Get(emitted.row_slots, rows),
          .mtp_positions = rig.Get(emitted.positions, rows),
          .last_row = rig.Get(emitted.last_row, batch.bucket())};
}

// One request of a batch, as the contract sees it.
struct Request {
  int64_t current;
  std::vector<int64_t> drafts;  // [v]
  int64_t length;               // p
  int64_t room;                 // tokens up to the length limit
};

// Nothing for padding and finished slots.
std::optional<Request> RequestOf(const Batch& batch, int entry) {
  const int32_t slot = batch.live[entry];
  if (slot < 0 || batch.slots.progress[slot].finished != 0) return std::nullopt;
  const SlotProgress& progress = batch.slots.progress[slot];
  const SlotDrafts& drafts = batch.slots.drafts[slot];
  const int count = std::min(
      {drafts.draft_count, batch.slots.constants[slot].draft_cap, static_cast<int32_t>(batch.draft_len)});
  return Request{.current = progress.last_token,
                 .drafts = {drafts.tokens, drafts.tokens + count},
                 .length = progress.length,
                 .room = batch.slots.constants[slot].length_limit - progress.length};
}

void ExpectDecodeRows(const Batch& batch, const Step& step, int entry, const Request& request) {
  const int64_t drafts = static_cast<int64_t>(request.drafts.size());
  const std::vector<int64_t> current = {request.current}, accepted = {0}, kv_len = {request.length + drafts};
  const absl::StatusOr<MainDecodeInputs> inputs =
      BuildMainDecodeInputIdsForMtp({current, request.drafts, accepted, kv_len}, drafts);
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_EQ(inputs->kv_len[0], request.length + drafts + drafts + 1);
  const int first = entry * (batch.draft_len + 1);
  for (int j = 0; j <= batch.draft_len; ++j) {
    const bool live = j <= drafts;
    EXPECT_EQ(step.row_slots[first + j], live ? batch.live[entry] : -1);
    if (!live) continue;
    EXPECT_EQ(step.ids[first + j], inputs->input_ids[j]);
    EXPECT_EQ(step.positions[first + j], inputs->position_ids[j]);
  }
}

// `main_next`: the target's tokens of the entry, [K + 1].
void ExpectVerified(const Step& step, int entry, const Request& request, const TokenArray& main_next) {
  const int64_t drafts = static_cast<int64_t>(request.drafts.size());
  const auto accepted = VerifyMtpSpecTokens({{1, drafts}, request.drafts}, main_next);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  const StepOutput& output = step.outputs[entry];
  EXPECT_EQ(output.emitted_count, std::min<int64_t>((*accepted)[0] + 1, request.room));
  EXPECT_EQ(output.length, request.length + output.emitted_count);
  EXPECT_EQ(output.drafts_verified, drafts);
}

void ExpectEmittedRows(const Batch& batch, const Step& step, int entry, const Request& request,
                       const TokenArray& main_next) {
  const std::vector<int64_t> ids = BuildMtpDecodeInputIds(main_next);
  const int first = entry * (batch.draft_len + 1);
  const int emitted = step.outputs[entry].emitted_count;
  for (int j = 0; j <= batch.draft_len; ++j) {
    EXPECT_EQ(step.mtp_row_slots[first + j], j < emitted ? batch.live[entry] : -1);
    if (j >= emitted) continue;
    EXPECT_EQ(step.mtp_ids[first + j], ids[j]);
    EXPECT_EQ(step.mtp_positions[first + j], request.length + j + 1);
  }
  EXPECT_EQ(step.last_row[entry], first + emitted - 1);
}

TEST(MtpContract, SpecifiesAStepOfTheOps) {
  Noise noise(17);
  int64_t accepted = 0;
  for (int i = 0; i < kBatches; ++i) {
    SCOPED_TRACE("batch " + std::to_string(i));
    const Batch batch = RandomBatch(noise);
    const Step step = RunStep(batch, i % 2 == 0 ? RunMode::kEager : RunMode::kReplayed);
    for (int entry = 0; entry < batch.bucket(); ++entry) {
      SCOPED_TRACE("entry " + std::to_string(entry));
      const int first = entry * (batch.draft_len + 1);
      const std::optional<Request> request = RequestOf(batch, entry);
      if (!request) {
        EXPECT_EQ(step.outputs[entry].emitted_count, 0);
        for (int j = 0; j <= batch.draft_len; ++j) {
          EXPECT_EQ(step.row_slots[first + j], -1);
          EXPECT_EQ(step.mtp_row_slots[first + j], -1);
        }
        continue;
      }
      const TokenArray main_next = {
          {1, batch.draft_len + 1},
          {batch.target.begin() + first, batch.target.begin() + first + batch.draft_len + 1}};
      ExpectDecodeRows(batch, step, entry, *request);
      ExpectVerified(step, entry, *request, main_next);
      ExpectEmittedRows(batch, step, entry, *request, main_next);
      accepted += step.outputs[entry].emitted_count - 1;
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(accepted, kBatches / 4);  // the batches test acceptance, not only rejection
}

// Recycling the MTP layer: draft i comes from the row at position length + i - 1 of next_draft_rows (i > 1),
// and store_drafts keeps it. The contract's state does the same with accepted_num = i - 1, the drafts already
// there, and its kv_len moves by one per draft.
TEST(MtpContract, SpecifiesTheRecycledDrafts) {
  Noise noise(18);
  for (int i = 0; i < kBatches / 3; ++i) {
    SCOPED_TRACE("batch " + std::to_string(i));
    const int64_t batch = noise.Int(1, kSlots);
    const int64_t draft_len = noise.Int(1, kMaxDraftLen);
    SlotFixture slots(kSlots, kVocab);
    std::vector<StepOutput> outputs(batch);
    MtpState state{.spec_tokens = {{batch, draft_len}, std::vector<int64_t>(batch * draft_len, 3)}};
    for (int64_t entry = 0; entry < batch; ++entry) {
      const int32_t slot = static_cast<int32_t>(kSlots - 1 - entry);
      slots.progress[slot] = {.length = noise.Int(1, 500), .last_token = 1, .finished = 0, .active = 1};
      outputs[entry] = {.slot = slot, .emitted_count = 1, .length = slots.progress[slot].length};
      state.kv_len.push_back(slots.progress[slot].length);
    }
    OpRig rig({}, RunMode::kEager);
    const SlotArrays arrays = slots.Put(rig);
    const StepOutput* const step_outputs = rig.Put(outputs);
    for (int64_t draft = 1; draft <= draft_len; ++draft) {
      TokenArray sampled = {{batch}, {}};
      std::vector<int32_t> ids;
      for (int64_t entry = 0; entry < batch; ++entry) ids.push_back(noise.Int(0, kVocab - 1));
      sampled.values.assign(ids.begin(), ids.end());
      state.accepted_num.assign(batch, draft - 1);
      const absl::StatusOr<MtpState> next = UpdateMtpStateAfterStep(state, {.sampled_tokens = sampled});
      ASSERT_TRUE(next.ok()) << next.status();
      state = *next;
      const int32_t* const draft_ids = rig.Put(ids);
      const int32_t index = static_cast<int32_t>(draft);
      const NextDraftRowsParams rows = {.ids = rig.Poisoned<int32_t>(batch),
                                        .row_slots = rig.Poisoned<int32_t>(batch),
                                        .positions = rig.Poisoned<int32_t>(batch),
                                        .draft_ids = draft_ids,
                                        .outputs = step_outputs,
                                        .bucket = static_cast<int32_t>(batch),
                                        .draft_index = index};
      rig.Run([&] {
        rig.ops().store_drafts(rig.stream(), {draft_ids, step_outputs, arrays, rows.bucket, index});
        rig.ops().next_draft_rows(rig.stream(), rows);
      });
      slots.Get(rig, arrays);
      const std::vector<int32_t> row_ids = rig.Get(rows.ids, batch);
      const std::vector<int32_t> positions = rig.Get(rows.positions, batch);
      for (int64_t entry = 0; entry < batch; ++entry) {
        const SlotDrafts& drafts = slots.drafts[outputs[entry].slot];
        EXPECT_EQ(drafts.draft_count, draft);
        for (int64_t j = 0; j < draft_len; ++j) {
          const int64_t specified = state.spec_tokens.values[entry * draft_len + j];
          EXPECT_EQ(specified, j < draft ? drafts.tokens[j] : 0);
        }
        EXPECT_EQ(row_ids[entry], ids[entry]);
        EXPECT_EQ(positions[entry], state.kv_len[entry]);
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace foredraft
