#pragma once

// Decides, for all ranks, what every iteration does: Plan and Commit (docs/architecture.md section 4). No
// clock, device, thread or callback: data in, data out; time is an argument. Only masks are made on several
// threads and timed (mask_workers.h), which changes no plan. Thread: one (the scheduler's).
//
// clang-format off
// Block invariants, cited by name. Positions as in docs/speculation.md section 1.6; all bounds are tight.
//   plan-bound     A sequence that is live in a plan owns positions 0 .. length_upper + K + A, where
//                  length_upper = min(length + sum of (K_j + 1) over unresolved steps, length_limit) and A is
//                  rows_ahead of drafter_requirements.h. In a window (cache_group_shape.h) it owns
//                  those from max(0, length_lower - lookback) on, where length_lower = length + the number of
//                  unresolved steps.
//   rewind         Commit releases the blocks wholly at or past length + sum of (K_j + 1) + A, over the
//                  steps that are still unresolved: a drafter's rows length .. length + A - 1 are live.
//   pass           Commit and Plan release the window blocks wholly below length_lower - lookback. Commit does
//                  because the length has grown. Plan does because length_lower also grows with a launched step
//                  that has no result yet. Every later plan starts at length_lower or later, because each
//                  unresolved step gives a token, so it reads no position below. The plan in flight starts at
//                  `length` and may read one position more, but is carried out before any plan that hands out
//                  the block (stream-order).
//   prompt-window  A prompt chunk a .. b-1 has window memory for what it reads, a - lookback .. a-1, for what is
//                  read after it, b - lookback and on, and for the prefix ends that its prompt keeps, until they
//                  are offered. Its other rows are not written.
//   image-bound    A swap copies positions 0 .. length_upper + A - 1, of a window those from
//                  max(0, length_lower - lookback) on. A sequence that the launched plan swaps out is not rewound;
//                  if it ended, its image is dropped.
//   stream-order   Ranks execute plans in order, so a plan may hand out blocks and slots that the plan in
//                  flight still uses: those of a sequence that ended or was swapped out.
//   resume         After the loss of a rank a sequence is admitted again: its prompt in the prefill form, then the
//                  tokens that were delivered as given tokens of decode steps, up to K + 1 a step. Rows are
//                  computed alone, so the tokens after them have the same bits as without the loss.
//   offer          A block enters the prefix index when the iteration that filled its last prompt row is
//                  committed. It is never written again. With windows, a prompt keeps at most two prefix
//                  ends: where its last full history block ends, for the next turn of its conversation, and
//                  where it leaves a prefix that is cached without windows, for other prompts that begin so.
//                  With reuse_generated, a block with generated tokens enters it when the step that gave its
//                  last token is committed, until the sequence is swapped out: a block does not keep its
//                  boundary in an image. With windows, an answer has one prefix end, its last.
//   table-mirror and reservation are in rank_state.h, block-conservation is in kv_block_pool.h.
// clang-format on

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "scheduler/cache_group_shape.h"
#include "scheduler/drafter_requirements.h"
#include "scheduler/mask_budget.h"
#include "scheduler/mask_job.h"
#include "scheduler/mask_workers.h"
#include "scheduler/plan.h"
#include "scheduler/policies/draft_policy.h"
#include "scheduler/policies/prefill_pace.h"
#include "scheduler/policies/speculation.h"
#include "scheduler/rank_state.h"
#include "scheduler/request.h"
#include "scheduler/request_size.h"
#include "scheduler/sequence.h"
#include "scheduler/wait_queue.h"

