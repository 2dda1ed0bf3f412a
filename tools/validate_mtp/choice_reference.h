#pragma once

// How a request chooses a token from a row of logits (docs/speculation.md section 2), in double: biases,
// penalties, temperature, top-k, top-p, min-p and noise. It shares only the noise generator with the kernels.
//
// Rounding changes a device's logits, so a reference cannot always tell which token the device chooses.
// PossibleChoices returns the tokens that it may choose if every logit is off by at most a bound. If logits
// scaled by the temperature are off by at most d, then:
//
// clang-format off
//   order       two tokens may change places where their logits differ by at most 2 d
//   top-p       the i-th largest logit is off by at most d as well, whichever token it belongs to. With a the mass
//               before it and b the mass from it on, its share a / (a + b) is between a / (a + b exp(2 d)) and
//               a / (a + b exp(-2 d))
//   min-p       the difference to the largest logit is off by at most 2 d
//   noise       the noise is exact, so the difference of two scores is off by at most 2 d
// clang-format on
//
// A token may be chosen if the filters may keep it and no token that they certainly keep is ahead of it by
// more than 2 d.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/sampling_params.h"
#include "tools/validate_mtp/reference_math.h"

namespace foredraft::reference {

// The tokens that penalties count.
struct ChoiceHistory {
  std::span<const int32_t> prompt;
  std::span<const int32_t> output;  // followed by the drafts before the present one
};

struct Choices {
  int32_t best = 0;               // for the logits as given
  std::vector<int32_t> possible;  // ascending, `best` among them
};

// The choices for the token at `position`. logits: [V], -infinity where a token cannot be chosen; at least
// one is finite. error: the most by which a logit is off. Stop ids may be chosen: min_tokens is not read.
Choices PossibleChoices(const SamplingParams& sampling, const ChoiceHistory& history, int position,
                        const Vector& logits, double error);

}  // namespace foredraft::reference
