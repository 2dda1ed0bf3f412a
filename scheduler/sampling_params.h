#pragma once

// How the tokens of one request are chosen. Values are resolved and validated: defaults of the checkpoint's
// generation_config are already in.

#include <cstdint>

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

  bool counts_tokens() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

}  // namespace foredraft