namespace foredraft {

struct SchedulerOptions {
  int rank_count = 1;
  int max_batch_size = 64;    // decode slots per rank
  int max_num_tokens = 8192;  // prefill budget per rank and iteration
  // How long the prompt tokens of an iteration may take, in seconds; 0: as long as max_num_tokens take.
  // decode_pause_seconds holds while streams decode (PrefillPace; both need chunked prefill).
  double prefill_seconds = 0;
  double decode_pause_seconds = 0;
  int max_seq_len = 4096;
  bool enable_chunked_prefill = true;  // false requires max_num_tokens >= max_seq_len
  int batching_wait_iters = 10;
  // A request goes before one that arrived this much earlier and whose priority is lower by one
  // (wait_queue.h). 0: a higher priority always goes first.
  std::chrono::seconds priority_ageing{0};
  // The cache groups: the history, then windows. The history's blocks are whole blocks of every window, and a
  // window's pool holds at least one sequence (MinBlockCount).
  std::vector<CacheGroupShape> groups = {CacheGroupShape()};
  bool enable_block_reuse = true;
  bool reuse_generated = false;   // blocks with generated tokens, too; needs enable_block_reuse
  int64_t host_frame_count = 0;   // per rank: frames of the host store of swapped sequences
  int64_t host_image_frames = 0;  // of these, how many the slot state of one swapped sequence takes
  std::vector<int> batch_sizes = {1, 2, 4, 8, 16, 32, 64};  // decode buckets, ascending
  int max_draft_len = 0;                                    // Kmax; 0 = no drafts
  DrafterRequirements drafter;
  // The first Speculation; K <= max_draft_len.
  int draft_len = 0;
  AcceptanceRule acceptance;
  DraftPolicyOptions draft_policy;
  // After the loss of a rank, requests wait for the ranks to start again and go on. False: they end, and no
  // output is kept for a replay.
  bool resume = false;
  bool keeps_output() const { return resume || reuse_generated; }
  int mask_threads = 1;  // that make masks, the scheduler's included
  // The most admitted sequences with a constraint per rank; further ones wait as for a slot.
  int max_live_constraints = 256;
  // For tests: if it returns true, a plan takes the masks of a slot as not ready, although they may be.
  // Changes no token.
  std::function<bool()> masks_are_late;

  RequestSizeLimits request_size() const {
    return RequestSizeLimits::Of(max_seq_len, groups[kHistoryGroup].block_count,
                                 groups[kHistoryGroup].tokens_per_block, max_draft_len + drafter.rows_ahead);
  }

  // The smallest pool of a window, scratch included.
  int MinBlockCount(const CacheGroupShape& window) const {
    return 1 + window.PromptExtent(max_seq_len + max_draft_len + drafter.rows_ahead, /*end_count=*/0,
                                   max_draft_len, drafter.rows_ahead);
  }
};

// Blocks of one cache group of a rank, scratch not counted.
struct CacheGroupLoad {
  int64_t used = 0;
  int64_t free = 0;
  int64_t cached = 0;  // not referenced, kept for reuse
};

// The current load of one rank.
struct RankLoad {
  int running = 0;          // sequences with a slot or swapped out
  int64_t blocks_used = 0;  // of the history
  int64_t blocks_free = 0;
  int64_t blocks_cached = 0;
  int64_t prefill_tokens = 0;          // prompt tokens of admitted sequences that no plan computes yet
  std::vector<CacheGroupLoad> groups;  // in the order of SchedulerOptions::groups, the history first
};

// The current load, and counters since the start.
struct SchedulerLoad {
  int running = 0;
  int waiting = 0;
  int swapped = 0;
  int slots_used = 0;
  int64_t waiting_prompt_tokens = 0;
  int64_t blocks_used = 0;  // of the history, over all ranks, scratch not counted
  int64_t blocks_free = 0;
  int64_t blocks_cached = 0;     // not referenced, kept for reuse
  int draft_len = 0;             // K in use
  double speed_up = 0;           // DraftPolicy::SpeedUp
  double calibration_error = 0;  // DraftPolicy::calibration_error
  std::vector<RankLoad> ranks;
  // Sums over prompts whose first token was computed; the metrics count only prompts whose stream was still
  // open.
  uint64_t prefix_queried_tokens = 0;
  uint64_t prefix_hit_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t wasted_steps = 0;  // slot-steps computed for sequences that had already ended
  uint64_t rewound_blocks = 0;
  uint64_t cut_drafts = 0;        // drafts made but not verified, because other drafts had the rows
  uint64_t resumed_requests = 0;  // repeated admissions after a loss
  uint64_t replayed_tokens = 0;   // delivered tokens that were computed again
  uint64_t nonfinite_logits = 0;  // requests that ended because of them
  // Accounting of constrained sequences.
  uint64_t held_slots = 0;              // slots that a step left as they were, because they had no masks
  uint64_t mask_steps = 0;              // decode steps with masks, which were launched without overlap
  uint64_t masks = 0;                   // rows that chose with a mask; first tokens are not counted
  uint64_t drafts_outside_grammar = 0;  // slot-steps with a draft that the grammar refuses
  uint64_t forced_drafts = 0;           // SlotMasks::forced_drafts
  double mask_seconds = 0;              // of CPU, to make the masks of all these steps
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // Queues a request. INVALID_ARGUMENT names the limit if the request can never run (request_size.h).
  absl::Status Submit(Request request);

