#pragma once

// Chooses K, one for the whole rank group, for every decode step. Data in, data out: no clock, no randomness;
// it learns times and acceptance from what Commit passes to Observe. Owner: Scheduler. Thread: scheduler.
//
// clang-format off
//   fixed      K = draft_len
//   schedule   K by the decode bucket, at most draft_len
//   adaptive   the K in 0..draft_len with the most expected tokens per second: the expected tokens of all live
//              sequences, over the expected time of the step
//   confidence the shape (K, v) with the most expected tokens per second: of the K drafts of each sequence the
//              step verifies v on average, the likeliest by their calibrated confidences
// clang-format on
//
// Under every policy K is also at most the largest draft cap among the live sequences. Adaptive and
// confidence compare what they have measured (shape_search.h).
//
// With v rows for drafts per seat a step's time is known, and so is what a further row costs: (K, v) has more
// tokens per second than (K, v - 1) where the drafts that v adds are expected to be accepted often enough to
// pay for their rows. Where the confidences of the very drafts that a step verifies are known when it is
// planned (no step in flight), v follows them from step to step; otherwise it follows their recent mean.
// Either way the device cuts by the drafts' own confidences.

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "scheduler/policies/confidence_calibration.h"
#include "scheduler/policies/shape_search.h"
#include "scheduler/policies/speculation.h"
#include "scheduler/policies/step_estimates.h"
#include "scheduler/policies/step_tokens.h"

namespace foredraft {

// One decode step over all ranks.
struct StepObservation {
  int bucket = 0;
  int draft_len = 0;          // K
  int cut_len = 0;            // K - v
  double seconds = 0;         // the host's part included; 0 = not measured
  std::vector<int> tried;     // [Kmax] drafts at position i + 1 with all earlier drafts accepted
  std::vector<int> accepted;  // [Kmax] accepted drafts among these
  // The drafts that were tried and have confidences.
  struct Event {
    int k = 0;  // 1..Kmax
    float confidence = 0;
    bool accepted = false;
  };
  std::vector<Event> events;
};

class DraftPolicy {
 public:
  // buckets: all values that Choose and Observe may get as a bucket. drafts_at_once: one forward makes all
  // drafts, so that the first costs most.
  DraftPolicy(const std::vector<int>& buckets, int max_draft_len, int draft_len,
              const DraftPolicyOptions& options, bool drafts_at_once = false);

  // Takes effect at the next Choose. Measurements are kept.
  void Change(int draft_len, const DraftPolicyOptions& options);

  // The largest K that Choose may return before the next Change.
  int upper() const;

  // Returns K for the next step, at most the largest cap among the live sequences. live_by_cap: [Kmax + 1]
  // live sequences by draft cap.
  int Choose(int bucket, const std::vector<int>& live_by_cap) {
    return ChooseShape(bucket, live_by_cap, {}).draft_len;
  }
  // Returns K, as Choose does, and v. drafts: read by the policy `confidence` alone; without ranks = not
  // known.
  StepShape ChooseShape(int bucket, const std::vector<int>& live_by_cap, const StepDrafts& drafts);

  void Observe(const StepObservation& step);
  // Takes the confidences of the drafts that a sequence's next step may verify.
  void Expect(std::span<const float> confidences);

  // Expected tokens per second of steps like the last one with drafts, divided by those of the same step
  // without drafts, from measured times and acceptance. 0 until steps of both kinds were measured in the
  // bucket: adaptive may try K = 0 by itself; under the other policies a step has K = 0 when all its
  // sequences have a draft cap of 0.
  double SpeedUp() const;

  bool reads_confidences() const { return options_.kind == DraftPolicyKind::kConfidence; }
  // The calibration for the device, which gets changes only from time to time.
  const std::vector<DraftCalibration>& calibration() const { return published_; }
  double calibration_error() const { return calibration_.error(); }

 private:
  StepShape ChooseForPolicy(int bucket, int upper, const std::vector<int>& live_by_cap,
                            const StepDrafts& drafts);
  int Scheduled(int bucket) const;
  StepShape ChooseByConfidence(int bucket, int upper, const StepDrafts& drafts);
  void ExpectTokens(int bucket, const StepDrafts& drafts, const std::vector<double>& tokens);
  // Returns the function that gives the expected tokens of a step in the bucket by its shape, up to a factor.
  // It refers to live_by_cap and to this object.
  std::function<double(StepShape)> TokensIn(int bucket, const std::vector<int>& live_by_cap) const;
  double TokensPerStep(int draft_len, const std::vector<int>& live_by_cap) const;

  const int max_draft_len_;
  int draft_len_;
  DraftPolicyOptions options_;

  // Measured under any policy.
  AcceptanceCurve acceptance_;
  ConfidenceCalibration calibration_;
  std::vector<DraftCalibration> published_;  // calibration_'s, as the device has it
  int steps_to_publish_ = 0;
  ShapeSearch search_;

  // What `confidence` expects of steps in a bucket.
  struct ExpectedTokens {
    std::vector<double> recent, long_run;  // by shape: mean expected tokens of a step per sequence
    int seen_count = 0;                    // steps in which confidences were known, and the first
  };
  std::map<int, ExpectedTokens> tokens_;  // by bucket

  // The last step that had drafts.
  struct Drafted {
    int bucket = -1;  // -1 = there was none
    StepShape shape;
    std::vector<int> live_by_cap;
  };
  Drafted drafted_;
};

}  // namespace foredraft
