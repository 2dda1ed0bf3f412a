#pragma once

// Tools as Kimi-K2.5 and later declare them: functions of a TypeScript namespace, whose parameters' types
// follow from the schema.

#include <optional>
#include <span>
#include <string>

#include "server/text/chat_message.h"

namespace foredraft {

// The declarations; nothing where a schema has something that they have no words for, such as a reference to
// another document. Keys are in the order of their bytes, whatever the client's order was.
std::optional<std::string> TypescriptTools(std::span<const ChatTool> tools);

// What the prompt has where there are no declarations: the tools as compact JSON with sorted keys.
std::string SortedToolsJson(std::span<const ChatTool> tools);

}  // namespace foredraft
