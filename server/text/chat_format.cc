#include "server/text/chat_format.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/text/conversation_check.h"
#include "server/text/prompt_writer.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

constexpr char kUser[] = "<｜User｜>";
constexpr char kAssistant[] = "<｜Assistant｜>";
constexpr char kEndOfSentence[] = "<｜end▁of▁sentence｜>";

// What a template's source has to have and to lack, so that other versions are not taken for it: GLM-4.5, for
// one, puts a line break after <|user|>, and Kimi-K2's first template writes no calls.
struct TemplateMark {
  ChatTemplate chat_template;
  std::vector<std::string_view> has;
  std::vector<std::string_view> lacks;
};
const std::vector<TemplateMark>& TemplateMarks() {
  static const auto* const marks = new std::vector<TemplateMark>{
      {ChatTemplate::kDeepseekR1, {kUser, kAssistant}, {"thinking is defined", "enable_thinking"}},
      {ChatTemplate::kDeepseekV31,
       {kUser, kAssistant, kEndOfSentence, "not thinking is defined", "'<think>'", "'</think>'"},
       {"enable_thinking"}},
      // 4.7, 5 and 5.1.
      {ChatTemplate::kGlm,
       {"[gMASK]<sop>", "<|user|>{{", "<|system|>{{", "<|assistant|>", "enable_thinking", "'</think>'",
        "'<think>'"},
       {"'<think></think>'", "/nothink", "reasoning_effort"}},
      // 5.2 and 5.3.
      {ChatTemplate::kGlm,
       {"[gMASK]<sop>", "<|user|>{{", "<|system|>{{", "<|assistant|>", "<|system|>Reasoning Effort: {{",
        "'<think></think>'", "'<think>'", "clear_thinking"},
       {"/nothink"}},
      {ChatTemplate::kKimiK2,
       {"<|im_system|>tool_declare<|im_middle|>", "<|im_user|>", "<|im_assistant|>",
        "<|tool_calls_section_begin|>", "## Return of "},
       {"tools_ts_str", "enable_thinking", "preserve_thinking"}},
      // K2.5, 2.6 and 2.7.
      {ChatTemplate::kKimiK2,
       {"<|im_system|>tool_declare<|im_middle|>", "<|im_user|>", "<|im_assistant|>",
        "<|tool_calls_section_begin|>", "## Return of ", "tools_ts_str", "<think>", "<think></think>"},
       {"enable_thinking"}}};
  return *marks;
}

constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"};

absl::Status CheckEffort(const std::string& asked) {
  if (asked.empty() || std::find(std::begin(kEfforts), std::end(kEfforts), asked) != std::end(kEfforts)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("chat.reasoning_effort: ", ShowJson(asked), ", allowed ", absl::StrJoin(kEfforts, ", ")));
}

// The content with its parts joined.
std::string JoinedParts(const ChatMessage& message, const std::string& part_join) {
  const std::string_view content = message.content;
  std::string joined;
  size_t begin = 0;
  for (const size_t end : message.part_ends) {
    joined.append(content.substr(begin, end - begin)).append(part_join);
    begin = end;
  }
  return joined.append(content.substr(begin));
}

// The definition of each tool at a message: the request's, or that of the last message that defined it.
using ToolsByName = std::map<std::string_view, const ChatTool*>;

// The definitions of the tools that a message refers to, which the prompt's head does not have.
std::string Definitions(const std::vector<std::string>& names, const ToolsByName& tools,
                        const ChatSetup& setup) {
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    const auto found = tools.find(name);
    if (found != tools.end()) lines.push_back(FunctionJson(*found->second, JsonSpacing::kSpaced));
  }
  return absl::StrCat(setup.references_begin, absl::StrJoin(lines, "\n"), setup.references_end);
}

// The content with its changes of tools set between empty lines, as texts of blocks are.
std::string WithToolChanges(const ChatMessage& message, ToolsByName& tools, const ChatSetup& setup) {
  const std::string_view content = message.content;
  std::string whole;
  size_t begin = 0;
  const auto append_up_to = [&](size_t end) {  // later parts begin with their own empty line
    if (begin == 0 && end > 0 && !whole.empty()) whole += "\n\n";
    whole.append(content.substr(begin, end - begin));
    begin = end;
  };
  for (const ToolChange& change : message.tool_changes) {
    if (change.definition) tools[change.name] = &*change.definition;
    append_up_to(change.at);
    absl::StrAppend(&whole, whole.empty() ? "" : "\n\n",
                    change.removes ? absl::StrCat("The tool ", change.name, " can no longer be called.")
                                   : Definitions({change.name}, tools, setup));
  }
  append_up_to(content.size());
  return whole;
}

