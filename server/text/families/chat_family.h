#pragma once

// What a family's chat format is made of: a row per family, each in a file of its own next to this one.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/call_syntax.h"
#include "server/text/chat_message.h"
#include "server/text/prompt_writer.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// A conversation that ChatFormat has checked: the results of an answer's calls follow it in the order of the
// calls, and the texts of parts are joined.
struct Conversation {
  std::span<const ChatMessage> messages;
  std::span<const ChatTool> tools;        // that the model may call
  bool thinks = false;                    // the answer begins with a thinking section
  std::string effort;                     // as the template writes it; empty: it writes none
  bool continues = false;                 // the answer goes on with the last message, an assistant's
  std::optional<bool> clear_thinking;     // the request's wish for GLM's past answers
  std::optional<bool> preserve_thinking;  // the request's wish for Kimi's past answers
  std::string_view schema;                // JSON text, which the answer follows; empty: none is shown
  // The client's index of each message, for the names of fields in errors.
  std::span<const size_t> indices;
  // By message: for a result, which of its answer's calls it answers (ConversationOrder).
  std::span<const size_t> call_of;

  size_t size() const { return messages.size(); }
  const std::string& role(size_t i) const { return messages[i].role; }
  // The role of the message before; empty for the first.
  std::string_view role_before(size_t i) const { return i == 0 ? std::string_view() : messages[i - 1].role; }
  // "chat.messages[3].content", by the client's index.
  std::string Field(size_t i, const char* name) const;
  // The last user's message; size() where there is none.
  size_t LastUser() const;
  // Whether message i is the one that the answer goes on with.
  bool is_continued(size_t i) const { return continues && i + 1 == size(); }
};

// A word of a request's reasoning_effort and the template's word for it.
struct ChatEffort {
  std::string asked;
  std::string written;
};

// The differences between GLM's templates.
struct GlmDialect {
  bool bare_functions = false;       // 5.2: tools without {"type": "function"} around each
  bool empty_thinking = false;       // 5.2: <think></think> where 4.7 writes </think>
  bool strips_thinking = true;       // 4.7: white space around a past answer's thinking
  bool keeps_past_thinking = false;  // 5.3: of every past answer; else of those after the last user's message
};

// The differences between Kimi's templates.
struct KimiDialect {
  // From K2.5 on: tools as TypeScript, and <think> or <think></think> in front of the answer to come.
  bool is_k25 = false;
  bool keeps_past_thinking = false;  // of every past answer; else of those since the last one without calls
};

// What a tokenizer and its chat template say about a family's format. Constant once read.
struct ChatSetup {
  std::vector<int32_t> opening;  // of every prompt: BOS, or [gMASK] <sop>
  int32_t end_of_answer = -1;    // after each past answer; -1 = none
  // Tokens that end an answer, in addition to the checkpoint's EOS: the markup that opens the turn of another
  // role, which the model writes when its own turn is over.
  std::vector<int32_t> stop_ids;
  bool has_choice = true;            // whether an answer begins with thinking is the request's choice
  bool opens_thinking = false;       // where the request does not choose
  bool calls_while_thinking = true;  // false: with tools an answer begins without thinking
  std::string thinking_opening;      // R1 and V3: "<think>\n", "<think>" or nothing
  bool has_thinking = true;          // V3 and Kimi-K2-Instruct have none
  std::string default_system;        // Kimi-K2: of conversations without a system text at their beginning
  bool compact_json = false;         // Kimi-K2: the JSON of the tools
  std::string references_begin, references_end;  // around definitions of tools in a result
  bool reminds_of_system = false;                // DSML: later system texts are a user's, between tags
  bool moves_system = false;                     // R1, V3, V3.1: later system texts move to the front
  bool has_reminders = false;                    // V4: the tokenizer has the mark of role latest_reminder
  bool shows_schema = false;                     // V4: the prompt has the schema of the answer
  std::string part_join = "\n";                  // between the parts of a message
  bool has_clear_thinking = false;               // GLM: the template asks for it
  bool has_preserve_thinking = false;            // Kimi from K2.6 on: likewise
  std::vector<ChatEffort> efforts;               // GLM-5.2; empty: the format has none
  std::string default_effort;                    // where the request does not choose
  GlmDialect glm;
  KimiDialect kimi;
};

struct ChatFamily {
  // FAILED_PRECONDITION if the tokenizer lacks the family's markup.
  absl::StatusOr<ChatSetup> (*read)(const Tokenizer& tokenizer);
  // Writes the whole prompt except its opening.
  void (*render)(const Conversation& chat, const ChatSetup& setup, PromptWriter& prompt);
  CallSyntax (*calls)();
};

// FAILED_PRECONDITION: tokenizer.json has no such added token.
absl::StatusOr<int32_t> FindMarkup(const Tokenizer& tokenizer, std::string_view content);

// The thinking of a past answer: the message's own, or what its content has before </think>.
std::string_view ThinkingOf(const ChatMessage& message);
// The content after its last </think>.
std::string_view AnswerOf(const ChatMessage& message);

// How a family begins an answer that goes on.
struct ContinuedStyle {
  std::string opening;          // of a thought
  std::string closed;           // in front of a text without thinking
  bool keeps_thinking = false;  // of a text with thinking in front of it
};
// Writes the last message, which the answer goes on with, without the end of its turn. A message with
// thinking alone is a thought that goes on.
void WriteContinued(const Conversation& chat, const ContinuedStyle& style, PromptWriter& prompt);

// An argument of a call, in the order of the JSON object.
struct CallArgument {
  std::string name;
  std::string value;  // the text of a string, or JSON
  bool is_string;
};
// The arguments of `call`, with numbers as the client wrote them. Arguments that are no JSON object are one
// argument of the name "arguments".
std::vector<CallArgument> ArgumentsOf(const ToolCall& call);

// DeepSeek-V3-0324 and R1; V3.1; V3.2; V4; GLM from 4.7 on; Kimi-K2 to K2.7.
extern const ChatFamily kDeepseekR1Chat, kDeepseekV31Chat, kDeepseekV32Chat, kDeepseekV4Chat, kGlmChat,
    kKimiK2Chat;

}  // namespace foredraft
