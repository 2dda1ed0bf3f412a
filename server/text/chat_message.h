#pragma once

// A conversation as clients send it: messages, the tools that the model may call, and its calls.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foredraft {

// A function that the model may call.
struct ChatTool {
  std::string name;          // 1..kMaxToolNameBytes letters, digits, '_', '-' and '.'
  std::string description;   // empty: none
  std::string parameters;    // JSON text: a schema; empty: the client sent none
  bool strict = false;       // arguments follow the schema
  bool says_strict = false;  // the client said whether: most families show it to the model
  bool deferred = false;     // not in the prompt's head; callable once a message refers to it
  bool removed = false;      // the prompt shows it, and the answer may not call it (ApplyToolChanges)
};

// A call of a tool.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text: an object
};

// A change of a tool that a message makes; it holds from there on.
struct ToolChange {
  std::string name;
  bool removes = false;                     // false: its definition stands here, and it may be called
  std::optional<ChatTool> definition = {};  // replaces an earlier one, or adds the tool
  size_t at = 0;                            // the byte of the message's content before which it stands
};

struct ChatMessage {
  std::string role;  // system, user, assistant, tool, latest_reminder
  std::string content;
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool: the call that it answers; empty: the next one in order
  std::string thinking;              // assistant: what came before the content, without its tags
  // Where the content came in parts: the end of each part but the last one. The family joins them.
  std::vector<size_t> part_ends = {};
  std::vector<std::string> tool_references = {};  // tool: names of deferred tools, after the content
  std::vector<ToolChange> tool_changes = {};      // system, in the order of the content
};

inline constexpr int kMaxToolNameBytes = 256;
inline constexpr std::string_view kFunctionChoice = "function:";

// What a request says of tools.
struct ChatTools {
  std::vector<ChatTool> tools;
  std::string choice;  // "auto" (or empty), "none", "required", "function:NAME"
  // Names: the model sees all tools and may call these alone. Empty: all of them.
  std::vector<std::string> allowed;
  bool parallel = true;      // false: the answer ends after its first call
  bool has_removed = false;  // a tool that the prompt shows may not be called under any definition

  // With "none" the model does not see the tools, and nothing that it writes is a call.
  bool has_effect() const { return !tools.empty() && choice != "none"; }
  // The answer must be calls.
  bool is_forced() const { return choice == "required" || names_function(); }
  bool names_function() const { return choice.starts_with(kFunctionChoice); }
  // The name in a choice "function:NAME"; only where names_function().
  std::string_view function() const { return std::string_view(choice).substr(kFunctionChoice.size()); }
  bool may_call(const ChatTool& tool) const {
    if (tool.removed) return false;
    if (names_function()) return tool.name == function();
    return allowed.empty() || std::find(allowed.begin(), allowed.end(), tool.name) != allowed.end();
  }
  // Whether some answers are not allowed, apart from calls of removed tools.
  bool constrain() const {
    return has_effect() && (is_forced() || !allowed.empty() || strict_tool() < tools.size());
  }
  // The first one that may be called and is strict; tools.size() where none is.
  size_t strict_tool() const {
    return std::find_if(tools.begin(), tools.end(),
                        [this](const ChatTool& tool) { return tool.strict && may_call(tool); }) -
           tools.begin();
  }
};

// What a request says of how its answer begins. Absent or empty: as the model's chat template does by itself.
struct ChatChoices {
  std::optional<bool> thinking;  // whether the answer begins with a thinking section
  // none, which is no thinking; or how long it thinks, in OpenAI's words and others': minimal, low, medium,
  // high, xhigh, max, ultra.
  std::string reasoning_effort;
  std::optional<bool> clear_thinking;     // GLM: past answers lose their thinking, or keep it
  std::optional<bool> preserve_thinking;  // Kimi from K2.6 on: past answers keep their thinking, or lose it
  bool continues = false;                 // the answer goes on with the last message, an assistant's
  std::string schema;                     // JSON text, which the answer follows and the model is shown
};

// The bytes of all texts in the argument.
size_t TextBytes(const ChatMessage& message);
size_t TextBytes(const ChatTools& tools);

}  // namespace foredraft
