#pragma once

// Everything that passes between scheduler and engine: plain data, and Executor, the interface of one rank.
// No gRPC, no device.
//
// An iteration is at most one prefill forward, then one decode step of all live slots. A prompt that ends in
// the prefill joins the decode step of the same iteration. Results come back in launch order.
//
// A rank executes a plan in this order: dropped images, releases, swaps out, swaps in, admissions, block
// table deltas, prefill, given tokens, decode. Slots and images are numbered per rank, blocks per rank and
// cache group (docs/deepseek-v4.md section 10). Group 0 is the history; a model without others has only it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/acceptance_rule.h"
#include "config/draft_calibration.h"
#include "config/gate_rule.h"
#include "grammar/token_mask.h"
#include "scheduler/sampling_params.h"

namespace foredraft {

inline constexpr int kScratchBlock = 0;  // of every group
inline constexpr int kHistoryGroup = 0;

// The gate of a slot, which GateAfter moves.
struct SlotGate {
  bool constrained = false;    // the output has a grammar; false: the other fields mean nothing
  Gate first = Gate::kBehind;  // after the prompt
  // True: ThinkingIds::begin raises the gate if it is the first token or comes before a trigger.
  bool opens_thought = false;
  std::vector<int32_t> trigger_ids;  // at most kMaxTriggerIds (config/slot_limits.h)
  // The first barred_stop_count of SlotAdmission::stop_ids: none is chosen while the gate is kThinking.
  int32_t barred_stop_count = 0;

