#ifndef FOREDRAFT_SCHEDULER_PLAN_H_
#define FOREDRAFT_SCHEDULER_PLAN_H_

// All that crosses between scheduler and engine: plain data, and the interface of one rank. No gRPC, no
// device.
//
// An iteration = at most one prefill forward, then one decode step that every live slot takes part in. A
// prompt that ends in the prefill joins the decode step of the same iteration. Plans are a FIFO: results come
// back in launch order.
//
// A rank carries a plan out in this order: releases, swaps out, swaps in, admissions, block table deltas,
// prefill, decode. Slots, blocks and images of one rank mean nothing on another.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/sampling_params.h"

namespace foredraft {

inline constexpr int kScratchBlock = 0;
inline constexpr int kMaxTopLogprobs = 20;

// Where a reasoning model is: between its thinking tokens, or past them. A step's phase is that of its first
// row.
enum class Phase : int32_t { kAnswer = 0, kThinking = 1 };

// The tokens between which a model thinks; -1 = it does not. A request keeps those it came with, so that a
// reload never leaves it in a phase that was found with other ones.
struct ThinkingIds {
  int32_t begin = -1;
  int32_t end = -1;
  bool operator==(const ThinkingIds&) const = default;
};

// How drafts are accepted (docs/speculation.md section 2), from this plan on.
struct Acceptance {
  int32_t relaxed_topk = 0;  // 0 = strict; else for greedy requests while the model thinks
  float relaxed_delta = 0;   // P(candidate) >= P(most probable) - delta
  float forced_length = 0;   // 0 = not forced; else the mean tokens per step: benchmarks only
  bool operator==(const Acceptance&) const = default;
};

// A new sequence takes a batch slot. Its prompt follows in chunks, in this plan or later ones.
struct SlotAdmission {
  int32_t slot = 0;
  SamplingParams sampling;
  int32_t logprob_count = -1;  // -1 = none, else 0..20 top logprobs beside the chosen token's
  Phase phase = Phase::kAnswer;
  ThinkingIds thinking;
  int32_t draft_cap = 0;     // drafts verified per step at most
  bool strict = false;       // opts out of relaxed acceptance
  int32_t prompt_len = 0;    // m
  int32_t length_limit = 0;  // last position a token may take: min(max_seq_len, m + max_tokens) - 1
  std::vector<int32_t> stop_ids;
  int32_t reused_len = 0;  // leading prompt tokens whose blocks came from the prefix index
  int32_t boundary_block =
      -1;  // the block whose boundary holds position reused_len - 1; -1 where reused_len is 0
  std::vector<int32_t>
      reused_ids;  // those tokens, for the repetition penalty; empty unless sampling counts tokens
};

// Entries [first_index, first_index + block_ids.size()) of a slot's block table. 0 unmaps an entry.
struct BlockTableDelta {
  int32_t slot = 0;
  int32_t first_index = 0;
  std::vector<int32_t> block_ids;
};

// Prompt positions [first_position, first_position + token_ids.size()) of a slot.
struct PrefillChunk {
  int32_t slot = 0;
  int32_t first_position = 0;
  std::vector<int32_t> token_ids;
  bool last = false;  // ends the prompt: the first token is sampled, and the slot is live in this decode step
};

// The sequence leaves the device: its blocks' bytes and slot state go to host memory under image_id.
struct SwapOut {
  uint64_t image_id = 0;
  int32_t slot = 0;
  std::vector<int32_t> block_ids;  // in position order
};

// It comes back, into any slot and any blocks (their table entries come as a BlockTableDelta too). The image
// is freed.
struct SwapIn {
  uint64_t image_id = 0;
  int32_t slot = 0;
  std::vector<int32_t> block_ids;  // in position order, as many as went out
};

struct RankPlan {
  std::vector<int32_t> releases;  // slots whose sequences are over
  std::vector<uint64_t> dropped_images;
  std::vector<SwapOut> swaps_out;
  std::vector<SwapIn> swaps_in;
  std::vector<SlotAdmission> admissions;
  std::vector<BlockTableDelta> block_table_deltas;
  std::vector<PrefillChunk> prefill_chunks;
  std::vector<int32_t>
      live_slots;  // decode slots, those whose prompt ends here included; at most decode_bucket
};

struct IterationPlan {
  uint64_t number = 0;
  int32_t draft_len = 0;               // K, one for all ranks
  Acceptance acceptance;               // one for all ranks
  int32_t decode_bucket = 0;           // places in the decode step, one for all ranks; 0 = no decode step
  std::vector<int32_t> prefill_rows;   // [ranks]: tokens each rank prefills; all 0 = no prefill forward
  std::vector<int32_t> ended_prompts;  // [ranks]: prompts that end in it, of each rank
  std::vector<RankPlan> ranks;

  // One line per rank, so that a log line is a test case.
  std::string DebugString() const;
};

// True when no rank has anything to do for this plan.
bool IsEmpty(const IterationPlan& plan);

// True when some rank prefills: all then run that forward.
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

// What an iteration gave one slot. A slot that finished in an earlier step has no tokens here.
struct SlotResult {
  int32_t slot = 0;
  std::vector<int32_t> token_ids;  // the first token of a prompt that ended here, then the decode step's
  bool first_token = false;        // token_ids[0] came from the prefill
  int32_t length = 0;  // tokens in the target's cache after the iteration: p, = position of the last token
  int32_t drafts_verified = 0;         // v of the decode step
  int32_t relaxed_count = 0;           // accepted drafts of that step that the strict rule would have refused
  bool finished = false;               // stop id or length_limit reached on the device
  std::vector<TokenLogprob> logprobs;  // one per token, if asked
  std::vector<int32_t> drafts;         // what was drafted for the next step

  // Tokens of the decode step alone: n. accepted drafts = n - 1 where n > 0.
  int32_t step_token_count() const { return static_cast<int32_t>(token_ids.size()) - (first_token ? 1 : 0); }
};

struct RankResult {
  uint64_t number = 0;            // of the iteration
  std::vector<SlotResult> slots;  // the plan's live_slots, in order
  double prefill_seconds = 0;
  double decode_seconds = 0;
  bool replayed = false;  // the decode step was a graph replay
};

// One rank of the engine. Launch is called by one thread and Collect by one, the same or another. Launch
// queues work and returns; Collect waits for the oldest launched plan, with a deadline (DEADLINE_EXCEEDED).
// At most two plans are in flight. An error is final and names the rank: it is lost, and with it its group,
// whose other executors then fail without waiting, once they have handed out the results that are there.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual absl::Status Launch(const IterationPlan& plan) = 0;
  virtual absl::StatusOr<RankResult> Collect() = 0;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SCHEDULER_PLAN_H_
