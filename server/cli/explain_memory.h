#pragma once

// What `check-config --explain` says about memory, and `serve` before it loads anything.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "config/config_defaults.h"
#include "engine/model/model_config.h"

namespace foredraft {

struct MemoryExplanation {
  std::string text;   // lines, each a YAML comment
  absl::Status fits;  // RESOURCE_EXHAUSTED, with what would fit, where a rank does not fit the memory
};

// What a configuration has to fit: one GPU, or the RAM that the ranks of a CPU server share.
struct MemoryLimits {
  int64_t device_bytes = 0;
  int64_t address_space_bytes = 0;  // of a rank's process, on the CPU; 0: no limit
};

// Without `limits`, explains only what does not depend on them.
absl::StatusOr<MemoryExplanation> ExplainMemory(const Config& config, const ModelConfig& model,
                                                const std::optional<MemoryLimits>& limits);

// Checks a CPU server that is about to load. RESOURCE_EXHAUSTED, as ExplainMemory has it, where this host
// cannot hold what loading writes or reserves. Pages of the cache and of the swap store that are never used
// take no memory. So if only their full use would not fit, the server is not refused, and `doubt` gets the
// line.
absl::Status CheckMemory(const Config& config, const ModelConfig& model, const HostResources& host,
                         std::string* doubt);

// CheckMemory of this host, before weights are loaded; a doubt is logged.
absl::Status LookAtMemory(const Config& config, const ModelConfig& model);

}  // namespace foredraft
