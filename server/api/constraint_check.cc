#include "server/api/constraint_check.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "config/slot_limits.h"
#include "server/constraints/tool_tag.h"

namespace foredraft {
namespace {

constexpr char kOff[] = "structured output is off (constraints: null)";

bool IsChat(const ClientRequest& client) { return std::holds_alternative<ChatMessages>(client.input); }

// Whether tools constrain the output.
bool HasToolConstraint(const ClientRequest& client) { return IsChat(client) && client.tools.constrain(); }

// Whether only removed tools constrain the output. Where structured output is off, a call of a removed tool
// is text.
bool HasOnlyRemovals(const ClientRequest& client) {
  return !client.constraint && IsChat(client) && !client.tools.constrain() && client.tools.has_effect() &&
         client.tools.has_removed;
}

bool IsOn(const ConstraintCompiler* compiler) { return compiler != nullptr && compiler->is_on(); }

// Whether a constraint comes with tools that may be called: the answer is then calls, or fits the constraint.
bool HasBoth(const ClientRequest& client) {
  return client.constraint && IsChat(client) && client.tools.has_effect();
}

// How an error about the constraint begins: the field that constrains the output, with its value.
std::string Asks(const ClientRequest& client) {
  if (client.constraint) return client.constraint->field;
  if (client.tools.is_forced()) return absl::StrCat("chat.tool_choice: ", ShowJson(client.tools.choice));
  if (!client.tools.allowed.empty()) return "chat.allowed_tools: given";
  if (HasOnlyRemovals(client)) return "chat.messages: removals of tools";
  return absl::StrCat("chat.tools[", client.tools.strict_tool(), "].strict: true");
}

std::string OffText(const ClientRequest& client) {
  if (client.constraint) return absl::StrCat(Asks(client), ": ", kOff, ", allowed unset");
  const char* const allowed = client.tools.is_forced()       ? "auto, none"
                              : client.tools.allowed.empty() ? "false"
                                                             : "unset";
  return absl::StrCat(Asks(client), ", allowed ", allowed, ": ", kOff);
}

// The error for fields that cannot be combined with a constraint; empty if there are none.
std::string CombinationText(const ClientRequest& client, const ConstraintCompiler& compiler) {
  const char* const with = client.constraint              ? " with a constraint"
                           : client.tools.is_forced()     ? " with forced calls"
                           : HasOnlyRemovals(client)      ? " with removals of tools"
                           : client.tools.allowed.empty() ? " with strict tools"
                                                          : " with chat.allowed_tools";
  if (HasBoth(client) &&
      (client.constraint->kind == Constraint::kStructuralTag || client.constraint->from_first_token)) {
    return absl::StrCat(client.constraint->field, ": given with chat.tools, allowed one of them");
  }
  if (client.ignore_eos) return absl::StrCat("ignore_eos: true, allowed false", with);
  // An output shorter than min_tokens could not end, even if it is complete.
  if (client.sampling.min_tokens > 0) {
    return absl::StrCat("sampling.min_tokens: ", client.sampling.min_tokens, ", allowed 0", with);
  }
  if (compiler.is_forced()) {
    return absl::StrCat(Asks(client), ": given while speculative_config.forced_acceptance_length is set, ",
                        "allowed unset");
  }
  return "";
}

ConstrainedBy KindOf(Constraint::Kind kind) {
  switch (kind) {
    case Constraint::kJsonSchema:
      return ConstrainedBy::kJsonSchema;
    case Constraint::kJsonObject:
      return ConstrainedBy::kJsonObject;
    case Constraint::kRegex:
      return ConstrainedBy::kRegex;
    case Constraint::kChoice:
      return ConstrainedBy::kChoice;
    case Constraint::kGbnf:
      return ConstrainedBy::kGrammar;
    case Constraint::kStructuralTag:
      break;
  }
  return ConstrainedBy::kStructuralTag;
}

// Adds the ids whose bytes are `text`.
void AddIdsOf(std::string_view text, const Vocabulary& vocabulary, std::vector<int32_t>& ids) {
  const std::optional<int32_t> found = vocabulary.Find(text);
  if (!found || !vocabulary.IsOrdinary(*found)) return;
  ids.push_back(*found);
  for (const auto& [id, twin] : vocabulary.twins()) {
    if (id == *found) ids.push_back(twin);
  }
}

// Sets line_end_ids, the line ends that may stand between a thought and the grammar's output. If the grammar
// lets the output itself begin with a line end, the two could not be told apart, so none is allowed between.
absl::Status AllowLineEnds(const Request& request, RequestConstraint& constraint) {
  const bool follows_thought = request.thinking.end >= 0 && !constraint.from_first_token;
  if (!follows_thought || !constraint.trigger_ids.empty()) return absl::OkStatus();
  std::vector<int32_t> ids;
  for (const std::string_view text : {"\n", "\n\n"}) AddIdsOf(text, constraint.grammar->vocabulary(), ids);
  ASSIGN_OR_RETURN(const auto mask, Matcher(constraint.grammar).Mask());
  const bool may_begin_so =
      std::any_of(ids.begin(), ids.end(), [&mask](int32_t id) { return mask->Allows(id); });
  if (!may_begin_so) constraint.line_end_ids = std::move(ids);
  return absl::OkStatus();
}

// Stop ids that can come only as the end of an output, ascending.
std::vector<int32_t> AddedStopIds(const Request& request, const ConstraintCompiler& compiler) {
  std::vector<int32_t> ids;
  std::copy_if(request.stop_ids.begin(), request.stop_ids.end(), std::back_inserter(ids),
               [&compiler](int32_t id) { return compiler.IsAddedToken(id); });
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// Drops end ids that the grammar's vocabulary already has: its masks need no addition for them.
void LeaveOutCommonEnds(RequestConstraint& constraint) {
  const std::vector<int32_t>& common = constraint.grammar->vocabulary().end_ids();
  std::erase_if(constraint.end_ids, [&common](int32_t id) {
    return std::find(common.begin(), common.end(), id) != common.end();
  });
}

Constraint ConstraintOf(const ToolTag& tag, bool compact) {
  return {.kind = Constraint::kStructuralTag, .source = tag.source, .compact = compact};
}

Constraint ConstraintOf(const ClientConstraint& asked) {
  return {.kind = *asked.kind,
          .source = asked.source,
          .choices = asked.choices,
          .compact = asked.compact,
          .free_until_trigger = *asked.kind == Constraint::kStructuralTag};
}

absl::StatusOr<std::shared_ptr<const Grammar>> CompileTools(const ClientRequest& client,
                                                            const CallSyntax& calls, const ToolTag& tag,
                                                            bool compact, ConstraintCompiler& compiler) {
  const std::string field = client.tools.is_forced() ? "chat.tool_choice" : "chat.tools";
  auto grammar = compiler.Compile(ConstraintOf(tag, compact), field);
  if (grammar.ok()) return grammar;
  return NameFaultyTool(calls, client.tools, grammar.status(), compiler);
}

// Compiles calls and, unless they are forced, the client's constraint as the alternative to them.
absl::Status CompileCalls(const ClientRequest& client, const ChatFormat& chat_format,
                          const Tokenizer& tokenizer, ConstraintCompiler& compiler, RequestConstraint& made) {
  const CallSyntax calls = chat_format.calls();
  std::string alternative;
  if (client.constraint && !client.tools.is_forced()) {
    // The constraint is compiled alone first, so that errors in it name its own field.
    const Constraint alone = ConstraintOf(*client.constraint);
    RETURN_IF_ERROR(compiler.Compile(alone, client.constraint->field).status());
    alternative = AlternativePart(alone);
  }
  const bool compact = !alternative.empty() && client.constraint->compact;
  ASSIGN_OR_RETURN(ToolTag tag, MakeToolTag(calls, WithKeptSchemas(calls, client.tools, compiler), tokenizer,
                                            alternative));
  if (!compiler.CanCompile(ConstraintOf(tag, compact))) {  // too much together, or a faulty strict tool
    ASSIGN_OR_RETURN(tag, MakeToolTag(calls, client.tools, tokenizer, alternative));
  }
  ASSIGN_OR_RETURN(made.grammar, CompileTools(client, calls, tag, compact, compiler));
  made.trigger_ids = std::move(tag.trigger_ids);
  compiler.CountAccepted(alternative.empty() ? ConstrainedBy::kTools : KindOf(*client.constraint->kind));
  return absl::OkStatus();
}

}  // namespace

bool IsConstrained(const ClientRequest& client) {
  return client.constraint.has_value() || HasToolConstraint(client) || HasOnlyRemovals(client);
}

absl::Status CheckConstraintLength(const ClientRequest& client, ConstraintCompiler* compiler) {
  if (!client.constraint || !client.constraint->kind || compiler == nullptr) return absl::OkStatus();
  const ClientConstraint& asked = *client.constraint;
  return compiler->CheckLength(*asked.kind, asked.source, asked.choices, asked.field);
}

absl::Status CheckConstraint(const ClientRequest& client, ConstraintCompiler* compiler) {
  if (!IsConstrained(client)) return absl::OkStatus();
  if (HasOnlyRemovals(client) && !IsOn(compiler)) return absl::OkStatus();
  if (compiler == nullptr) return absl::InvalidArgumentError(OffText(client));
  if (!compiler->is_on()) return compiler->Refuse(ConstraintRefusal::kOff, OffText(client));
  if (client.constraint && !client.constraint->kind) {
    return compiler->Refuse(ConstraintRefusal::kSource,
                            absl::StrCat(client.constraint->field,
                                         ": empty, allowed one of json_schema, json_object: true, regex, "
                                         "choice, grammar, structural_tag"));
  }
  const std::string refused = CombinationText(client, *compiler);
  return refused.empty() ? absl::OkStatus() : compiler->Refuse(ConstraintRefusal::kCombination, refused);
}

absl::StatusOr<RequestConstraint> MakeConstraint(const ClientRequest& client, const Request& request,
                                                 const ChatFormat* chat_format, const Tokenizer& tokenizer,
                                                 ConstraintCompiler* compiler) {
  RequestConstraint made;
  if (!IsConstrained(client) || (HasOnlyRemovals(client) && !IsOn(compiler))) return made;
  CHECK(compiler != nullptr) << "CheckConstraint refuses";
  made.end_ids = AddedStopIds(request, *compiler);
  made.turn_end_count = static_cast<int32_t>(request.stop_ids.size() - client.stop_token_ids.size());
  if (made.end_ids.empty() && !compiler->has_end_ids()) {
    return compiler->Refuse(
        ConstraintRefusal::kCombination,
        absl::StrCat(Asks(client), ": given to a model without a token that ends outputs, allowed unset"));
  }
  if (!client.constraint || HasBoth(client)) {
    RETURN_IF_ERROR(CompileCalls(client, *chat_format, tokenizer, *compiler, made));
    RETURN_IF_ERROR(AllowLineEnds(request, made));
    LeaveOutCommonEnds(made);
    return made;
  }
  const ClientConstraint& asked = *client.constraint;
  made.from_first_token = asked.from_first_token;
  Constraint constraint = ConstraintOf(asked);
  ASSIGN_OR_RETURN(made.grammar, compiler->Compile(constraint, asked.field));
  if (made.grammar->trigger_ids().size() > kMaxTriggerIds) {
    constraint.free_until_trigger = false;
    ASSIGN_OR_RETURN(made.grammar, compiler->Compile(constraint, asked.field));
  }
  made.trigger_ids = made.grammar->trigger_ids();
  RETURN_IF_ERROR(AllowLineEnds(request, made));
  LeaveOutCommonEnds(made);
  compiler->CountAccepted(KindOf(*asked.kind));
  return made;
}

}  // namespace foredraft
