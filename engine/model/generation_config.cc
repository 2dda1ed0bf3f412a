#include "engine/model/generation_config.h"

#include <cstdint>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "engine/model/json_fields.h"

namespace foredraft {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

}  // namespace

absl::StatusOr<GenerationConfig> ParseGenerationConfig(std::string_view json, const std::string& file) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(json, file));
  if (!object.is_object()) return absl::InvalidArgumentError(absl::StrFormat("%s: not a JSON object", file));
  JsonFields fields(object, file, "");
  GenerationConfig config;
  if (fields.Find("temperature")) config.temperature = fields.OptionalDouble("temperature", 0, 0, 100);
  if (fields.Find("top_p")) config.top_p = fields.OptionalDouble("top_p", 1, 1e-6, 1);
  if (fields.Find("top_k")) config.top_k = fields.OptionalInt("top_k", 0, 0, INT32_MAX);
  if (fields.Find("min_p")) config.min_p = fields.OptionalDouble("min_p", 0, 0, 1);
  if (fields.Find("repetition_penalty")) {
    config.repetition_penalty = fields.OptionalDouble("repetition_penalty", 1, 1e-6, 100);
  }
  if (!fields.OptionalBool("do_sample", true)) config.temperature = 0;
  config.eos_token_ids = fields.Ids("eos_token_id", INT32_MAX);
  RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<GenerationConfig> ReadGenerationConfig(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileText(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return GenerationConfig{};
  RETURN_IF_ERROR(text.status());
  return ParseGenerationConfig(*text, path);
}

}  // namespace foredraft
