#include "server/api/tool_check.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  const auto is_callable = [&tools](const ChatTool& tool) {
    return !tool.removed && (!tools.names_function() || tool.name == tools.function());
  };
  const bool is_callable_left = std::any_of(tools.tools.begin(), tools.tools.end(), is_callable);
  if (is_callable_left && tools.is_forced()) return absl::OkStatus();
  if (tools.is_forced() && tools.has_removed) {
    return Refuse("chat.tool_choice: ", ShowJson(choice),
                  ", allowed with a tool that no message of the conversation has removed");
  }
  return Refuse("chat.tool_choice: ", ShowJson(choice),
                tools.tools.empty() ? ", allowed auto, none without chat.tools"
                                    : ", allowed auto, none, required or function:NAME of chat.tools");
}

// `names` are those of the tools.
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

// The state of a request's tools, message by message.
class ToolStates {
 public:
  // Adds a tool of the request's list. The list and the messages outlive this. False: another tool has the
  // name.
  bool Declare(const ChatTool& tool) {
    const State state = {.definition = &tool, .is_shown = !tool.deferred, .is_callable = !tool.deferred};
    return states_.try_emplace(tool.name, state).second;
  }

  void Define(const ChatTool& tool) {
    State& state = states_[tool.name];
    if (!state.is_redefined) redefined_.push_back(&state);
    state.is_redefined = true;
    state.definition = &tool;
  }

  // Notes that a message shows the tool's definition. `what` says how, for errors: "a reference to".
  absl::Status Show(size_t message, const char* what, const std::string& name) {
    ASSIGN_OR_RETURN(State* const state, Find(message, what, name));
    bytes_ += state->definition->description.size() + state->definition->parameters.size();
    if (bytes_ > kMaxToolBytes) {
      return Refuse("chat.messages[", message, "].content: references to tools of ", Grouped(bytes_),
                    " bytes, allowed at most ", Grouped(kMaxToolBytes));
    }
    state->is_shown = state->is_callable = true;
    return absl::OkStatus();
  }

  absl::Status Remove(size_t message, const std::string& name) {
    ASSIGN_OR_RETURN(State* const state, Find(message, "a removal of", name));
    state->is_callable = false;
    return absl::OkStatus();
  }

  // Called after the last message: writes the states into `tools`.
  void Apply(ChatTools& tools) const {
    std::vector<ChatTool> kept;
    for (ChatTool& tool : tools.tools) {
      const State& state = states_.find(tool.name)->second;
      tool.removed = state.definition != &tool || !state.is_callable;
      if (state.is_shown) kept.push_back(tool);
    }
    for (const State* state : redefined_) {
      if (!state->is_callable) continue;
      kept.push_back(*state->definition);
      kept.back().deferred = true;
    }
    tools.has_removed = std::any_of(states_.begin(), states_.end(), [](const auto& named) {
      return named.second.is_shown && !named.second.is_callable;
    });
    tools.tools = std::move(kept);
  }

 private:
  struct State {
    const ChatTool* definition = nullptr;  // the last one
    bool is_shown = false;                 // the prompt has a definition
    bool is_callable = false;
    bool is_redefined = false;  // by a message
  };

  absl::StatusOr<State*> Find(size_t message, const char* what, const std::string& name) {
    const auto found = states_.find(name);
    if (found != states_.end()) return &found->second;
    return Refuse("chat.messages[", message, "].content: ", what, " tool ", ShowJson(name),
                  ", allowed a name of chat.tools or of a definition before it");
  }

  std::map<std::string_view, State> states_;  // by name
  std::vector<const State*> redefined_;
  size_t bytes_ = 0;  // that references and additions write into the prompt
};

}  // namespace

absl::Status ApplyToolChanges(std::span<const ChatMessage> messages, ChatTools& tools) {
  ToolStates states;
  for (const ChatTool& tool : tools.tools) {
    if (!states.Declare(tool)) return absl::OkStatus();  // CheckTools refuses it
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    for (const std::string& name : messages[i].tool_references) {
      RETURN_IF_ERROR(states.Show(i, "a reference to", name));
    }
    for (const ToolChange& change : messages[i].tool_changes) {
      if (change.definition) states.Define(*change.definition);
      RETURN_IF_ERROR(change.removes ? states.Remove(i, change.name)
                                     : states.Show(i, "an addition of", change.name));
    }
  }
  states.Apply(tools);
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
    if (!tools.tools[i].removed && !names.insert(tools.tools[i].name).second) {
      return Refuse(name, ".name: ", ShowJson(tools.tools[i].name), ", allowed a name once");
    }
  }
  return CheckAllowed(tools, names);
}

}  // namespace foredraft
