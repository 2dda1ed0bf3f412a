#pragma once

// Checks that messages are a conversation that chat formats can render, and says in which order.

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/chat_message.h"
#include "server/text/field_notes.h"

namespace foredraft {

// Whether `name` may be a tool's: 1..kMaxToolNameBytes letters, digits, '_', '-' and '.'. So it cannot be
// mistaken for the syntax around it.
bool IsToolName(std::string_view name);

inline constexpr size_t kNoCall = static_cast<size_t>(-1);

// What is rendered of a conversation.
struct ConversationOrder {
  // The messages' own order, except that the results of an answer's calls follow the answer, in the order of
  // its calls, wherever they stand before the next answer.
  std::vector<size_t> messages;
  // By place in `messages`: for a result, the index of the call that it answers among the calls of its
  // answer; else kNoCall.
  std::vector<size_t> call_of;
};

// INVALID_ARGUMENT names the message as chat.messages[i]: an unknown role, a result without a call, nothing
// to answer. An empty answer at the end is left out; calls without a result are noted.
absl::StatusOr<ConversationOrder> OrderOfMessages(std::span<const ChatMessage> messages, FieldNotes& notes);

}  // namespace foredraft
