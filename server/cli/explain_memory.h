#pragma once

// What `check-config --explain` says about memory.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/model/model_config.h"

namespace foredraft {

// "141GiB", "80 GB", "150000000000": bytes. INVALID_ARGUMENT names the units.
absl::StatusOr<int64_t> ParseMemorySize(const std::string& text);

struct MemoryExplanation {
  std::string text;   // lines, each a YAML comment
  absl::Status fits;  // RESOURCE_EXHAUSTED where a rank does not fit the given memory, with what would
};

// device_bytes: of one GPU, or of the RAM that the ranks of a CPU server share; absent: only what does not
// depend on it.
absl::StatusOr<MemoryExplanation> ExplainMemory(const Config& config, const ModelConfig& model,
                                                std::optional<int64_t> device_bytes);

}  // namespace foredraft
