#pragma once

// A status that says that a prompt is longer than the context, with both numbers: each wire words it as its
// clients know it.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace foredraft {

struct PromptSize {
  int64_t tokens = 0;  // of the prompt; a lower bound if it was refused by its bytes
  int64_t most = 0;    // the most that leave room for an output token
};

// `status` with the reason PROMPT_TOO_LONG and the numbers.
absl::Status WithPromptSize(absl::Status status, const PromptSize& size);
// The numbers in such a status; nothing for any other status.
std::optional<PromptSize> PromptSizeOf(const absl::Status& status);

}  // namespace foredraft
