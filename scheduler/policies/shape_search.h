#pragma once

// The search of the draft policies that measure (adaptive, confidence) for the shape with the most expected
// tokens per second: which shape is in use in a bucket, and which one a few steps try from time to time (a
// probe). Data in, data out: no clock, no randomness. Owner: DraftPolicy. Thread: scheduler.
//
// Only measured shapes are compared, and one replaces the shape in use if its rate is higher by a margin.
// Probes come soon after such a change and while something is unmeasured, later only as often as keeps their
// cost small. Before anything is measured in a bucket, the other buckets predict its costs (StepCosts): it
// starts with the best shape by these costs, and a shape that they predict to be bad is not measured before
// the steps in the bucket pay for it.

#include <functional>
#include <map>
#include <vector>

#include "scheduler/policies/step_costs.h"
#include "scheduler/policies/step_estimates.h"

namespace foredraft {

// What the search chooses among.
struct ShapeChoice {
  int upper = 0;      // the largest K
  bool cuts = false;  // also shapes that cut drafts
  // Expected tokens of a step with this shape, up to a factor.
  std::function<double(StepShape)> tokens;
};

class ShapeSearch {
 public:
  // buckets: all that Next and Observe may get. draft_len: K that the first bucket starts with.
  // drafts_at_once: one forward makes all drafts, so that the first costs most.
  ShapeSearch(const std::vector<int>& buckets, int max_draft_len, int draft_len, bool drafts_at_once);

  // The shape of the next step in this bucket.
  StepShape Next(int bucket, const ShapeChoice& choice);

  // Takes the time of a step. A step with another K than the step before it is not measured: its time
  // includes the host's work on the earlier step's tokens.
  void Observe(int bucket, StepShape shape, double seconds);

  // The shape in use in a bucket when no probe runs, and the bucket's measured times.
  StepShape in_use(int bucket) const { return buckets_.at(bucket).in_use; }
  const StepTimes& times(int bucket) const { return buckets_.at(bucket).times; }

 private:
  struct Bucket {
    int seats = 0;
    StepTimes times;
    bool is_new = true;
    StepShape in_use;
    int steps_to_probe = 0;
    int steps_since_probe = 0;
    StepShape probe;
    int probe_steps_left = 0;
  };
  // What shapes promise, by measured times or, where there are none, by StepCosts.
  struct Prospects {
    const std::function<double(StepShape)>& tokens;  // ShapeChoice's
    std::function<double(StepShape)> seconds;

    double Rate(StepShape shape) const { return tokens(shape) / seconds(shape); }
    // What a probe costs, in steps of the shape in use: below 0 where it gains.
    double LostSteps(StepShape probe, StepShape in_use) const;
  };

  void Enter(Bucket& bucket, const ShapeChoice& choice);
  static void Reconsider(Bucket& bucket, const ShapeChoice& choice);
  void StartProbe(Bucket& bucket, const ShapeChoice& choice) const;
  StepShape NeighbourToProbe(const Bucket& bucket, const ShapeChoice& choice,
                             const Prospects& prospects) const;
  StepShape ShapeToProbe(const Bucket& bucket, const ShapeChoice& choice, const Prospects& prospects) const;
  // Whether the steps since the shape was measured pay for a probe of it. share: of the time.
  static bool IsDue(const Bucket& bucket, StepShape shape, const Prospects& prospects, double share);
  bool KnowsCosts(const ShapeChoice& choice) const;
  StepCosts CostsNear(const Bucket& bucket) const;

  const bool drafts_at_once_;
  std::map<int, Bucket> buckets_;
  StepShape last_shape_;         // Bucket::in_use of the last step's bucket
  int observed_draft_len_ = -1;  // of the last step observed
};

}  // namespace foredraft
