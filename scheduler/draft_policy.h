#pragma once

// Chooses K, one for the whole rank group, for every decode step. Data in, data out: no clock, no randomness;
// it learns times and acceptance from what Commit passes to Observe. Owner: Scheduler. Thread: scheduler.
//
// clang-format off
//   fixed      K = draft_len
//   schedule   K by the decode bucket, at most draft_len
//   adaptive   the K in 0..draft_len with the most expected tokens per second: the expected tokens of all live
//              sequences, over the expected time of the step
// clang-format on
//
// Under every policy K is also at most the largest draft cap among the live sequences. Adaptive compares only
// values of K that it has measured in the bucket. A new bucket starts with the K in use at the last step.
// From time to time a few steps run with K / 2, K + 1 or K - 1 instead (a probe): soon after a change of K
// and while one of these is unmeasured, later only as often as keeps the cost of probes small. A measured K
// replaces the one in use if its tokens per second are higher by a margin.

#include <map>
#include <vector>

#include "scheduler/speculation.h"
#include "scheduler/step_estimates.h"

namespace foredraft {

// One decode step over all ranks.
struct StepObservation {
  int bucket = 0;
  int draft_len = 0;          // K
  double seconds = 0;         // the host's part included; 0 = not measured
  std::vector<int> tried;     // [Kmax] drafts at position i + 1 with all earlier drafts accepted
  std::vector<int> accepted;  // [Kmax] accepted drafts among these
};

class DraftPolicy {
 public:
  // buckets: all values that Choose and Observe may get as a bucket.
  DraftPolicy(const std::vector<int>& buckets, int max_draft_len, int draft_len,
              const DraftPolicyOptions& options);

  // Takes effect at the next Choose. Measurements are kept.
  void Change(int draft_len, const DraftPolicyOptions& options);

  // The largest K that Choose may return before the next Change.
  int upper() const;

  // Returns K for the next step, at most the largest cap among the live sequences. live_by_cap: [Kmax + 1]
  // live sequences by draft cap.
  int Choose(int bucket, const std::vector<int>& live_by_cap);

  void Observe(const StepObservation& step);

  // Expected tokens per second of steps like the last one, over those of the same step without drafts, both
  // from measured times and acceptance. 0 until both were measured in the bucket: adaptive may try K = 0 by
  // itself; under the other policies a step has K = 0 when all its sequences have a draft cap of 0.
  double SpeedUp() const;

 private:
  struct Bucket {  // of the adaptive policy
    StepTimes times;
    int draft_len = -1;  // K in use when no probe runs; -1 = the bucket is new
    int steps_to_probe = 0;
    int probe_draft_len = 0;
    int probe_steps_left = 0;
  };

  int ChooseForPolicy(int bucket, int upper, const std::vector<int>& live_by_cap);
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
  int last_draft_len_;  // Bucket::draft_len of the last step's bucket

  // The last step that had drafts.
  struct Drafted {
    int bucket = -1;  // -1 = there was none
    int draft_len = 0;
    std::vector<int> live_by_cap;
  };
  Drafted drafted_;
};

}  // namespace foredraft
