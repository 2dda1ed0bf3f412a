#pragma once

// Writes checkpoints in the Hugging Face layout: model.safetensors, or shards with their index. The data is
// made tensor by tensor, so memory does not grow with the checkpoint.

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/formats/stored_format.h"
#include "nlohmann/json.hpp"

namespace foredraft {

struct WrittenCheckpoint {
  int64_t tensor_count = 0;
  int64_t bytes = 0;  // of tensors
  int shard_count = 0;
};

// Makes `dir` if it is missing. ALREADY_EXISTS if it is not empty; `command` is the subcommand that the error
// names.
absl::Status MakeOutputDir(const std::string& dir, const std::string& command);

// Writes the bytes of tensors[index] to the stream. Called once per tensor, in order.
using TensorWriter = std::function<absl::Status(size_t index, std::ostream& out)>;

// A shard is closed before it exceeds max_shard_bytes; a larger tensor gets a shard of its own.
// RESOURCE_EXHAUSTED names the file that could not be written.
absl::StatusOr<WrittenCheckpoint> WriteCheckpoint(const std::vector<StoredTensor>& tensors,
                                                  const std::string& dir, int64_t max_shard_bytes,
                                                  const TensorWriter& write);

absl::Status WriteJsonFile(const nlohmann::ordered_json& json, const std::string& path);

}  // namespace foredraft