  // Ends a request: its last update is ready and its blocks are available at once. Unknown and ended ids are
  // ignored.
  void Cancel(uint64_t request_id, FinishReason reason);

  // Plans the next iteration. If a plan is in flight (at most one may be), lengths are upper bounds. Ends
  // requests whose deadline is at or before `now`. The caller launches the plan unless it IsEmpty; the number
  // of an empty plan is reused.
  IterationPlan Plan(SteadyTime now);

  // The requests whose prompt chunks the last plan has.
  std::vector<uint64_t> PromptsOfLastPlan() const;

  // Ok if the result answers the oldest plan that is not committed; Commit CHECKs it. Callers with ranks in
  // other processes call this first. INVALID_ARGUMENT names the field, its value and what is allowed.
  absl::Status CheckResult(int rank, const RankResult& result) const;

  // Applies the results of the oldest plan not yet committed, one per rank. step_seconds: duration of the
  // decode step, the host's part included, for the draft policy; 0 = not measured: the slowest rank's
  // decode_seconds is used.
  void Commit(std::vector<RankResult> results, double step_seconds = 0);

  // The last Commit after a rank was lost: it applies the results of the ranks that answered, so that their
  // tokens are delivered. LoseRanks must follow.
  void CommitAnswered(std::vector<std::optional<RankResult>> results);

  // A rank was lost: no plan in flight will be committed, and the ranks start again with nothing. Without
  // options().resume all requests end with `error`. Otherwise sequences that had been admitted wait again,
  // before new requests and in their old order. One that was in a lost plan for the kFruitlessLosses-th time
  // without a new token in between ends with UNAVAILABLE: it may be the cause.
  void LoseRanks(const absl::Status& error);
  static constexpr int kFruitlessLosses = 5;

  // Ends the requests whose deadline is at or before `now`. Plan also calls it.
  void ExpireDeadlines(SteadyTime now);

  // Updates gathered since the last call, in order.
  std::vector<RequestUpdate> TakeUpdates();

  // True while a request waits, runs or is swapped, or a plan is not committed, or a release is not yet
  // planned.
  bool HasWork() const;

  // True while a live sequence is behind its gate: its next masks follow from the results of all launched
  // plans. A plan that is made before those results holds its slot, which costs the step, never a token.
  bool NeedsResults() const;

  // CPU time of masks since the last call, by Request::caller.
  std::vector<std::pair<std::string, double>> TakeMaskSeconds();

  // Ends all requests with this reason; for kError, `error` is their UNAVAILABLE status.
  void EndAll(FinishReason reason, const absl::Status& error);

  // Takes effect at the next Plan. K <= max_draft_len.
  void SetSpeculation(const Speculation& speculation);

  SchedulerLoad load() const;
  int waiting_count() const { return waiting_.size(); }  // load().waiting
  const SchedulerOptions& options() const { return options_; }

  // CHECKs block-conservation, every reference count and reservation of every rank.
  void CheckInvariants() const;

