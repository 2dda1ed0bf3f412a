#ifndef FOREDRAFT_SERVER_ENGINE_SETUP_H_
#define FOREDRAFT_SERVER_ENGINE_SETUP_H_

// What a configuration means for scheduler and engine. Pure.

#include <string>

#include "config/config.h"
#include "config/model_config.h"
#include "engine/engine_options.h"
#include "scheduler/scheduler.h"
#include "server/request_validator.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// <think> and </think>, where the tokenizer has them.
ThinkingIds TokenizerThinkingIds(const Tokenizer& tokenizer);
// As configured, else the tokenizer's.
ThinkingIds ThinkingIdsOf(const Config& config, const ThinkingIds& of_tokenizer);

int MaxDraftLen(const Config& config);  // Kmax; 0 = no speculation
Speculation SpeculationOf(const Config& config);
SchedulerOptions SchedulerOptionsOf(const Config& config, const ModelConfig& model);
EngineOptions EngineOptionsOf(const Config& config);
RequestLimits RequestLimitsOf(const Config& config, const ModelConfig& model,
                              const GenerationConfig& defaults, const Tokenizer& tokenizer,
                              const ThinkingIds& thinking);

// Equal classes give equal tokens: 8 hex digits over backend, instruction path, KV and weight dtype and
// libraries.
std::string NumericsClass(const Config& config, const ModelConfig& model, const std::string& device_name);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_ENGINE_SETUP_H_
