#pragma once

// The tools of OpenAI's Responses API: functions, custom tools and namespaces of them. The model sees only
// functions; the answer turns each call into one of the tool that the client sent.

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "server/api/fields/field_reader.h"
#include "server/api/fields/tool_fields.h"

namespace foredraft {

// A tool as the client knows it.
struct SentTool {
  std::string name;
  std::string name_space = {};  // empty: none
  bool is_custom = false;       // its calls have a text instead of arguments
};
// By the name in the prompt; functions outside of namespaces are left out.
using SentTools = std::map<std::string, SentTool>;

// A tool's name in the prompt.
std::string PromptName(const std::string& name_space, const std::string& name);

// Owner: one request; not thread-safe.
class ResponseTools {
 public:
  // Adds a list of tools, the request's or an item's. `text` is the list's, `name` its field.
  absl::Status AddList(const nlohmann::json& list, std::string_view text, const std::string& name,
                       FieldContext& context);
  // Called after the last list. Reads tool_choice and parallel_tool_calls. Faults are kept in `fields`.
  ChatTools Take(FieldReader& fields);
  SentTools TakeSent() { return std::move(sent_); }

 private:
  absl::Status AddTool(const nlohmann::json& object, std::string_view text, const std::string& name,
                       const std::string& name_space, FieldContext& context);
  void Add(ChatTool tool, SentTool sent);

  ToolList tools_;
  SentTools sent_;
};

}  // namespace foredraft
