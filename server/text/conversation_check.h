#pragma once

// Checks that messages are a conversation that chat formats can render.

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/chat_message.h"

namespace foredraft {

// Whether `name` may be a tool's: 1..kMaxToolNameBytes letters, digits, '_', '-' and '.'. So it cannot be
// mistaken for the syntax around it.
bool IsToolName(std::string_view name);

// The order in which the messages are rendered: their own, but for the results of an answer's calls, which
// are in the order of the calls. INVALID_ARGUMENT names the message as chat.messages[i]: an unknown role, a
// call without a result, a result without a call, a last message that nobody answers.
absl::StatusOr<std::vector<size_t>> OrderOfMessages(std::span<const ChatMessage> messages);

}  // namespace foredraft
