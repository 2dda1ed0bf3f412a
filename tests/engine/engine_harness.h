#ifndef FOREDRAFT_TESTS_ENGINE_ENGINE_HARNESS_H_
#define FOREDRAFT_TESTS_ENGINE_ENGINE_HARNESS_H_

// Runs requests through scheduler, serving loop and engine in process, under any setting that must not change
// tokens, and records what the engine drafted on the way.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "engine/rank_engine.h"
#include "engine/weights/model_weights.h"
#include "kernels/device.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"

namespace foredraft {

inline constexpr int kMaxSeqLen = 384;  // of every run

// A checkpoint loaded once per test binary; the weights' device lives as long.
struct LoadedModel {
  std::unique_ptr<Device> device;
  ModelConfig config;
  ModelWeights weights;
};
const LoadedModel& LoadModelOnce(const std::string& checkpoint_dir);

// Everything that may change how tokens are computed, and must not change them.
struct Setting {
  int draft_len = 0;     // K; Kmax is 7 where `mtp`
  bool vanilla = false;  // Kmax is then the modules the checkpoint has
  bool mtp = true;       // false: no module at all
  bool overlap = true;
  bool graphs = true;
  int max_batch_size = 32;
  int max_num_tokens = 8192;
  bool reuse = true;
  bool small_pool = false;                           // so small that sequences are swapped
  bool draft_caps = false;                           // every request has its own
  DraftPolicyKind policy = DraftPolicyKind::kFixed;  // draft_len is then the most it may choose
  Acceptance acceptance;                             // strict: the only one that keeps the target's tokens
  std::vector<int> draft_len_changes;  // K of successive iterations, repeated; empty = draft_len throughout

  std::string DebugString() const;
};

// What the engine did for one request.
struct StepRecord {
  std::vector<int32_t> drafts;  // made after the tokens so far
  int token_count = 0;          // tokens emitted so far
  int drafts_verified = 0;
  int accepted = 0;  // of the decode step; -1: it gave none
};
struct RequestRecord {
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  FinishReason finish = FinishReason::kNone;
  int cached_tokens = 0;
  int steps = 0;
  int accepted_tokens = 0;
  int draft_tokens = 0;
  int relaxed_tokens = 0;
  std::vector<int> accepted_per_position = std::vector<int>(8, 0);
  std::vector<StepRecord> records;
};
struct RunRecord {
  std::vector<RequestRecord> requests;  // in the order given
  SchedulerLoad load;                   // at the end
  int iterations = 0;
  int replays = 0;
};

// Ids of requests are their places; every request's seed must be unique, it names the request to the
// recorder. Fails the test (and returns what there is) when the run does not end.
RunRecord RunRequests(const LoadedModel& model, const Setting& setting, std::vector<Request> requests);

// Options that `setting` stands for.
EngineOptions EngineOptionsOf(const LoadedModel& model, const Setting& setting);
SchedulerOptions SchedulerOptionsOf(const LoadedModel& model, const EngineOptions& engine,
                                    const Setting& setting);

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_ENGINE_ENGINE_HARNESS_H_