  // A view of this gate.
  GateTokens tokens(const ThinkingIds& thinking) const {
    return {.thinking = thinking,
            .opens_thought = opens_thought,
            .trigger_ids = trigger_ids.data(),
            .trigger_count = static_cast<int32_t>(trigger_ids.size())};
  }
  bool operator==(const SlotGate&) const = default;
};

// How much a sequence may think. Once its output has `limit` thinking tokens, each further token of a thought
// is the next one of `end_ids`, whose last one ends the thought (kernels/rules/thinking_budget.h). Without
// end_ids there is no limit.
struct ThinkingBudget {
  int32_t limit = 0;
  std::vector<int32_t> end_ids;  // at most kMaxThoughtEndIds
  bool operator==(const ThinkingBudget&) const = default;
};

// A new sequence takes a decode slot. Its prompt follows in chunks, in this plan or later ones.
struct SlotAdmission {
  int32_t slot = 0;
  SamplingParams sampling;
  int32_t logprob_count = -1;  // -1 = none, else 0..20 top logprobs in addition to the chosen token's
  Phase phase = Phase::kAnswer;
  ThinkingIds thinking;
  ThinkingBudget thinking_budget;
  int32_t draft_cap = 0;     // drafts verified per step at most
  bool strict = false;       // opts out of relaxed acceptance
  int32_t prompt_len = 0;    // m
  int32_t length_limit = 0;  // the last token's position: m + max_tokens - 1
  std::vector<int32_t> stop_ids;
  int32_t reused_len = 0;  // leading prompt tokens whose blocks came from the prefix index
  // The history's block whose boundary holds position reused_len - 1; -1 where reused_len is 0.
  int32_t boundary_block = -1;
  // The reused tokens, which the penalties count; empty if the request has no penalties.
  std::vector<int32_t> reused_ids;
  SlotGate gate;
};

// Whether each token of the slot is that of the largest raw logit, and no logprobs are wanted. After argmax,
// verify_drafts can still end a thought with one token; an end of several tokens needs sampling, which also
// drafts the rest of them.
inline bool PlainArgmax(const SlotAdmission& admission) {
  return admission.sampling.is_plain_argmax() && admission.logprob_count < 0 &&
         admission.gate.barred_stop_count == 0 && admission.thinking_budget.end_ids.size() <= 1;
}

// Entries [first_index, first_index + block_ids.size()) of a slot's block table of one group. 0 unmaps an
// entry: rows of its positions are not written.
struct BlockTableDelta {
  int32_t slot = 0;
  int32_t group = kHistoryGroup;
  int32_t first_index = 0;
  std::vector<int32_t> block_ids;
};

// Prompt positions [first_position, first_position + token_ids.size()) of a slot.
struct PrefillChunk {
  int32_t slot = 0;
  int32_t first_position = 0;
  std::vector<int32_t> token_ids;
  bool last = false;  // the prompt ends: its first token is sampled and the slot is live in this decode step
};

// The blocks of one group that a sequence has: entries [first_index, first_index + block_ids.size()) of its
// table, none of them scratch.
struct CacheGroupBlocks {
  int32_t group = kHistoryGroup;
  int32_t first_index = 0;
  std::vector<int32_t> block_ids;  // in position order
};

// A sequence leaves the device: its blocks' bytes and its slot state are copied to host memory as an image.
struct SwapOut {
  uint64_t image_id = 0;
  int32_t slot = 0;
  std::vector<CacheGroupBlocks> blocks;  // of every group, in their order
};

// A swapped sequence returns to the device, in any slot and any blocks. Its block tables also come as
// BlockTableDeltas. The image is freed.
struct SwapIn {
  uint64_t image_id = 0;
  int32_t slot = 0;
  std::vector<CacheGroupBlocks> blocks;  // groups, first indices and counts as in the SwapOut
};

// Tokens that the next decode step of a live slot emits instead of choosing: 1..K+1 tokens that its client
// has already, of a sequence that goes on after a lost rank (docs/invariants.md, resume).
struct GivenTokens {
  int32_t slot = 0;
  std::vector<int32_t> token_ids;
};

// The masks of a constrained slot's rows in this plan's decode step: row j chooses from
// RankPlan::masks[mask_indices[j]], and there are no rows past the last one. Empty: the slot is held, that
// is, the step leaves it as it is. A constrained slot behind its gate without a SlotMasks is held, too.
struct SlotMasks {
  int32_t slot = 0;
  std::vector<int32_t> mask_indices;  // at most K + 1
  // Drafts of the last rows, fewer than there are masks: text that the grammar forces. They replace the
  // slot's drafts there and are verified as any draft is.
  std::vector<int32_t> forced_drafts;
};

// The mask of the first token of a prompt that ends in this plan's prefill.
struct FirstMask {
  int32_t slot = 0;
  int32_t mask_index = 0;
};

struct RankPlan {
  std::vector<int32_t> releases;  // slots whose sequences have ended
  std::vector<uint64_t> dropped_images;
  std::vector<SwapOut> swaps_out;
  std::vector<SwapIn> swaps_in;
  std::vector<SlotAdmission> admissions;
  std::vector<BlockTableDelta> block_table_deltas;
  std::vector<PrefillChunk> prefill_chunks;
  // Slots of the decode step, at most decode_bucket; those whose prompt ends in this prefill included.
  std::vector<int32_t> live_slots;
  std::vector<GivenTokens> given_tokens;  // of some live slots, in their order
  // The masks of this plan, each once; shared with the grammars that made them.
  std::vector<std::shared_ptr<const TokenMask>> masks;
  std::vector<SlotMasks> slot_masks;   // of some live slots, in their order
  std::vector<FirstMask> first_masks;  // of some prefill chunks that are their prompts' last, in their order
};

struct IterationPlan {
  uint64_t number = 0;
  int32_t draft_len = 0;      // K, one for all ranks
  AcceptanceRule acceptance;  // one for all ranks
  // Rows of the target's forward on every rank: decode_bucket * (v + 1) for 0 < v < K; each rank cuts the
  // drafts that do not fit, by their confidences. 0: a row for every draft, as in any plan with given tokens.
  int32_t verify_rows = 0;
  std::vector<DraftCalibration> calibration;  // [Kmax], one for all ranks; empty: as in the plan before
  // PlainArgmax holds for every live slot of every rank: the step has less to do. One value for all ranks,
  // because it decides which captured step they replay.
  bool argmax = false;
  int32_t decode_bucket = 0;           // padded batch size, one for all ranks; 0 = no decode step
  std::vector<int32_t> prefill_rows;   // [ranks]: tokens each rank prefills; all 0 = no prefill forward
  std::vector<int32_t> ended_prompts;  // [ranks]: prompts that end in this prefill
  std::vector<RankPlan> ranks;

