#pragma once

// Checks the tools of a chat request.

#include "absl/status/status.h"
#include "server/text/chat_message.h"

namespace foredraft {

inline constexpr int kMaxTools = 128;

// INVALID_ARGUMENT names the field of chat, its value and what is allowed.
absl::Status CheckTools(const ChatTools& tools);

}  // namespace foredraft
