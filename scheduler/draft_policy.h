#ifndef FOREDRAFT_SCHEDULER_DRAFT_POLICY_H_
#define FOREDRAFT_SCHEDULER_DRAFT_POLICY_H_

// Chooses K, one for the whole group, for every decode step. Data in, data out: no clock, no randomness; it
// learns times and acceptance from what Commit passes to Observe. Owner: Scheduler. Thread: scheduler.
//
// clang-format off
//   fixed      K = draft_len
//   schedule   K by the decode bucket, at most draft_len
//   adaptive   the K in 0..draft_len with the most expected tokens per second: the expected tokens of all live
//              sequences, over the expected time of the step
// clang-format on
//
// Adaptive only compares what it has measured. A new bucket starts with the K of the bucket before it. Now
// and then a few steps run with K / 2, K + 1 or K - 1 instead (a probe): soon while one of these is not
// measured, later as rarely as keeps the cost of probes small. Any measured K replaces the one in use if it
// is better by a margin.

#include <map>
#include <vector>

#include "scheduler/speculation.h"
#include "scheduler/step_estimates.h"

namespace foredraft {

// One decode step over all ranks.
struct StepObservation {
  int bucket = 0;
  int draft_len = 0;          // K
  double seconds = 0;         // host included; 0 = not measured
  std::vector<int> tried;     // [Kmax] drafts of position i + 1 whose predecessors were all accepted
  std::vector<int> accepted;  // [Kmax]
};

class DraftPolicy {
 public:
  // buckets: those that Choose and Observe may name.
  DraftPolicy(const std::vector<int>& buckets, int max_draft_len, int draft_len,
              const DraftPolicyOptions& options);

  // From the next Choose on. Measurements are kept.
  void Change(int draft_len, const DraftPolicyOptions& options);

  // The largest K that Choose may return before the next Change.
  int upper() const;

  // K of the next step, never more than the largest cap among the live sequences. live_by_cap: [Kmax + 1]
  // live sequences by the most drafts they verify per step.
  int Choose(int bucket, const std::vector<int>& live_by_cap);

  void Observe(const StepObservation& step);

 private:
  struct Bucket {  // of the adaptive policy
    StepTimes times;
    int draft_len = -1;  // in use, probes apart; -1 = the bucket is new
    int steps_to_probe = 0;
    int probe_draft_len = 0;
    int probe_steps_left = 0;
  };

  int Scheduled(int bucket) const;
  int Adapt(Bucket* bucket, int upper, const std::vector<int>& live_by_cap);
  void Reconsider(Bucket* bucket, int upper, const std::vector<int>& live_by_cap);
  void StartProbe(Bucket* bucket, int upper, const std::vector<int>& live_by_cap);
  double Rate(const Bucket& bucket, int draft_len, const std::vector<int>& live_by_cap) const;

  int draft_len_;
  DraftPolicyOptions options_;

  // Measured under any policy.
  AcceptanceCurve acceptance_;
  std::map<int, Bucket> buckets_;
  int last_draft_len_;  // in use in the bucket of the last step
};

}  // namespace foredraft

#endif  // FOREDRAFT_SCHEDULER_DRAFT_POLICY_H_
