#pragma once

// Writes random checkpoints in the Hugging Face layout, for tests and for benchmarks of shapes without
// published weights. The tokenizer is not made here: server/text writes it.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/weight_source.h"
#include "kernels/weight_format.h"
#include "tools/quantize/checkpoint_writer.h"

namespace foredraft {

struct RandomCheckpointOptions {
  std::string config_json;  // shape of the model; num_nextn_predict_layers says how many MTP modules
  std::string out_dir;      // made if missing; must be empty, so that no weights are overwritten
  uint64_t seed = 0;        // the same seed gives the same bytes on every machine
  // The format of the projections that `quantize` would quantise (FormatChoice). For DeepSeek-V4,
  // kMxfp4Format means the model's own formats.
  WeightFormat projections;
  int64_t max_shard_bytes = 1'000'000'000;  // a larger tensor gets a shard of its own
};

// Writes config.json, generation_config.json and model.safetensors, or shards with their index.
// RandomAmplitude scales the weights. Memory is bounded by a small buffer. INVALID_ARGUMENT, ALREADY_EXISTS
// or RESOURCE_EXHAUSTED name the file.
// `progress`, which may be empty, is called after each tensor.
absl::StatusOr<WrittenCheckpoint> WriteRandomCheckpoint(const RandomCheckpointOptions& options,
                                                        const LoadProgress& progress = {});

// Writes a random Eagle3 head for the model of options.config_json. The file `head_json` has its shape and
// becomes its config.json. If the head has a vocabulary of its own, its tokens are spread over all of the
// target's. Its projections are in BF16.
absl::StatusOr<WrittenCheckpoint> WriteRandomHead(const RandomCheckpointOptions& options,
                                                  const std::string& head_json,
                                                  const LoadProgress& progress = {});

}  // namespace foredraft
