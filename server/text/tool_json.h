#pragma once

// The JSON texts that chat templates write into prompts, as Python's json.dumps writes them with
// ensure_ascii=False. Numbers and the order of keys stay as the client wrote them.

#include <string>
#include <string_view>

#include "server/text/chat_message.h"

namespace foredraft {

enum class JsonSpacing { kSpaced, kCompact };  // "a": 1, "b": 2 or "a":1,"b":2

// A string as JSON.
std::string QuotedJson(std::string_view text);
// The inside of a JSON string, without its quotes.
void AppendEscapedJson(std::string_view text, std::string& out);
// `json` with this spacing. Text that is not JSON is returned as it is.
std::string SpacedJson(std::string_view json, JsonSpacing spacing);

// {"name": ..., "description": ..., "parameters": ..., "strict": ...}: of the last three, those that the
// client sent. GLM-5.2's template leaves `strict` out.
std::string FunctionJson(const ChatTool& tool, JsonSpacing spacing, bool shows_strict = true);
// {"type": "function", "function": FunctionJson}
std::string ToolJson(const ChatTool& tool, JsonSpacing spacing);

}  // namespace foredraft
