#include "server/api/tool_check.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/grouped_digits.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/text/conversation_check.h"

namespace foredraft {
namespace {

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status CheckChoice(const ChatTools& tools) {
  const std::string& choice = tools.choice;
  if (choice.empty() || choice == "auto" || choice == "none") return absl::OkStatus();
  const bool names_tool = tools.names_function() &&
                          std::any_of(tools.tools.begin(), tools.tools.end(), [&tools](const ChatTool& tool) {
                            return tool.name == tools.function();
                          });
  if (names_tool || (choice == "required" && !tools.tools.empty())) return absl::OkStatus();
  return Refuse("chat.tool_choice: ", ShowJson(choice),
                tools.tools.empty() ? ", allowed auto, none without chat.tools"
                                    : ", allowed auto, none, required or function:NAME of chat.tools");
}

// `names`: the tools'.
absl::Status CheckAllowed(const ChatTools& tools, const std::set<std::string>& names) {
  if (tools.allowed.empty()) return absl::OkStatus();
  if (tools.choice == "none" || tools.names_function()) {
    return Refuse("chat.allowed_tools: given with chat.tool_choice ", ShowJson(tools.choice),
                  ", allowed with auto and required");
  }
  for (size_t i = 0; i < tools.allowed.size(); ++i) {
    if (names.contains(tools.allowed[i])) continue;
    return Refuse("chat.allowed_tools[", i, "]: ", ShowJson(tools.allowed[i]),
                  ", allowed a name of chat.tools");
  }
  return absl::OkStatus();
}

absl::Status CheckTool(const ChatTool& tool, const std::string& name) {
  if (!IsToolName(tool.name)) {
    return Refuse(name, ".name: ", ShowJson(tool.name), ", allowed 1..", kMaxToolNameBytes,
                  " letters, digits, _, - and .");
  }
  if (tool.parameters.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(nlohmann::json schema, ParseJson(tool.parameters, name + ".parameters"));
  const JsonRelease<nlohmann::json> release(schema);
  if (schema.is_object()) return absl::OkStatus();
  return Refuse(name, ".parameters: ", ShowJson(schema), ", allowed a JSON schema, which is an object");
}

}  // namespace

absl::Status LeaveOutDeferred(std::span<const ChatMessage> messages, ChatTools& tools) {
  std::map<std::string, size_t> bytes_of;
  for (const ChatTool& tool : tools.tools)
    bytes_of[tool.name] = tool.description.size() + tool.parameters.size();
  std::set<std::string> referenced;
  size_t bytes = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    for (const std::string& name : messages[i].tool_references) {
      const auto found = bytes_of.find(name);
      if (found == bytes_of.end()) {
        return Refuse("chat.messages[", i, "].content: a reference to tool ", ShowJson(name),
                      ", allowed a name of chat.tools");
      }
      // Each reference writes the definition into the prompt.
      if (bytes += found->second; bytes > kMaxToolBytes) {
        return Refuse("chat.messages[", i, "].content: references to tools of ", Grouped(bytes),
                      " bytes, allowed at most ", Grouped(kMaxToolBytes));
      }
      referenced.insert(name);
    }
  }
  std::erase_if(tools.tools, [&referenced](const ChatTool& tool) {
    return tool.deferred && !referenced.contains(tool.name);
  });
  return absl::OkStatus();
}

absl::Status CheckTools(const ChatTools& tools) {
  RETURN_IF_ERROR(CheckChoice(tools));
  if (tools.tools.size() > kMaxTools) {
    return Refuse("chat.tools: ", Grouped(static_cast<int64_t>(tools.tools.size())),
                  " tools, allowed at most ", Grouped(kMaxTools));
  }
  if (const size_t bytes = TextBytes(tools); bytes > kMaxToolBytes) {
    return Refuse("chat.tools: ", Grouped(bytes), " bytes, allowed at most ", Grouped(kMaxToolBytes));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < tools.tools.size(); ++i) {
    const std::string name = absl::StrCat("chat.tools[", i, "]");
    RETURN_IF_ERROR(CheckTool(tools.tools[i], name));
    if (!names.insert(tools.tools[i].name).second) {
      return Refuse(name, ".name: ", ShowJson(tools.tools[i].name), ", allowed a name once");
    }
  }
  return CheckAllowed(tools, names);
}

}  // namespace foredraft
