#pragma once

// What `foredraft info` shows about a checkpoint.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"

namespace foredraft {

struct CheckpointSummary {
  ModelConfig config;             // num_nextn_predict_layers: the MTP modules that can be loaded
  int64_t parameters = 0;         // of the target, with embedding and head, without scales and copies
  int64_t active_parameters = 0;  // of those, what one token uses: num_experts_per_tok of the routed experts
  int64_t mtp_parameters = 0;     // of all MTP modules, shared embedding and head not counted
  int64_t drafter_bytes = 0;      // of ModelConfig::drafter
  int64_t unread_bytes = 0;       // of the vision part of a multimodal model
  int64_t tensor_count = 0;
  int64_t input_scale_count = 0;               // tensors, of tensor_count, for which IsInputScale is true
  int64_t cache_scale_count = 0;               // tensors, of tensor_count, for which IsCacheScale is true
  int64_t bytes = 0;                           // of all tensors in the files
  std::map<std::string, int64_t> dtype_bytes;  // `bytes` by dtype: "BF16", "F8_E4M3"...
  int64_t kv_bytes_per_token = 0;              // of the target's layers, BF16
  int64_t kv_bytes_per_token_of_module = 0;    // what each MTP module that runs adds
  int64_t window_bytes_per_sequence = 0;  // the most bytes of rows kept for a sequence's last tokens only
  // Bytes per token with kv_cache_config.dtype fp8; 0 where the model has no such rows.
  int64_t fp8_kv_bytes_per_token = 0;
  int64_t fp8_kv_bytes_per_token_of_module = 0;
};

// Summarises from config.json alone: the weights that load_format dummy makes.
CheckpointSummary SummarizeConfig(const ModelConfig& config);

// Reads config.json and the headers, and checks them as LoadWeights does. Reads no weights.
absl::StatusOr<CheckpointSummary> SummarizeCheckpoint(const std::string& dir);

}  // namespace foredraft
