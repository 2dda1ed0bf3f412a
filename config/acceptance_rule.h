#pragma once

#include <cstdint>

namespace foredraft {

// How drafts are accepted (docs/speculation.md section 2). It travels from the configuration with every plan
// into device memory, where ops read it. Trivially copyable. The default is strict.
struct AcceptanceRule {
  int32_t relaxed_topk = 0;  // 0 = strict; else holds for greedy requests in the thinking phase
  float relaxed_delta = 0;   // P(candidate) >= P(most probable) - delta; probabilities, not logarithms
  float forced_length = 0;   // 0 = not forced; else the mean tokens per step: benchmarks only
  bool operator==(const AcceptanceRule&) const = default;
};

}  // namespace foredraft
