#ifndef FOREDRAFT_SCHEDULER_DRAFT_POLICY_H_
#define FOREDRAFT_SCHEDULER_DRAFT_POLICY_H_

// Chooses K, one for the whole group, for every decode step. Data in, data out: no clock, no randomness. What
// it knows of time and acceptance is what Commit gets. Owner: Scheduler. Thread: scheduler.
//
//   fixed     K = draft_len
//   schedule  K by the decode bucket, at most draft_len
//   adaptive  the K in 0..draft_len with the most expected tokens per second: the sum over the live sequences
//             of their expected tokens, over the expected time of the step. It stays with the K in use unless
//             another is better by a margin, and rarely tries a neighbour for a few steps (a probe), since
//             what is not tried is not measured. A K that rises verifies its new drafts one step later, so a
//             probe upwards takes more than one step.

#include <map>
#include <vector>

#include "scheduler/speculation.h"
#include "scheduler/step_estimates.h"

namespace foredraft {

// One decode step over all ranks.
struct StepObservation {
  int bucket = 0;
  int draft_len = 0;          // K
  double seconds = 0;         // of the slowest rank
  std::vector<int> tried;     // [Kmax] drafts of position i + 1 whose predecessors were all accepted
  std::vector<int> accepted;  // [Kmax]
};

class DraftPolicy {
 public:
  // buckets: ascending, those Choose and Observe may name.
  DraftPolicy(const std::vector<int>& buckets, int max_draft_len, int draft_len,
              const DraftPolicyOptions& options);

  // From the next Choose on. What was measured stays.
  void Change(int draft_len, const DraftPolicyOptions& options);

  // No Choose before the next Change answers more.
  int upper() const;

  // K of the next step: the policy's, but never more than the largest cap among the live sequences.
  // live_by_cap: [Kmax + 1] live sequences by the most drafts they verify per step.
  int Choose(int bucket, const std::vector<int>& live_by_cap);

  void Observe(const StepObservation& step);

 private:
  struct Probing {  // of one bucket
    int step_count = 0;
    int gap = 0;   // steps between two probes
    int next = 0;  // step_count of the next one
  };

  int ChooseByPolicy(int bucket, const std::vector<int>& live_by_cap);
  int Scheduled(int bucket) const;
  int Adapt(int bucket, const std::vector<int>& live_by_cap);
  void Reconsider(int bucket, const std::vector<int>& live_by_cap);
  void StartProbe(int bucket);
  bool Unmeasured(int bucket, int draft_len) const;
  double Rate(int bucket, int draft_len, const std::vector<int>& live_by_cap) const;

  int draft_len_;
  DraftPolicyOptions options_;

  // What was measured, under any policy.
  StepTimes times_;
  AcceptanceCurve acceptance_;

  // Adaptive.
  int current_;  // K in use, probes apart
  int last_bucket_ = 0;
  int steps_since_switch_ = 0;
  int probe_draft_len_ = 0;
  int probe_steps_left_ = 0;
  std::map<int, Probing> probing_;  // by bucket
};

}  // namespace foredraft

#endif  // FOREDRAFT_SCHEDULER_DRAFT_POLICY_H_
