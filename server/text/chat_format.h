#ifndef FOREDRAFT_SERVER_TEXT_CHAT_FORMAT_H_
#define FOREDRAFT_SERVER_TEXT_CHAT_FORMAT_H_

// Turns chat messages into prompt ids, in the format of DeepSeek-V3 and R1:
//
//   BOS system-text (<｜User｜> content | <｜Assistant｜> content EOS)... <｜Assistant｜> [<think>\n]
//
// Markup is inserted as ids and each content is encoded alone as plain text, so that no content can forge
// markup. Where no content spells out markup, the ids equal those of the rendered template, because a
// tokenizer splits a text at its added tokens first.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/tokenizer.h"

namespace foredraft {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

// Immutable; thread-safe. The tokenizer outlives it.
class ChatFormat {
 public:
  // FAILED_PRECONDITION if the tokenizer lacks the format's markup. Such a model takes text or ids only.
  static absl::StatusOr<ChatFormat> Create(const Tokenizer& tokenizer);

  // System messages come first, joined by blank lines; past answers lose their thinking. The last message
  // must be from the user. INVALID_ARGUMENT names the message as chat.messages[i].
  absl::StatusOr<std::vector<int32_t>> Render(std::span<const ChatMessage> messages) const;

  // Whether <think> follows the generation prompt: as the checkpoint's chat template says, or without a
  // template if the tokenizer has the token.
  bool opens_thinking() const { return !thinking_ids_.empty(); }

 private:
  explicit ChatFormat(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  absl::Status AppendText(std::string_view field, std::string_view text, std::vector<int32_t>& ids) const;
  absl::Status AppendSystem(std::span<const ChatMessage> messages, std::vector<int32_t>& ids) const;

  const Tokenizer* tokenizer_;
  int32_t user_id_ = -1;
  int32_t assistant_id_ = -1;
  int32_t end_id_ = -1;
  std::vector<int32_t> thinking_ids_;  // of "<think>\n", or empty
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_TEXT_CHAT_FORMAT_H_
