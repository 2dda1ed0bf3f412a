#ifndef FOREDRAFT_SERVER_REQUEST_SETUP_H_
#define FOREDRAFT_SERVER_REQUEST_SETUP_H_

// What requests need of a configuration and its checkpoint: tokenizer, sampling defaults, limits, thinking
// tokens.

#include <memory>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "config/model_config.h"
#include "server/api/request_validator.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// The checkpoint's tokenizer. Where load_format dummy has none: one token per byte, and the chat markup.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const Config& config, const ModelConfig& model);

// Sampling defaults of the checkpoint; with load_format dummy there may be none.
absl::StatusOr<GenerationConfig> LoadGenerationConfig(const Config& config);

// <think> and </think>, where the tokenizer has them.
ThinkingIds TokenizerThinkingIds(const Tokenizer& tokenizer);
// As configured, else the tokenizer's.
ThinkingIds ThinkingIdsOf(const Config& config, const ThinkingIds& of_tokenizer);

RequestLimits RequestLimitsOf(const Config& config, const ModelConfig& model,
                              const GenerationConfig& defaults, const Tokenizer& tokenizer,
                              const ThinkingIds& thinking);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_REQUEST_SETUP_H_
