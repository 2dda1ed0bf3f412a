#pragma once

// How the tokens of one request are chosen. Values are resolved and validated: defaults of the checkpoint's
// generation_config are already in.

#include <cstdint>
#include <vector>

#include "config/token_bias.h"

namespace foredraft {

struct SamplingParams {
  float temperature = 0;         // 0 = greedy
  float top_p = 1;               // (0, 1], 1 = off
  int32_t top_k = 0;             // 0 = off
  float min_p = 0;               // [0, 1], 0 = off
  float repetition_penalty = 1;  // > 0, counts prompt and output
  float presence_penalty = 0;    // [-2, 2], counts the output
  float frequency_penalty = 0;   // [-2, 2], counts the output
  uint64_t seed = 0;
  int32_t min_tokens = 0;             // the first min_tokens of the output are none of the request's stop ids
  std::vector<TokenBias> logit_bias;  // ascending by token id, at most kMaxLogitBiases

  // Whether the choice depends on earlier tokens directly, too, not only through the logits.
  bool counts_tokens() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  // Whether the largest raw logit is the choice.
  bool is_plain_argmax() const {
    return temperature == 0 && !counts_tokens() && min_tokens == 0 && logit_bias.empty();
  }
};

}  // namespace foredraft
