#pragma once

// Calls of tools as a structural tag, in the format of each family: for answers that must call
// (tool_choice "required", "function:NAME"), for calls whose arguments must follow a schema
// (ChatTool::strict), and where not all of the tools may be called (ChatTools::allowed, has_removed).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/constraints/constraint_compiler.h"
#include "server/text/call_syntax.h"
#include "server/text/chat_message.h"
#include "server/text/tokenizer.h"

namespace foredraft {

struct ToolTag {
  std::string source;  // JSON, a structural tag
  // The answer is free until one of these, which the tag begins with. Empty: the tag is the whole answer.
  std::vector<int32_t> trigger_ids;
};

// `calls`: as the family spells them. `tools` are checked already (CheckTools) and constrain the answer.
// Tools that are not strict take any object as arguments. In formats that write one parameter after the other
// they take any values of the declared properties, in their order and with all required ones; a
// dictionary takes any properties. INVALID_ARGUMENT names the tool whose schema describes no object.
// alternative: AlternativePart, what the answer is where it is not calls, instead of free text; empty: none.
// It has no effect on forced calls.
absl::StatusOr<ToolTag> MakeToolTag(const CallSyntax& calls, const ChatTools& tools,
                                    const Tokenizer& tokenizer, const std::string& alternative = "");

// A constraint that compiles, but for a structural tag, as a part of one.
std::string AlternativePart(const Constraint& constraint);

// The tools of forced calls, with `strict` set where the schema can be kept: a call that must come follows
// what its tool declares wherever that is possible.
ChatTools WithKeptSchemas(const CallSyntax& calls, ChatTools tools, ConstraintCompiler& compiler);

// The error `whole` of a tag that does not compile, with the name of the tool whose schema is at fault if
// only one is.
absl::Status NameFaultyTool(const CallSyntax& calls, const ChatTools& tools, const absl::Status& whole,
                            ConstraintCompiler& compiler);

}  // namespace foredraft
