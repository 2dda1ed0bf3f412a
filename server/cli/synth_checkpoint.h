#ifndef FOREDRAFT_SERVER_CLI_SYNTH_CHECKPOINT_H_
#define FOREDRAFT_SERVER_CLI_SYNTH_CHECKPOINT_H_

// A random checkpoint that loads and serves: config.json, model.safetensors and a byte-level tokenizer.json.
// For benchmarks and tests of shapes nobody has weights for.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

struct SynthOptions {
  std::string config_json;  // num_nextn_predict_layers says how many MTP modules
  std::string out_dir;
  uint64_t seed = 0;
  std::string dtype = "bf16";  // bf16, or fp8: projections in 128 x 128 blocks with weight_scale_inv
};

struct SynthReport {
  int64_t tensors = 0;
  int64_t bytes = 0;
};

absl::StatusOr<SynthReport> SynthCheckpoint(const SynthOptions& options);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_CLI_SYNTH_CHECKPOINT_H_