 private:
  enum class Masking {
    kFree,    // no row has a mask: the slot is not constrained, has given tokens, or its gate is up
    kMasked,  // every row has one
    kHeld,    // the step leaves it as it is
  };
  struct LaunchedSlot {
    Sequence* sequence = nullptr;
    bool given = false;  // the step emits given tokens: it says nothing about drafts
    Masking masking = Masking::kFree;
    int mask_count = 0;  // of its rows
    int own_drafts =
        std::numeric_limits<int>::max();  // how many of the drafter's drafts its rows verify, at most
    int forced_drafts = 0;                // SlotMasks::forced_drafts
    bool leaves_grammar = false;          // the grammar refuses a draft of the drafter
  };
  struct LaunchedRank {
    std::vector<LaunchedSlot> live;                               // in the order of the plan's live_slots
    std::vector<std::pair<Sequence*, int32_t>> chunks;            // prefill chunks: sequence, end position
    std::vector<Sequence*> named;                                 // all sequences of the plan, each once
    absl::flat_hash_map<const TokenMask*, int32_t> mask_indices;  // in RankPlan::masks
  };
  // What Commit needs to know about a plan. The plan's sequences are not freed before it is committed
  // (Sequence::plans_in_flight).
  struct LaunchedPlan {
    uint64_t number = 0;
    int32_t draft_len = 0;
    int32_t cut_len = 0;  // drafts per seat without a row
    int decode_bucket = 0;
    bool forced = false;
    PrefillWork prefill;  // of the rank with the most tokens
    std::vector<LaunchedRank> ranks;
  };
  struct Placement {  // of a waiting request
    int rank = -1;    // -1 = there is no room now
    bool swappable = false;
    PrefixMatch match;
    std::vector<int32_t> ends;  // Sequence::ends
  };

  void CheckGroups() const;
  void MakeRanks();
  void SetOrder(Sequence* sequence) const;

  // Ends of sequences (scheduler.cc).
  void End(Sequence* sequence, FinishReason reason, const absl::Status& error);
  void Leave(Sequence* sequence);            // its last update is among updates_
  void ForgetIfUnnamed(Sequence* sequence);  // once it has ended and no launched plan names it

  // Phases of Plan (scheduler_plan.cc, scheduler_admit.cc).
  void PlanReleases(IterationPlan* plan);
  void PlanGrowth(int rank, IterationPlan* plan);
  void GrowByPreemption(int rank, IterationPlan* plan);
  void SwapOutSequence(Sequence* sequence, IterationPlan* plan);
  void PlanSwapsIn(int rank, IterationPlan* plan);
  void PlanAdmissions(SteadyTime now, IterationPlan* plan);
  bool FitsRank(const Sequence& sequence, int rank, Placement* placement) const;
  bool HasRoom(const Sequence& sequence, int rank, int end_count, bool* swappable) const;
  bool HasBlocks(const Sequence& sequence, int rank, const Placement& placement) const;
  std::vector<int32_t> EndsToKeep(const Sequence& sequence, const PrefixMatch& match) const;
  CacheGroupCounts FreshBlocks(const Sequence& sequence, const Placement& placement) const;
  int64_t HostExtent(const Sequence& sequence) const;
  Placement Place(const Sequence& sequence) const;
  void Admit(Sequence* sequence, const Placement& placement, SteadyTime now, IterationPlan* plan);
  bool Decodes(const IterationPlan& plan) const;
  double PrefillSeconds(bool decodes) const;
  bool PrefillIsDue(const IterationPlan& plan, double seconds) const;
  void PlanPrefill(IterationPlan* plan);
  void PlanRankPrefill(int rank, double seconds, IterationPlan* plan);
  void PlanDecode(IterationPlan* plan);
  void PlanDrafts(const std::vector<int>& live_by_cap, IterationPlan* plan);
  void Name(Sequence* sequence, uint64_t plan_number);

