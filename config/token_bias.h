#pragma once

#include <cstdint>

namespace foredraft {

// The most biases that a request may have.
inline constexpr int kMaxLogitBiases = 512;

// Added to the logit of a token before a token is chosen. Requests and the device's memory hold lists of
// them, ascending by token id. Trivially copyable.
struct TokenBias {
  int32_t token_id = 0;
  float bias = 0;  // [-100, 100]
  bool operator==(const TokenBias&) const = default;
};

}  // namespace foredraft