// Copies the messages in the order of rendering, with whole contents.
std::vector<ChatMessage> Arranged(std::span<const ChatMessage> messages, const std::vector<size_t>& order,
                                  const ChatTools& tools, const ChatSetup& setup) {
  std::vector<ChatMessage> arranged;
  arranged.reserve(order.size());
  ToolsByName tools_by_name;  // a tool that a message defines anew is the second one of its name
  for (const ChatTool& tool : tools.tools) tools_by_name.emplace(tool.name, &tool);
  bool is_leading = true;  // before the first message that is no system text
  for (const size_t i : order) {
    ChatMessage& message = arranged.emplace_back(messages[i]);
    if (!message.part_ends.empty()) message.content = JoinedParts(message, setup.part_join);
    if (!message.tool_references.empty()) {
      message.content += Definitions(message.tool_references, tools_by_name, setup);
    }
    if (!message.tool_changes.empty()) {
      message.content = WithToolChanges(messages[i], tools_by_name, setup);
    }
    if (message.role == "latest_reminder" && !setup.has_reminders) message.role = "system";
    if (message.role != "system") {
      is_leading = false;
    } else if (!is_leading && (setup.reminds_of_system ||
                               (setup.moves_system && !message.tool_changes.empty()))) {  // keeps its place
      message.role = "user";
      message.content = absl::StrCat("<system-reminder>\n", message.content, "\n</system-reminder>");
    }
  }
  return arranged;
}

// Whether the messages are rendered as they are.
bool IsArranged(std::span<const ChatMessage> messages, const std::vector<size_t>& order,
                const ChatSetup& setup) {
  return order.size() == messages.size() && std::is_sorted(order.begin(), order.end()) &&
         std::all_of(messages.begin(), messages.end(), [&setup](const ChatMessage& message) {
           return message.part_ends.empty() && message.tool_references.empty() &&
                  message.tool_changes.empty() && message.role != "latest_reminder" &&
                  (message.role != "system" || !setup.reminds_of_system);
         });
}

// The tools of the prompt's head; `kept` holds copies, where some are left out. If all are deferred, the head
// has them all, since it says how calls are written.
std::span<const ChatTool> DeclaredTools(const ChatTools& tools, std::vector<ChatTool>& kept) {
  if (!tools.has_effect()) return {};
  const std::vector<ChatTool>& all = tools.tools;
  const auto is_deferred = [](const ChatTool& tool) { return tool.deferred; };
  if (std::none_of(all.begin(), all.end(), is_deferred)) return all;
  const bool none_else = std::all_of(all.begin(), all.end(), is_deferred);
  std::copy_if(all.begin(), all.end(), std::back_inserter(kept),
               [none_else](const ChatTool& tool) { return none_else ? !tool.removed : !tool.deferred; });
  return kept;
}

bool Matches(const TemplateMark& mark, std::string_view source) {
  const auto in_source = [&](std::string_view part) { return source.find(part) != std::string_view::npos; };
  return std::all_of(mark.has.begin(), mark.has.end(), in_source) &&
         std::none_of(mark.lacks.begin(), mark.lacks.end(), in_source);
}

const ChatFamily& FamilyOf(ChatTemplate chat_template) {
  switch (chat_template) {
    case ChatTemplate::kDeepseekR1:
      return kDeepseekR1Chat;
    case ChatTemplate::kDeepseekV31:
      return kDeepseekV31Chat;
    case ChatTemplate::kDeepseekV32:
      return kDeepseekV32Chat;
    case ChatTemplate::kDeepseekV4:
      return kDeepseekV4Chat;
    case ChatTemplate::kGlm:
      return kGlmChat;
    case ChatTemplate::kKimiK2:
      break;
  }
  return kKimiK2Chat;
}

}  // namespace

