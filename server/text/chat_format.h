#pragma once

// Turns chat messages into prompt ids, as the chat template of the checkpoint's family renders them. No
// Jinja: the template is recognised, and what it does with plain messages is written here.
// clang-format off
//
//   kDeepseekR1   BOS system-text (<｜User｜> text | <｜Assistant｜> text EOS)... <｜Assistant｜> [<think>\n]
//   kDeepseekV31  BOS system-text (<｜User｜> text | <｜Assistant｜> </think> text EOS)... <｜Assistant｜> <think> or </think>
//   kDeepseekV4   BOS (text | <｜User｜> text | <｜Assistant｜> </think> text EOS)... <｜Assistant｜> <think> or </think>
//   kGlm47        [gMASK] <sop> (<|system|> text | <|user|> text | <|assistant|> </think> text)... <|assistant|> <think> or </think>
// clang-format on
//
// DeepSeek-V4 has an encoder in Python instead of a template. Its system texts stay where they are, and user
// messages that follow each other are one turn, with an empty line between them.
//
// Markup is inserted as ids and each content is encoded alone as plain text, so that no content can forge
// markup. Where no content spells out markup, the ids equal those of the rendered template, because a
// tokenizer splits a text at its added tokens first.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/tokenizer.h"

namespace foredraft {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

enum class ChatTemplate { kDeepseekR1, kDeepseekV31, kDeepseekV4, kGlm47 };

// FAILED_PRECONDITION for a template that is none of these. Without a template the model's own format is
// taken: "deepseek_r1" or "deepseek_v4" (ModelKind::chat_format).
absl::StatusOr<ChatTemplate> RecognizeTemplate(const Tokenizer& tokenizer, std::string_view own_format);

// Immutable; thread-safe. The tokenizer outlives it.
class ChatFormat {
 public:
  // FAILED_PRECONDITION if the template is unknown or the tokenizer lacks its markup. Such a model takes text
  // or ids only.
  static absl::StatusOr<ChatFormat> Create(const Tokenizer& tokenizer,
                                           std::string_view own_format = "deepseek_r1");

  // Past answers lose their thinking. The last message must be from the user. `thinking` chooses whether the
  // answer begins with a thinking section; absent: as the template does by itself. INVALID_ARGUMENT names the
  // message as chat.messages[i], or `thinking` where the template has no choice.
  absl::StatusOr<std::vector<int32_t>> Render(std::span<const ChatMessage> messages,
                                              std::optional<bool> thinking = std::nullopt) const;

  // Whether a thinking section is opened where the request does not choose.
  bool opens_thinking() const { return opens_thinking_; }
  // Tokens that end an answer, in addition to the checkpoint's EOS: the markup that opens the turn of another
  // role, which the model writes when its own turn is over.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }

 private:
  class Prompt;
  // Ids of markup; -1 where the format has none.
  struct Markup {
    int32_t system = -1;
    int32_t user = -1;
    int32_t assistant = -1;
    int32_t end_of_answer = -1;
    int32_t begin_thinking = -1;
    int32_t end_thinking = -1;
  };

  ChatFormat(const Tokenizer& tokenizer, ChatTemplate chat_template)
      : tokenizer_(&tokenizer), template_(chat_template) {}
  absl::Status FindDeepseekMarkup();
  absl::Status FindGlmMarkup();
  absl::StatusOr<int32_t> Find(std::string_view content) const;
  bool has_choice() const { return template_ != ChatTemplate::kDeepseekR1; }
  absl::Status RenderDeepseek(std::span<const ChatMessage> messages, Prompt& prompt) const;
  absl::Status RenderV4(std::span<const ChatMessage> messages, Prompt& prompt) const;
  absl::Status RenderGlm(std::span<const ChatMessage> messages, Prompt& prompt) const;

  const Tokenizer* tokenizer_;
  ChatTemplate template_;
  Markup markup_;
  std::vector<int32_t> opening_;           // of every prompt: BOS, or [gMASK] <sop>
  std::vector<int32_t> thinking_opening_;  // of kDeepseekR1: "<think>\n", "<think>" or nothing
  std::vector<int32_t> stop_ids_;
  bool opens_thinking_ = false;
};

}  // namespace foredraft
