#pragma once

// What a model has, allows and costs; the configuration is checked against it. The engine computes it
// (engine/kinds/compute_model_limits.h).

#include <cstdint>
#include <functional>
#include <string>

#include "config/config.h"
#include "config/config_errors.h"
#include "config/loaded_config.h"

namespace foredraft {

// Bytes of a rank's cache.
struct CacheBytes {
  int64_t per_token = 0;  // of a sequence's history: all layers of the target and of the MTP modules that run
  int64_t windows = 0;    // of the pools that follow from max_batch_size (docs/deepseek-v4.md section 10)
};

struct ModelLimits {
  int vocab_size = 0;
  int longest_sequence = 0;    // positions of the longest sequence that the model computes
  std::string sequence_bound;  // what bounds it, for the error
  // With speculative_config: adds an error for each key with which the drafter asks for more than the model
  // has.
  std::function<void(const LoadedConfig&, ConfigErrors&)> check_drafter;
  // Adds an error for each factor of `parallel` by which the model's weights cannot be divided.
  std::function<void(const LoadedConfig&, ConfigErrors&)> check_parallel;
  bool nvfp4_experts = true;     // allows moe.inputs: nvfp4, as far as config.json says
  bool has_4bit_weights = true;  // allows cpu.inputs: int8, as far as config.json says
  bool fp8_products = true;      // allows kv_cache_config.attention_products: fp8
  // The bytes that the cache takes; tokens_per_block and dtype of the configuration are resolved.
  std::function<CacheBytes(const Config&)> cache_bytes;
};

}  // namespace foredraft
