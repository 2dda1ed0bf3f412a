#ifndef FOREDRAFT_ENGINE_WEIGHTS_SYNTH_H_
#define FOREDRAFT_ENGINE_WEIGHTS_SYNTH_H_

// Random checkpoints in the Hugging Face layout, for tests and for benchmarks of shapes nobody has weights
// for. The tokenizer is not made here: it belongs to the server's side.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

struct RandomCheckpointOptions {
  std::string config_json;     // shape of the model; num_nextn_predict_layers says how many MTP modules
  std::string out_dir;         // made if missing; must be empty, so that nobody's weights are overwritten
  uint64_t seed = 0;           // the same seed gives the same bytes, everywhere
  std::string dtype = "bf16";  // bf16; fp8: projections in FP8 blocks with weight_scale_inv
  int64_t max_shard_bytes = 1'000'000'000;  // a tensor larger than that has a shard of its own
};

struct RandomCheckpointReport {
  int64_t tensor_count = 0;
  int64_t bytes = 0;  // of tensors
  int shard_count = 0;
};

// Writes config.json, generation_config.json and model.safetensors, or shards with their index. Weights are
// scaled so that activations stay of order one: by 1 / sqrt(inputs), what adds to the residual stream also by
// 1 / sqrt(2 layers). Memory stays bounded by a small buffer. INVALID_ARGUMENT, ALREADY_EXISTS or
// RESOURCE_EXHAUSTED name the file.
absl::StatusOr<RandomCheckpointReport> WriteRandomCheckpoint(const RandomCheckpointOptions& options);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_WEIGHTS_SYNTH_H_