  // One line per rank. Logged when a rank is lost; tests compare plans by it.
  std::string DebugString() const;
};

// True when no rank has anything to do for this plan.
bool IsEmpty(const IterationPlan& plan);

// True when some rank prefills. All ranks then run the prefill forward, some perhaps with no rows.
bool HasPrefill(const IterationPlan& plan);

struct TopLogprob {
  int32_t token_id = 0;
  float logprob = 0;
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  std::vector<TopLogprob> top;  // descending
};

// Result of an iteration for one slot. A slot that finished in an earlier step has no tokens here; a held
// slot has none of the decode step.
struct SlotResult {
  int32_t slot = 0;
  std::vector<int32_t> token_ids;  // the prefill's first token, where the prompt ended; then the step's
  bool first_token = false;        // token_ids[0] came from the prefill
  int32_t length = 0;  // p, tokens in the target's cache after the iteration: the last token's position
  int32_t drafts_verified = 0;  // v of the decode step
  int32_t relaxed_count = 0;    // emitted drafts of the step that the strict rule rejects
  // The step has no token of the target after its accepted drafts: the limit, a stop id or the gate ended it
  // at the last of these drafts.
  bool ends_in_draft = false;
  bool finished = false;  // stop id or length_limit reached on the device, or the logits are not usable
  std::vector<TokenLogprob> logprobs;  // one per token, if requested
  // The confidences of the K drafts that the step made for the next one: logits of the chance that a draft is
  // accepted, given that those before it were. Empty where the drafter has none or the draft policy reads
  // none.
  std::vector<float> confidences;
  // The drafts that the slot has now, if its sequence is constrained and goes on: its next masks depend on
  // them.
  std::vector<int32_t> drafts;
  // The logits after the last of token_ids have NaN or infinity: the sequence cannot go on.
  bool nonfinite_logits = false;

  // Tokens of the decode step alone: n. Its accepted drafts are n - 1 where n > 0, whatever ends_in_draft is.
  int32_t step_token_count() const { return static_cast<int32_t>(token_ids.size()) - (first_token ? 1 : 0); }
};

struct RankResult {
  uint64_t number = 0;            // of the iteration
  std::vector<SlotResult> slots;  // the plan's live_slots, in order
  double prefill_seconds = 0;
  double decode_seconds = 0;
  bool replayed = false;  // the decode step was a graph replay
};

// The most plans of a rank that are launched and not collected (docs/invariants.md, two-in-flight).
inline constexpr int kMaxPlansInFlight = 2;

// One rank of the engine. One thread calls Launch, and one calls Collect, the same or another. Launch queues
// the work and returns. Collect waits for the oldest launched plan, up to a deadline (DEADLINE_EXCEEDED). An
// error names the rank and is final: the whole rank group is lost. Its other executors return the results
// they already have, then fail without waiting.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual absl::Status Launch(const IterationPlan& plan) = 0;
  virtual absl::StatusOr<RankResult> Collect() = 0;
  // Called when Collect's last result does not answer its plan (Scheduler::CheckResult): the rank is lost. A
  // rank in this process never gives such a result, so the default fails a CHECK.
  virtual void Refuse(const absl::Status& why);

  // The prompts of this launched plan are not wanted any more: an executor that can, ends its prefill early.
  // The plan's result still comes, but its content for those prompts has no meaning. Any thread.
  virtual void AbandonPrefill(uint64_t /*plan_number*/) {}
};

}  // namespace foredraft
