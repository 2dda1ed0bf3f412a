#pragma once

// Gathers a conversation's messages from the pieces that clients send: blocks of a message, or items of which
// several make one message.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/client_request.h"

namespace foredraft {

// What stands in a prompt for an image, a file or another part that no text model can see.
inline constexpr char kUnsupportedImage[] = "[Unsupported Image]";

// Whether `message` is an assistant's, with text or thinking and without calls.
inline bool CanBeContinued(const ChatMessage& message) {
  return message.role == "assistant" && message.tool_calls.empty() &&
         (!message.content.empty() || !message.thinking.empty());
}

// A conversation, and for each message the index of its item in the client's list, or kHead if it comes from
// the text before the list.
struct GatheredMessages {
  static constexpr int kHead = -1;

  ChatMessages messages;
  std::vector<int> items;
};

// Owner: one request; not thread-safe.
class MessageGatherer {
 public:
  // Adds a message. The reference is valid until the next Begin.
  ChatMessage& Begin(const char* role, int item) {
    read_.messages.push_back({.role = role});
    read_.items.push_back(item);
    return read_.messages.back();
  }
  // The last message, if it is an assistant's; otherwise adds one.
  ChatMessage& Assistant(int item) {
    const bool is_open = !read_.messages.empty() && read_.messages.back().role == "assistant";
    return is_open ? read_.messages.back() : Begin("assistant", item);
  }
  // Adds a part to a message's text; the family's format joins the parts.
  static void AddText(ChatMessage& message, std::string_view text) {
    message.content += text;
    message.part_ends.push_back(message.content.size());
  }
  // Called after the last piece.
  GatheredMessages Take() {
    for (ChatMessage& message : read_.messages) {
      if (!message.part_ends.empty()) message.part_ends.pop_back();  // the last part ends with the text
    }
    return std::move(read_);
  }

 private:
  GatheredMessages read_;
};

}  // namespace foredraft