namespace {

const TemplateMark* FindMark(std::string_view source) {
  for (const TemplateMark& mark : TemplateMarks()) {
    if (Matches(mark, source)) return &mark;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<ChatTemplate> RecognizeTemplate(const Tokenizer& tokenizer, std::string_view own_format) {
  if (!tokenizer.chat_template().has_value()) {
    if (own_format == "deepseek_v4") return ChatTemplate::kDeepseekV4;
    if (own_format == "deepseek_v32") return ChatTemplate::kDeepseekV32;
    if (own_format == "deepseek_r1") return ChatTemplate::kDeepseekR1;
    CHECK(own_format.empty()) << own_format;
    return absl::FailedPreconditionError(
        "the checkpoint has no chat template, and models of its family have no format without one: it needs "
        "chat_template.jinja, chat_template.json or chat_template in tokenizer_config.json");
  }
  const TemplateMark* const mark = FindMark(*tokenizer.chat_template());
  if (mark == nullptr) {
    return absl::FailedPreconditionError(
        "the checkpoint's chat template is none of those of DeepSeek-R1, DeepSeek-V3.1, GLM-4.7, GLM-5 and "
        "Kimi-K2");
  }
  // One format reads and writes all of a model's answers.
  if (tokenizer.tool_template().has_value()) {
    const TemplateMark* const with_tools = FindMark(*tokenizer.tool_template());
    if (with_tools == nullptr || with_tools->chat_template != mark->chat_template) {
      return absl::FailedPreconditionError(
          "the checkpoint's chat templates \"default\" and \"tool_use\" are not of one family");
    }
  }
  return mark->chat_template;
}

absl::StatusOr<ChatFormat> ChatFormat::Create(const Tokenizer& tokenizer, std::string_view own_format) {
  ASSIGN_OR_RETURN(const ChatTemplate chat_template, RecognizeTemplate(tokenizer, own_format));
  const ChatFamily& family = FamilyOf(chat_template);
  ASSIGN_OR_RETURN(ChatSetup setup, family.read(tokenizer));
  return ChatFormat(tokenizer, family, std::move(setup));
}

absl::StatusOr<bool> ChatFormat::Thinks(const ChatChoices& choices, const ChatTools& tools,
                                        FieldNotes& notes) const {
  const std::string& effort = choices.reasoning_effort;
  const bool is_off = effort == "none" || choices.thinking == false;
  const bool is_on = !is_off && (!effort.empty() || choices.thinking == true);
  const char* const field = effort.empty() ? "thinking" : "reasoning_effort";
  if (setup_.has_choice && is_on && !setup_.calls_while_thinking && tools.has_effect()) {
    notes.Dropped(field);  // this model calls tools only without thinking
    return false;
  }
  if (setup_.has_choice) return is_on || (!is_off && setup_.opens_thinking);
  if (is_off && setup_.opens_thinking) {
    return absl::InvalidArgumentError(
        effort == "none" ? "chat.reasoning_effort: \"none\", allowed an effort: this model's chat template "
                           "always thinks"
                         : "thinking: false, allowed true: this model's chat template has no choice");
  }
  // The template does not open a thought; some of these models do so by themselves.
  const bool lacks_effort = !effort.empty() && setup_.efforts.empty();
  if (is_off ? setup_.has_thinking : is_on && (!setup_.has_thinking || lacks_effort)) notes.Dropped(field);
  return setup_.opens_thinking;
}

std::string ChatFormat::EffortOf(const ChatChoices& choices, bool thinks, FieldNotes& notes) const {
  const std::string& asked = choices.reasoning_effort;
  if (!thinks) return "";
  if (asked.empty()) return setup_.default_effort;
  for (const ChatEffort& effort : setup_.efforts) {
    if (effort.asked == asked) return effort.written;
  }
  notes.Dropped("reasoning_effort");
  return setup_.default_effort;
}

absl::StatusOr<std::vector<int32_t>> ChatFormat::Render(std::span<const ChatMessage> messages,
                                                        const ChatChoices& choices, const ChatTools& tools,
                                                        FieldNotes* kept_notes) const {
  FieldNotes own_notes;
  FieldNotes& notes = kept_notes == nullptr ? own_notes : *kept_notes;
  RETURN_IF_ERROR(CheckEffort(choices.reasoning_effort));
  ASSIGN_OR_RETURN(const ConversationOrder order, OrderOfMessages(messages, notes));
  ASSIGN_OR_RETURN(const bool thinks, Thinks(choices, tools, notes));
  const std::string effort = EffortOf(choices, thinks, notes);
  if (choices.clear_thinking.has_value() && !setup_.has_clear_thinking) {
    notes.Dropped("chat_template_kwargs.clear_thinking");
  }
  if (choices.preserve_thinking.has_value() && !setup_.has_preserve_thinking) {
    notes.Dropped("chat_template_kwargs.preserve_thinking");
  }
  std::vector<ChatMessage> arranged;
  if (!IsArranged(messages, order.messages, setup_))
    arranged = Arranged(messages, order.messages, tools, setup_);
  std::vector<ChatTool> in_head;
  const std::span<const ChatTool> declared = DeclaredTools(tools, in_head);
  const Conversation chat = {
      .messages = arranged.empty() ? messages : std::span<const ChatMessage>(arranged),
      .tools = declared,
      .thinks = thinks,
      .effort = effort,
      .continues = choices.continues,
      .clear_thinking = choices.clear_thinking,
      .preserve_thinking = choices.preserve_thinking,
      .schema = setup_.shows_schema ? std::string_view(choices.schema) : std::string_view(),
      .indices = order.messages,
      .call_of = order.call_of};
  PromptWriter prompt(*tokenizer_);
  prompt.Marks(setup_.opening);
  family_->render(chat, setup_, prompt);
  return prompt.TakeIds();
}

}  // namespace foredraft
