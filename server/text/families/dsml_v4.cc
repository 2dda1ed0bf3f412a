// DeepSeek-V4.
// clang-format off
//
//   BOS [effort] system-texts tools [schema] (<｜User｜> text <｜Assistant｜> OPENING | THINKING text EOS)... <｜Assistant｜> OPENING
// clang-format on
//
// OPENING is <think> or </think>, THINKING a past answer's with </think>. Results are folded into the user's
// turn, where messages that follow each other have an empty line between them. All thinking is kept where
// there are tools, else none. The texts of efforts and of the schema are those of encoding_dsv4.py next to
// the checkpoints since 2026-07-31 (MIT).

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/text/families/dsml.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

using namespace dsml;  // NOLINT(google-build-using-namespace): this file is a part of it

constexpr char kReminder[] = "<｜latest_reminder｜>";

constexpr char kHigh[] =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the "
    "root "
    "cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial "
    "scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";
constexpr char kMax[] =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively "
    "decompose the problem into its most fundamental components, trace every causal chain to its root, and "
    "resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are "
    "certain that no assumption remains unchecked and no error remains undiscovered.\n\n";

absl::StatusOr<ChatSetup> ReadV4(const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(ChatSetup setup, Read(tokenizer));
  setup.opens_thinking = true;
  // The words that the encoder does not know have these meanings in DeepSeek's API.
  setup.efforts = {{"minimal", ""},  {"low", ""},   {"medium", kHigh}, {"high", kHigh},
                   {"xhigh", kHigh}, {"max", kMax}, {"ultra", kMax}};
  setup.default_effort = kHigh;
  setup.has_reminders = tokenizer.AddedTokenId(kReminder).has_value();
  setup.shows_schema = true;
  return setup;
}

void DeclareTools(const Conversation& chat, PromptWriter& prompt) {
  prompt.Markup(absl::StrCat(
      "\n\n## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke "
      "tools by writing a \"",
      Tag("tool_calls"), ">\" block like the following:\n\n", Example("tool_calls", "TOOL"),
      "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
      "booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\nIf "
      "thinking_mode is enabled (triggered by ",
      kThink, "), you MUST output your complete reasoning inside ", kThink, "...", kEndThink,
      " BEFORE any tool calls or final response.\n\nOtherwise, output directly after ", kEndThink,
      " with tool calls or final response.\n\n### Available Tool Schemas\n\n"));
  WriteSchemas(chat, prompt);
  prompt.Markup(
      "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n");
}

// Users' messages and results that follow each other are one turn.
bool IsUsersTurn(std::string_view role) { return role == "user" || role == "tool"; }

// The encoder opens an answer's turn after a user's turn, and after a reminder within one.
bool OpensAnswer(std::string_view role) { return IsUsersTurn(role) || role == "latest_reminder"; }

void Render(const Conversation& chat, const ChatSetup& setup, PromptWriter& prompt) {
  const bool keeps_thinking = chat.thinks && !chat.tools.empty();
  prompt.Markup(chat.effort);
  const size_t begin = WriteLeadingSystem(chat, prompt);
  if (!chat.tools.empty()) DeclareTools(chat, prompt);
  if (!chat.schema.empty()) {
    prompt.Markup("\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
    prompt.Content("response_format", SpacedJson(chat.schema, JsonSpacing::kSpaced));
  }
  for (size_t i = begin; i < chat.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    const std::string_view before = chat.role_before(i);
    if (chat.is_continued(i)) return Continue(chat, /*opened=*/false, prompt);
    if (message.role == "assistant") {
      if (OpensAnswer(before)) prompt.Markup(absl::StrCat(kAssistant, keeps_thinking ? kThink : kEndThink));
      WriteAnswer(chat, i, keeps_thinking, "tool_calls", prompt);
      prompt.Mark(setup.end_of_answer);
    } else if (message.role == "latest_reminder") {
      prompt.Markup(kReminder);
      prompt.Content(chat.Field(i, "content"), message.content);
    } else {
      prompt.Markup(IsUsersTurn(before) ? "\n\n" : kUser);
      if (message.role == "tool") prompt.Markup("<tool_result>");
      prompt.Content(chat.Field(i, "content"), message.content);
      if (message.role == "tool") prompt.Markup("</tool_result>");
    }
  }
  prompt.Markup(absl::StrCat(kAssistant, chat.thinks ? kThink : kEndThink));
}

}  // namespace

const ChatFamily kDeepseekV4Chat = {
    .read = ReadV4, .render = Render, .calls = [] { return Calls("tool_calls"); }};

}  // namespace foredraft
