#pragma once

// The defaults that depend on the machine, the backend or the model.

#include <cstdint>

#include "absl/status/status.h"
#include "config/config_errors.h"
#include "config/host_resources.h"
#include "config/loaded_config.h"
#include "config/model_limits.h"

namespace foredraft {

// Ranks that run on this host and share its cores and RAM; 1 without parallel.
int LocalRankCount(const Config& config);

// Positions per block where kv_cache_config.tokens_per_block is not given.
int DefaultTokensPerBlock(Backend backend);

// scheduler.max_decode_pause_ms where it is `auto`.
int DefaultDecodePauseMs(Backend backend);

// Positions that the KV cache holds by default on the CPU: what fits into the rank's share of a quarter of
// the memory. At least 0. tokens_per_block must be set.
int64_t CacheTokensThatFit(const HostResources& host, const ModelLimits& model, const Config& config);

// Fills what is still unset: served_model_name, server.admin_address, max_decode_pause_ms, tokens_per_block,
// the KV cache's dtype, batch_sizes, cpu.threads and pin (ranks of one host share its cores, and are not
// pinned). If `model` is not null, also fills max_seq_len and kv_cache_config.max_tokens, and checks the
// configuration against the model.
void ResolveDefaults(const HostResources& host, const ModelLimits* model, LoadedConfig& loaded,
                     ConfigErrors& errors);
// Like ResolveDefaults above, but returns ConfigErrors::First.
absl::Status ResolveDefaults(const HostResources& host, const ModelLimits* model, LoadedConfig& loaded);

}  // namespace foredraft
