#pragma once

// Runs requests through scheduler, serving loop and engine in process, on the binary's TestBackend(), under
// any setting that must not change tokens, and records what the engine drafted on the way.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/loaded_weights.h"
#include "engine/checkpoint/model_shard.h"
#include "engine/model/model_config.h"
#include "engine/rank_engine.h"
#include "kernels/device.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "tests/engine/drafts_of.h"
#include "tests/ops/test_backend.h"

namespace foredraft {

inline constexpr int kMaxSeqLen = 384;                 // of every run
inline constexpr std::chrono::seconds kRunLimit{900};  // sanitizers are slow, a busy machine slower

// A checkpoint, loaded once per test binary and backend. The weights' device lives as long as the binary
// runs.
struct LoadedModel {
  std::string dir;
  DeviceOptions device_options;  // of the weights' device, and of the engines' with one rank
  std::unique_ptr<Device> device;
  ModelConfig config;
  LoadedWeights weights;
};
// checkpoint_dir: of a model, or of one and of an Eagle3 head that drafts for it: "DIR+HEAD_DIR".
// What decides its bits beside the checkpoint.
struct ModelClass {
  std::string isa;            // of DeviceOptions
  bool nvfp4_inputs = false;  // of ModelConfig
  bool int8_inputs = false;   // of DeviceOptions

  auto operator<=>(const ModelClass&) const = default;
};
// `shard`: which part of the model to load.
const LoadedModel& LoadModelOnce(const std::string& checkpoint_dir,
                                 const std::string& backend = TestBackend(), const ModelShard& shard = {},
                                 const ModelClass& model_class = {});
LoadedModel LoadModel(const std::string& checkpoint_dir, const std::string& backend, const ModelShard& shard,
                      const DeviceOptions& options, bool nvfp4_inputs = false);

// Whether the checkpoint drafts with DSpark.
inline bool DraftsInBlocks(const ModelConfig& config) { return config.dspark.has_value(); }

// The weights for an engine with these options: the daemon loads stages of DSpark only where they run,
// because the target's forward then writes their keys.
LoadedWeights WeightsFor(const LoadedWeights& weights, const EngineOptions& options);

// The formats of a cache of latents.
inline constexpr KvFormat kKvFormats[] = {DType::kBF16, DType::kF8E4M3, {DType::kF8E4M3, true}};

// The settings that may change how tokens are computed, but must not change the tokens (kv_format aside).
struct Setting {
  // Tensor groups, and ranks of each: threads of this process, joined over loopback as processes would be.
  int ranks = 1;
  int attention_tp = 1;
  int moe_tp = 1;             // ranks that share an expert's columns
  bool shared_memory = true;  // as CommunicatorOptions'
  int max_open = 0;           // most requests open at once; 0: all are submitted at the start
  int turn = 0;               // so many requests end before the others are submitted
  int draft_len = 0;          // K
  int max_draft_len = 7;      // Kmax, where `mtp`
  bool vanilla = false;       // Kmax is then the modules the checkpoint has
  bool mtp = true;            // false: no module at all
  bool overlap = true;
  bool graphs = true;
  bool padding = true;  // false: steps have any number of entries, and only some numbers have graphs
  int max_batch_size = 32;
  int max_num_tokens = 8192;
  bool reuse = true;
  bool reuse_generated = false;
  KvFormat kv_format = DType::kBF16;                 // its tokens are its own; nothing else changes them
  bool small_pool = false;                           // so small that sequences are swapped
  bool draft_caps = false;                           // every request has its own
  DraftPolicyKind policy = DraftPolicyKind::kFixed;  // draft_len is then the most it may choose
  int verify_len = 0;  // of a model whose drafts have confidences: steps with more drafts have rows for so
                       // many of them per seat, whatever the policy says; 0: as it says
  AcceptanceRule acceptance;  // only the strict rule keeps the target's tokens
  int late_percent = 0;       // of looks at a slot's masks that find them not ready
  std::vector<int> losses;    // iterations, counted over the run, in which a rank is lost
  int lost_at_token = 0;      // a rank is lost once a request behind `turn` has so many tokens; 0: not so
  std::vector<int> draft_len_changes;  // K of successive iterations, repeated; empty = draft_len throughout

  std::string DebugString() const;
};

// What the engine did for one request.
struct StepRecord {
  std::vector<int32_t> drafts;     // made after the tokens so far
  std::vector<float> confidences;  // of these, where there are any
  int token_count = 0;             // tokens emitted so far
  int first_step_count = 0;  // the same after the first decode step since the last admission; 0: none yet
  int drafts_verified = 0;
  int accepted = 0;  // drafts accepted in the decode step; -1: no step
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
  std::vector<int> requests_of_rank;    // admitted on each
  std::vector<int> most_prefill_rows;   // of one iteration, of each rank
  int lonely_prefills = 0;              // prefill forwards that a rank ran without a row of its own
  SchedulerLoad load;                   // at the end
  int iterations = 0;
  int replays = 0;
};

// One engine per rank of options.layout, each with its own weights, joined and ready. shared_memory: as
// CommunicatorOptions'.
std::vector<std::unique_ptr<RankEngine>> CreateEngines(const LoadedModel& model, const EngineOptions& options,
                                                       bool shared_memory = true);

// Ids of requests are their indices. Every request's seed must be unique: the recorder finds requests by
// seed. If the run does not end, fails the test and returns the incomplete record.
RunRecord RunRequests(const LoadedModel& model, const Setting& setting, std::vector<Request> requests);

// The options for `setting`.
EngineOptions EngineOptionsOf(const LoadedModel& model, const Setting& setting);
SchedulerOptions SchedulerOptionsOf(const LoadedModel& model, const EngineOptions& engine,
                                    const Setting& setting);

}  // namespace foredraft
