// DeepSeek-V3.2.
// clang-format off
//
//   BOS system-texts tools (<｜User｜> text <｜Assistant｜> OPENING | THINKING text EOS | results OPENING)...
// clang-format on
//
// OPENING is </think>; with thinking, it is <think> after the last user's message and after what follows it.
// THINKING is a past answer's, with </think>, where its opening was <think>.

#include "absl/strings/str_cat.h"
#include "server/text/families/dsml.h"

namespace foredraft {
namespace {

using namespace dsml;  // NOLINT(google-build-using-namespace): this file is a part of it

void DeclareTools(const Conversation& chat, PromptWriter& prompt) {
  prompt.Markup(absl::StrCat(
      "\n\n## Tools\n\nYou have access to a set of tools you can use to answer the user's question.\nYou can "
      "invoke functions by writing a \"",
      Tag("function_calls"), ">\" block like the following as part of your reply to the user:\n",
      Example("function_calls", "FUNCTION"),
      "String and scalar parameters should be specified as is without any escaping or quotes, while lists "
      "and objects should use JSON format. The \"string\" attribute should be set to \"true\" for string "
      "type parameters and \"false\" for other types (numbers, booleans, arrays, objects).\n\nIf the "
      "thinking_mode is enabled, then after function results you should strongly consider outputting a "
      "thinking block. Here is an example:\n\n",
      Tag("function_calls"), ">\n...\n", EndTag("function_calls"),
      "\n\n<function_results>\n...\n</function_results>\n\n", kThink, "...thinking about results", kEndThink,
      "\n\nHere are the functions available in JSONSchema format:\n<functions>\n"));
  WriteSchemas(chat, prompt);
  prompt.Markup("</functions>\n");
}

void Render(const Conversation& chat, const ChatSetup& setup, PromptWriter& prompt) {
  const size_t last_user = chat.LastUser();
  const auto opening = [&](size_t i, bool behind_results) {
    const bool thinks =
        chat.thinks && (behind_results ? last_user == chat.size() || i >= last_user : i == last_user);
    return thinks ? kThink : kEndThink;
  };
  const auto continues_next = [&chat](size_t i) { return chat.continues && i + 2 == chat.size(); };
  const size_t begin = WriteLeadingSystem(chat, prompt);
  if (!chat.tools.empty()) DeclareTools(chat, prompt);
  for (size_t i = begin; i < chat.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    if (message.role == "user") {
      prompt.Markup(kUser);
      prompt.Content(chat.Field(i, "content"), message.content);
      prompt.Markup(kAssistant);
      if (!continues_next(i)) prompt.Markup(opening(i, /*behind_results=*/false));
    } else if (chat.is_continued(i)) {
      return Continue(chat, chat.role_before(i) == "user" || chat.role_before(i) == "tool", prompt);
    } else if (message.role == "assistant") {
      const bool keeps = chat.thinks && (last_user == chat.size() || i > last_user);
      WriteAnswer(chat, i, keeps, "function_calls", prompt);
      prompt.Mark(setup.end_of_answer);
    } else {
      if (chat.role_before(i) != "tool") prompt.Markup("\n\n<function_results>");
      prompt.Markup("\n<result>");
      prompt.Content(chat.Field(i, "content"), message.content);
      prompt.Markup("</result>");
      if (i + 1 < chat.size() && chat.role(i + 1) == "tool") continue;
      prompt.Markup("\n</function_results>\n\n");
      if (!continues_next(i)) prompt.Markup(opening(i, /*behind_results=*/true));
    }
  }
  // The encoder opens an answer only after a user's message or results.
  const std::string& last = chat.messages.back().role;
  if (last == "user" || last == "tool") return;
  prompt.Markup(absl::StrCat(kAssistant, chat.thinks ? kThink : kEndThink));
}

}  // namespace

const ChatFamily kDeepseekV32Chat = {
    .read = Read, .render = Render, .calls = [] { return Calls("function_calls"); }};

}  // namespace foredraft