  // Masks (scheduler_masks.cc).
  int32_t AddMask(int rank, std::shared_ptr<const TokenMask> mask, IterationPlan* plan);
  void PlanFirstMask(Sequence* sequence, IterationPlan* plan);
  Masking MaskingOf(const Sequence& sequence) const;
  void CountLongJobs();
  void CountWork(MaskJob& job);
  void MakeLater(const std::shared_ptr<MaskJob>& job);
  RowLimits RowLimitsOf(const Sequence& sequence, int draft_len) const;
  bool LacksMasks(const Sequence& sequence) const;
  void HoldForMasks(IterationPlan* plan);
  void WaitForMasks(std::vector<Sequence*>* lacking);
  void WaitUnlessUseful(const IterationPlan& plan);
  void PlanMasks(IterationPlan* plan);
  bool PlanRows(LaunchedSlot& live, IterationPlan* plan, int rank, SlotMasks& entry);
  static void HoldLaunched(LaunchedSlot& live, int draft_len);
  void NoteRows(LaunchedSlot& live, std::span<const int32_t> drafts, const GrammarRows& rows);
  absl::Status TakeTokens(const LaunchedPlan& launched, Sequence* sequence, const SlotResult& result);

  // Parts of Commit (scheduler_commit.cc).
  void CommitResult(const LaunchedPlan& launched, const LaunchedSlot& live, SlotResult* result);
  RequestUpdate& Deliver(const LaunchedPlan& launched, const LaunchedSlot& live, SlotResult* result,
                         int step_tokens);
  void FinishResult(Sequence* sequence, RequestUpdate* update);
  void ObserveStep(const LaunchedPlan& launched, const std::vector<RankResult>& results, double step_seconds);
  void ObservePrefill(const LaunchedPlan& launched, const std::vector<RankResult>& results);
  void ObserveConfidences(const LaunchedPlan& launched, const LaunchedSlot& live, const SlotResult& slot,
                          bool cut, StepObservation& step);
  absl::Status CheckResult(const LaunchedPlan& launched, int rank, const RankResult& result) const;
  absl::Status CheckSlotResult(const LaunchedPlan& launched, const LaunchedSlot& live, bool prompt_ends,
                               const SlotResult& result) const;
  void CommitRank(const LaunchedPlan& launched, int rank, RankResult* result);
  void OfferGenerated(Sequence* sequence);

  // Resume (scheduler_resume.cc).
  void WaitAgain(Sequence* sequence);
  void CountLoss(Sequence* sequence) const;
  void GiveTokens(LaunchedSlot& live, int draft_len, RankPlan* plan);
  absl::Status DropReplayed(Sequence* sequence, SlotResult* result);

  // The least allowance (MaskWork) of an attempt at masks for which a plan waits, however many attempts it
  // has.
  static constexpr int64_t kLeastAttempt = 500;

  int DraftCap(const Sequence& sequence) const;
  int OwnPositions(int length, int draft_len) const;
  bool FitsBack(const Sequence& sequence, int rank) const;
  int DecodingCount(int rank) const;

  const SchedulerOptions options_;
  Speculation speculation_;
  PrefillPace prefill_pace_;
  DraftPolicy draft_policy_;
  int last_draft_len_;  // SchedulerLoad::draft_len
  std::deque<RankState> ranks_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Sequence>> sequences_;  // by request id, until freed
  WaitQueue waiting_;
  std::map<std::pair<SteadyTime, uint64_t>, Sequence*> deadlines_;  // (deadline, arrival number), not ended
  std::deque<LaunchedPlan> in_flight_;                              // at most 2, between Plan and Commit
  LaunchedPlan planning_;                                           // of the plan being made
  std::vector<RequestUpdate> updates_;
  uint64_t next_plan_ = 1;
  uint64_t next_arrival_ = 1;
  uint64_t next_admission_ = 1;
  uint64_t next_image_ = 1;
  int running_ = 0;
  int constrained_count_ = 0;             // admitted sequences with a constraint
  std::vector<int> constrained_of_rank_;  // the same, of each rank
  MaskBudget mask_budget_;
  std::map<std::string, double> mask_seconds_;       // TakeMaskSeconds
  std::vector<std::shared_ptr<MaskJob>> long_jobs_;  // given to mask_workers_ and not yet counted
  MaskWorkers mask_workers_;
  SchedulerLoad counters_;  // the cumulative ones
};

}  // namespace foredraft
