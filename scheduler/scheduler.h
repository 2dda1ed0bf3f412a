#ifndef FOREDRAFT_SCHEDULER_SCHEDULER_H_
#define FOREDRAFT_SCHEDULER_SCHEDULER_H_

// Decides, for all ranks, what every iteration does: Plan and Commit (design section 4). No clock, device,
// thread or callback: data in, data out; time is an argument. Thread: one (the scheduler's).

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/plan.h"
#include "scheduler/request.h"

namespace foredraft {

struct SchedulerOptions {
  int rank_count = 1;
  int max_batch_size = 64;    // decode slots per rank
  int max_num_tokens = 8192;  // prefill budget per rank and iteration
  int max_seq_len = 4096;
  int max_queue_size = 1024;  // requests waiting
  bool enable_chunked_prefill = true;
  int batching_wait_iters = 10;
  int tokens_per_block = 32;
  int block_count = 2049;  // per rank, block 0 (scratch) included
  bool enable_block_reuse = true;
  int64_t host_block_count = 0;  // blocks the host store of swapped sequences has room for, per rank
  std::vector<int> batch_sizes = {1,  2,  4, 8,
                                  16, 32, 64};  // decode buckets, ascending; the last >= max_batch_size
  int max_draft_len = 0;                        // Kmax; 0 = no MTP
  int draft_len = 0;                            // K in use, <= max_draft_len
  int reuse_reserve = 1;  // prompt tokens reuse must leave to compute: Eagle 1, Vanilla Kmax (spec/mtp.md 4)
  int offer_margin =
      0;  // blocks are offered within the first m - offer_margin prompt tokens: Eagle 0, Vanilla Kmax - 1
  int begin_thinking_id = -1;  // -1 = the model does not think
  int end_thinking_id = -1;
};

// Load and cumulative counters.
struct SchedulerLoad {
  int running = 0;
  int waiting = 0;
  int swapped = 0;
  int slots_used = 0;
  int64_t blocks_used = 0;  // over all ranks, scratch not counted
  int64_t blocks_free = 0;
  int64_t blocks_cached = 0;  // unreferenced, kept for reuse
  int draft_len = 0;
  uint64_t prefix_queried_tokens = 0;
  uint64_t prefix_hit_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t wasted_steps = 0;  // steps computed for sequences that had already ended
  uint64_t rewound_blocks = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // Queues a request. RESOURCE_EXHAUSTED: queue full. INVALID_ARGUMENT: larger than the whole pool, limit
  // named.
  absl::Status Submit(Request request);

  // Ends a request at the next Commit or Plan; its blocks return as soon as no launched plan uses them.
  void Cancel(uint64_t request_id, FinishReason reason);

  // The next iteration, on upper bounds where a plan is in flight. Deadlines that passed by `now` end their
  // requests. No work: decode_bucket 0, no prefill rows, empty() true. Plans must be launched in order, all
  // of them unless nothing is in them.
  IterationPlan Plan(SteadyTime now);

  // Results of the oldest plan not yet committed, one per rank.
  void Commit(const std::vector<RankResult>& results, SteadyTime now);

  // Updates gathered since the last call, in order.
  std::vector<RequestUpdate> TakeUpdates();

  // True while a request waits, runs or is swapped, or a plan is not committed, or a release is not yet
  // planned.
  bool HasWork() const;

  // Ends all requests with this reason (UNAVAILABLE text in error for kError).
  void EndAll(FinishReason reason, const absl::Status& error);

  // Takes effect at the next Plan. K <= max_draft_len.
  void SetDraftLen(int draft_len);

  SchedulerLoad load() const;

  // Block conservation per rank: CHECKs free + held + cached = capacity and every reference count.
  void CheckInvariants() const;
};

// True when a rank would have nothing to do for this plan.
bool IsEmpty(const IterationPlan& plan);

}  // namespace foredraft

#endif  // FOREDRAFT_SCHEDULER_SCHEDULER_H_
