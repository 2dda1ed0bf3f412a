#pragma once

// A status that says that a prompt is longer than the context, with both numbers: each wire words it as its
// clients know it.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace foredraft {

struct PromptSize {
  int64_t tokens = 0;  // of the prompt; at least so many, where it was refused by its bytes
  int64_t most = 0;    // that would leave room for a token
};

// `status` with the reason PROMPT_TOO_LONG and the numbers.
absl::Status WithPromptSize(absl::Status status, const PromptSize& size);
// Nothing where the status says something else.
std::optional<PromptSize> PromptSizeOf(const absl::Status& status);

}  // namespace foredraft
