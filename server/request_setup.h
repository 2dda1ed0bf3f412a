#pragma once

// What the API needs from the configuration and the checkpoint: tokenizer, sampling defaults, request limits,
// thinking tokens and the model card.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/model/generation_config.h"
#include "engine/model/model_config.h"
#include "server/api/model_card.h"
#include "server/api/request_validator.h"
#include "server/text/synth_tokenizer.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// The vocabulary that a random checkpoint's tokenizer is made for.
SynthVocabulary SynthVocabularyOf(const ModelConfig& model);

// The checkpoint's tokenizer. Without one, load_format dummy gets one token per byte and the chat markup.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const Config& config, const ModelConfig& model);

// Ids that may be chosen (ModelConfig::token_count): those of the tokenizer, and of the model's end tokens
// where the tokenizer lacks them. A model's vocabulary is often padded beyond these.
int TokenCountOf(const Tokenizer& tokenizer, const ModelConfig& model, const GenerationConfig& defaults);
// The ids below TokenCountOf that the tokenizer lacks and that end no output (ModelConfig::missing_tokens).
std::vector<int32_t> MissingTokensOf(const Tokenizer& tokenizer, const ModelConfig& model,
                                     const GenerationConfig& defaults);

// The checkpoint's generation_config.json; nothing is set where load_format dummy has none.
absl::StatusOr<GenerationConfig> LoadGenerationConfig(const Config& config);

// The ids of <think> and </think>, where the tokenizer has them.
ThinkingIds TokenizerThinkingIds(const Tokenizer& tokenizer);
// The ids as configured, else the tokenizer's.
ThinkingIds ThinkingIdsOf(const Config& config, const ThinkingIds& of_tokenizer);
// INVALID_ARGUMENT where thoughts could begin and not end, or end and not begin.
absl::Status CheckThinkingIds(const ThinkingIds& ids);

// What the API takes from the model's files other than config.json.
struct TextFiles {
  std::unique_ptr<Tokenizer> tokenizer;
  GenerationConfig defaults;
  ThinkingIds tokenizer_thinking;
  ThinkingIds thinking;                // as configured, else the tokenizer's; checked
  std::vector<int32_t> wind_down_ids;  // of thinking.wind_down; checked
};
absl::StatusOr<TextFiles> ReadTextFiles(const Config& config, const ModelConfig& model);

RequestLimits RequestLimitsOf(const Config& config, const ModelConfig& model,
                              const GenerationConfig& defaults, const Tokenizer& tokenizer,
                              const ThinkingIds& thinking);

ModelCard ModelCardOf(const Config& config, const ModelConfig& model, const RequestLimits& limits,
                      const std::string& numerics_class);

}  // namespace foredraft
