#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace foredraft {

// Sampling defaults of generation_config.json; absent fields stay unset.
struct GenerationConfig {
  std::optional<double> temperature;  // do_sample false = 0
  std::optional<double> top_p;
  std::optional<int> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::vector<int> eos_token_ids;  // empty = config.json's
};

// A missing file gives the defaults. INVALID_ARGUMENT names file, field, value and what is allowed.
absl::StatusOr<GenerationConfig> ReadGenerationConfig(const std::string& path);
// ReadGenerationConfig for JSON text; `file` names it in errors.
absl::StatusOr<GenerationConfig> ParseGenerationConfig(std::string_view json, const std::string& file);

}  // namespace foredraft
