#pragma once

// Translates a configuration into the options of scheduler and engine. Pure.

#include <cstdint>
#include <string>

#include "config/config.h"
#include "engine/engine_options.h"
#include "engine/model/model_config.h"
#include "scheduler/field_visitor.h"
#include "scheduler/scheduler.h"

namespace foredraft {

int MaxDraftLen(const Config& config);  // Kmax; 0 = no speculation
Speculation SpeculationOf(const Config& config);
// Tokens of a block of the cache's history (engine/cache/cache_groups.h): tokens_per_block, or a multiple of
// it.
int BlockTokens(const Config& config, const ModelConfig& model);
// Blocks of the history per rank, including the scratch block and those that drafting needs in addition to
// max_tokens.
int BlockCount(const Config& config, const ModelConfig& model);
// The largest max_tokens whose BlockCount is `block_count`.
int64_t TokensOfBlocks(const Config& config, const ModelConfig& model, int64_t block_count);
// The configuration with the cache's true size, which the ranks find where max_tokens is 0. block_count:
// BlockCount.
Config WithBlockCount(const Config& config, const ModelConfig& model, int block_count);
SchedulerOptions SchedulerOptionsOf(const Config& config, const ModelConfig& model);
// The ranges that plans and results keep to.
PlanLimits PlanLimitsOf(const SchedulerOptions& options, int vocab_size);
RankLayout LayoutOf(const ParallelConfig& parallel);
EngineOptions EngineOptionsOf(const Config& config, const ModelConfig& model);
// 8 hex digits over backend, instruction path, KV and weight dtype and compiler: equal classes give equal
// tokens.
std::string NumericsClass(const Config& config, const ModelConfig& model, const std::string& device_name);

}  // namespace foredraft
