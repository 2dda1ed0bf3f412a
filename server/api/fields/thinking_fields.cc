#include "server/api/fields/thinking_fields.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "config/json_text.h"
#include "server/api/fields/constraint_fields.h"

namespace foredraft {
namespace {

using nlohmann::json;

struct ThinkingFields {
  ChatChoices choices;
  std::optional<int32_t> budget;
  bool hides_thinking = false;
};

void Switch(bool on, ChatChoices& choices) { choices.thinking = on && choices.thinking.value_or(true); }

void ReadSwitch(FieldReader& fields, const char* field, ChatChoices& choices) {
  if (fields.Find(field) != nullptr) Switch(fields.Bool(field, true), choices);
}

void ReadEffort(FieldReader& fields, const char* field, ChatChoices& choices) {
  if (const auto effort = fields.String(field)) choices.reasoning_effort = *effort;
}

void ReadBudget(FieldReader& fields, const char* field, ThinkingFields& thinking) {
  if (const auto budget = fields.Int(field)) thinking.budget = budget;
}

// The object `field`, or null where there is none.
const json* FindObject(FieldReader& fields, const char* field) {
  const json* value = fields.Find(field);
  if (value == nullptr || value->is_object()) return value;
  fields.Refuse(field, absl::StrCat(ShowJson(*value), ", allowed an object"));
  return nullptr;
}

void ReadTemplateArguments(FieldReader& fields, ChatChoices& choices) {
  const json* kwargs = FindObject(fields, "chat_template_kwargs");
  if (kwargs == nullptr) return;
  FieldReader read(*kwargs, "chat_template_kwargs.", fields.context());
  ReadSwitch(read, "enable_thinking", choices);  // GLM's name
  ReadSwitch(read, "thinking", choices);         // DeepSeek's
  ReadEffort(read, "reasoning_effort", choices);
  if (read.Find("clear_thinking") != nullptr) choices.clear_thinking = read.Bool("clear_thinking", false);
  if (read.Find("preserve_thinking") != nullptr) {
    choices.preserve_thinking = read.Bool("preserve_thinking", false);
  }
  read.End();
  fields.Keep(read.status());
}

// OpenRouter's and OpenAI's object.
void ReadReasoning(FieldReader& fields, ThinkingFields& thinking) {
  const json* object = FindObject(fields, "reasoning");
  if (object == nullptr) return;
  FieldReader read(*object, "reasoning.", fields.context());
  ReadSwitch(read, "enabled", thinking.choices);
  ReadEffort(read, "effort", thinking.choices);
  ReadBudget(read, "max_tokens", thinking);
  thinking.hides_thinking |= read.Bool("exclude", false);
  read.End();
  fields.Keep(read.status());
}

// A switch, or Anthropic's object.
void ReadThinkingObject(FieldReader& fields, ThinkingFields& thinking) {
  const json* value = fields.Find("thinking");
  if (value == nullptr) return;
  if (value->is_boolean()) return Switch(value->get<bool>(), thinking.choices);
  if (!value->is_object()) {
    return fields.Refuse("thinking", absl::StrCat(ShowJson(*value), ", allowed true, false or an object"));
  }
  FieldReader read(*value, "thinking.", fields.context());
  const std::string type = read.String("type").value_or("adaptive");
  if (type == "enabled" || type == "disabled") {
    Switch(type == "enabled", thinking.choices);
  } else if (type != "adaptive" && type != "between_tools") {
    read.Refuse("type", absl::StrCat(ShowJson(type), ", allowed enabled, disabled, adaptive, between_tools"));
  }
  ReadBudget(read, "budget_tokens", thinking);
  if (const auto keep = read.String("keep")) {  // Moonshot's
    thinking.choices.preserve_thinking = true;
    if (*keep != "all") read.Refuse("keep", absl::StrCat(ShowJson(*keep), ", allowed all, null"));
  }
  thinking.hides_thinking |= read.String("display") == "omitted";
  read.End();
  fields.Keep(read.status());
}

// Ollama's: a switch or an effort.
void ReadThink(FieldReader& fields, ChatChoices& choices) {
  const json* value = fields.Find("think");
  if (value == nullptr) return;
  if (value->is_string()) return ReadEffort(fields, "think", choices);
  ReadSwitch(fields, "think", choices);
}

}  // namespace

bool ReadThinking(FieldReader& fields, ClientRequest& request) {
  ThinkingFields thinking;
  ReadTemplateArguments(fields, thinking.choices);
  if (const json* object = FindObject(fields, "output_config"); object != nullptr) {
    FieldReader read(*object, "output_config.", fields.context());
    ReadEffort(read, "effort", thinking.choices);
    if (fields.context().wire == NotedWire::kMessages) (void)read.Find("format");  // read by ReadConstraint
    read.End();
    fields.Keep(read.status());
  }
  ReadReasoning(fields, thinking);
  ReadThinkingObject(fields, thinking);
  if (const json* object = FindObject(fields, "custom_params"); object != nullptr) {
    FieldReader read(*object, "custom_params.", fields.context());
    ReadBudget(read, "thinking_budget", thinking);
    read.End();
    fields.Keep(read.status());
  }
  ReadBudget(fields, "thinking_budget", thinking);
  ReadBudget(fields, "thinking_budget_tokens", thinking);
  ReadThink(fields, thinking.choices);
  ReadSwitch(fields, "enable_thinking", thinking.choices);
  ReadEffort(fields, "reasoning_effort", thinking.choices);
  thinking.hides_thinking |= !fields.Bool("include_reasoning", true);
  request.choices = std::move(thinking.choices);
  if (request.constraint && IsShown(*request.constraint)) request.choices.schema = request.constraint->source;
  if (!request.thinking_budget.has_value()) request.thinking_budget = thinking.budget;
  return thinking.hides_thinking;
}

}  // namespace foredraft
