#pragma once

// Turns chat messages into prompt ids, as the chat template of the checkpoint's family renders them, and says
// how the family's models write calls of tools. No Jinja: the template is recognised, and what it does is
// written in the family's file of server/text/families. prompt_writer.h says why no content can forge markup.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/call_syntax.h"
#include "server/text/chat_message.h"
#include "server/text/families/chat_family.h"
#include "server/text/field_notes.h"
#include "server/text/tokenizer.h"

namespace foredraft {

enum class ChatTemplate { kDeepseekR1, kDeepseekV31, kDeepseekV32, kDeepseekV4, kGlm, kKimiK2 };

// FAILED_PRECONDITION for a template that is none of these, and for two templates of different families.
// Without a template the model's own format is taken: "deepseek_r1", "deepseek_v32" or "deepseek_v4"
// (ModelKind::chat_format); where that is empty, as for GLM and Kimi, chat needs a template.
absl::StatusOr<ChatTemplate> RecognizeTemplate(const Tokenizer& tokenizer, std::string_view own_format);

// Immutable; thread-safe. The tokenizer outlives it.
class ChatFormat {
 public:
  // FAILED_PRECONDITION if the template is unknown or the tokenizer lacks its markup. Such a model takes text
  // or ids only.
  static absl::StatusOr<ChatFormat> Create(const Tokenizer& tokenizer,
                                           std::string_view own_format = "deepseek_r1");

  // Past answers lose their thinking, except where the family keeps it. INVALID_ARGUMENT names the message as
  // chat.messages[i], or the choice that the template does not have. `notes`, if set, gets the fields without
  // effect, such as an effort that the family has no word for. The tools have been checked
  // (RequestValidator).
  absl::StatusOr<std::vector<int32_t>> Render(std::span<const ChatMessage> messages,
                                              const ChatChoices& choices = {}, const ChatTools& tools = {},
                                              FieldNotes* notes = nullptr) const;

  // Whether a thinking section is opened where the request does not choose.
  bool opens_thinking() const { return setup_.opens_thinking; }
  // Tokens that end an answer, in addition to the checkpoint's EOS.
  const std::vector<int32_t>& stop_ids() const { return setup_.stop_ids; }
  // How answers are read.
  const AnswerSyntax& answers() const { return answers_; }
  // How calls are written, with the literals as the family spells them.
  CallSyntax calls() const { return family_->calls(); }

 private:
  ChatFormat(const Tokenizer& tokenizer, const ChatFamily& family, ChatSetup setup)
      : tokenizer_(&tokenizer),
        family_(&family),
        setup_(std::move(setup)),
        answers_(family.calls(), tokenizer) {}
  // Whether the answer begins with thinking. INVALID_ARGUMENT where the template always thinks and the
  // request forbids it.
  absl::StatusOr<bool> Thinks(const ChatChoices& choices, const ChatTools& tools, FieldNotes& notes) const;
  // The template's word for the asked effort.
  std::string EffortOf(const ChatChoices& choices, bool thinks, FieldNotes& notes) const;

  const Tokenizer* tokenizer_;
  const ChatFamily* family_;
  ChatSetup setup_;
  AnswerSyntax answers_;
};

}  // namespace foredraft
