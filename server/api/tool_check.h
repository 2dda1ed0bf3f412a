#pragma once

// Checks the tools of a chat request.

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "server/text/chat_message.h"

namespace foredraft {

inline constexpr int kMaxTools = 1024;
inline constexpr size_t kMaxToolBytes = size_t{4} << 20;  // of all texts together

// Applies the messages' changes to the tools. Deferred tools that no message refers to are left out, since
// the model cannot know of them. Tools that a message removed stay for the prompt, but may not be called.
// Tools that a message defines come last. INVALID_ARGUMENT: a message refers to a tool that the request does
// not have.
absl::Status ApplyToolChanges(std::span<const ChatMessage> messages, ChatTools& tools);

// INVALID_ARGUMENT names the field of chat, its value and what is allowed.
absl::Status CheckTools(const ChatTools& tools);

}  // namespace foredraft
