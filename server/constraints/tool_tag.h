#pragma once

// Writes calls of tools as a structural tag, in each family's format. Used for answers that must call
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
  // The answer is free until one of these ids, with which the tag begins. Empty: the tag is the whole answer.
  std::vector<int32_t> trigger_ids;
};

// `calls` is how the family spells calls. `tools` have passed CheckTools and constrain the answer. Tools that
// are not strict take any object as arguments. In formats that write one parameter after the other they take
// any values of the declared properties, in their order and with all required ones; a dictionary takes any
// properties. INVALID_ARGUMENT names the tool whose schema describes no object. `alternative`, from
// AlternativePart, is what the answer may be instead of calls; if it is empty, that is free text. It has no
// effect on forced calls.
absl::StatusOr<ToolTag> MakeToolTag(const CallSyntax& calls, const ChatTools& tools,
                                    const Tokenizer& tokenizer, const std::string& alternative = "");

// A constraint as a part of a structural tag. It compiles, and is not itself a structural tag.
std::string AlternativePart(const Constraint& constraint);

// The tools of forced calls, with `strict` set where the schema can be enforced: a forced call follows its
// tool's schema wherever that is possible.
ChatTools WithKeptSchemas(const CallSyntax& calls, ChatTools tools, ConstraintCompiler& compiler);

// The error of the first tool whose schema alone does not compile, with its name; otherwise `whole`, the
// error of the tag.
absl::Status NameFaultyTool(const CallSyntax& calls, const ChatTools& tools, const absl::Status& whole,
                            ConstraintCompiler& compiler);

}  // namespace foredraft
