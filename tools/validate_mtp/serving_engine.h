#pragma once

// Runs prompts through prefill and decode steps on a rank's engine, driven by the scheduler's plans as in a
// server: captured steps, a padded batch, a prompt in three chunks, and steps with K = 0. One thread.

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/model/model_config.h"
#include "engine/rank_engine.h"
#include "scheduler/sampling_params.h"
#include "scheduler/scheduler.h"

namespace foredraft {

using Prompts = std::vector<std::vector<int32_t>>;

struct ServingCheckOptions {
  int draft_len = 3;  // K, 1..kMaxDraftLen
  int steps = 4;      // the fewest decode steps of a prompt
};

// The last of every kServedPeriod iterations has K = 0.
inline constexpr int kServedPeriod = 4;

// The number of tokens after a prompt, drafts included, for which the check needs room. A prompt has at most
// four decode steps besides `steps`: next to chunks of the other prompts, and around a step without drafts.
inline int ServedTokens(const ServingCheckOptions& options) {
  return (options.steps + 5) * (options.draft_len + 1);
}

class ServingEngine {
 public:
  // `weights` belong to a CPU device, which outlives the engine, and include those of the checkpoint's
  // drafter: one MTP module, all stages, or a head.
  static absl::StatusOr<std::unique_ptr<ServingEngine>> Create(const ModelConfig& config,
                                                               const LoadedWeights& weights,
                                                               const Prompts& prompts,
                                                               const ServingCheckOptions& options);

  // Calls before_step before each iteration except the first, and after_step for each slot's result.
  // sampling: one per prompt; a request's index replaces its seed.
  using BeforeStep = std::function<void(int iteration)>;
  using AfterStep = std::function<void(int request, const SlotResult& result)>;
  absl::Status Run(const Prompts& prompts, const std::vector<SamplingParams>& sampling,
                   const BeforeStep& before_step, const AfterStep& after_step);

  // For use by the functions that Run calls.
  int draft_len() const { return draft_len_; }  // K of the present iteration
  const std::map<int, int>& request_of_slot() const { return request_of_slot_; }
  SlotDrafts ReadDrafts(int slot);
  void WriteDrafts(int slot, const SlotDrafts& drafts);
  const Rank& rank() const { return engine_->rank(); }
  Stream& stream() { return *stream_; }
  // The positions and tokens of the longest sequence.
  int position_count() const { return engine_->options().position_count(); }
  int max_seq_len() const { return engine_->options().max_seq_len; }

 private:
  ServingEngine(std::unique_ptr<RankEngine> engine, const SchedulerOptions& options,
                const ServingCheckOptions& check, int iterations);

  SlotDrafts* DraftsAt(int slot) const;

  const std::unique_ptr<RankEngine> engine_;
  const std::unique_ptr<Stream> stream_;
  Scheduler scheduler_;
  const ServingCheckOptions check_;
  const int iterations_;
  int draft_len_ = 0;
  std::map<int, int> request_of_slot_;
};

}  // namespace foredraft
