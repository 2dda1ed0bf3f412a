#pragma once

// Decides whether the serving loop overlaps: plans and launches the next iteration while one is in flight.
// That hides the host's time between two steps. It costs a step per ended sequence, because its end is known
// one step late, and where the host and the step share cores (backend cpu) it slows the step itself. Which of
// the two weighs more depends on the machine and on the load, so it is measured: from time to time a trial
// runs with overlap and without in turns. Tokens are the same either way. Thread: scheduler.

#include <array>
#include <map>
#include <vector>

namespace foredraft {

class OverlapPolicy {
 public:
  struct Iteration {
    int decode_bucket = 0;
    int draft_len = 0;
    double seconds = 0;   // from the previous results to these, without prefill
    int live_slots = 0;   // slots that decoded, > 0
    int ended_slots = 0;  // of these: sequences that ended
  };

  // Whether the next launch overlaps.
  bool overlaps() const { return overlaps_; }

  void Record(const Iteration& iteration);

 private:
  // What is known for a decode bucket, that is, for a load.
  struct Estimate {
    bool measured = false;
    double gain = 0;  // of overlap, as a share of an iteration; EWMA over trials
    int interval;     // iterations between two trials; grows while trials agree
    int since_trial = 0;
  };

  // Segments with and without overlap in turns; the first one keeps what the loop did before.
  struct Trial {
    int decode_bucket = 0;
    int draft_len = 0;
    bool first_overlaps = true;
    int iteration = 0;
    std::array<std::vector<double>, 2> seconds;  // without overlap, with overlap
  };

  void StartTrial(const Iteration& iteration);
  void RecordInTrial(const Iteration& iteration);
  void EndTrial();
  Estimate& EstimateOf(int decode_bucket);

  bool overlaps_ = true;
  bool in_trial_ = false;
  Trial trial_;
  double ended_share_ = 0;             // EWMA of ended_slots / live_slots
  std::map<int, Estimate> estimates_;  // by decode bucket
};

}  // namespace foredraft
