#pragma once

// What the formats of DeepSeek-V3.2 and V4 share: they have an encoder in Python instead of a template
// (encoding_dsv32.py, encoding_dsv4.py next to their checkpoints), and write calls in DSML.

#include <string>

#include "absl/status/statusor.h"
#include "server/text/families/chat_family.h"

namespace foredraft::dsml {

inline constexpr char kUser[] = "<｜User｜>", kAssistant[] = "<｜Assistant｜>";
inline constexpr char kThink[] = "<think>", kEndThink[] = "</think>";

absl::StatusOr<ChatSetup> Read(const Tokenizer& tokenizer);

// "<｜DSML｜invoke" and "</｜DSML｜invoke>".
std::string Tag(const char* name);
std::string EndTag(const char* name);
// An example of calls in the block `block`, as both encoders describe it; `kind` is what they call a tool.
std::string Example(const char* block, const char* kind);
// Writes the declared tools, a line of JSON each.
void WriteSchemas(const Conversation& chat, PromptWriter& prompt);
// Writes the leading system texts with an empty line between them. Returns the first message after them.
size_t WriteLeadingSystem(const Conversation& chat, PromptWriter& prompt);
// Writes a past answer with its calls; `keeps_thinking`: also its thinking, with what ends it.
void WriteAnswer(const Conversation& chat, size_t i, bool keeps_thinking, const char* block,
                 PromptWriter& prompt);
// Writes the last message, which the answer goes on with. `opened`: its turn is open already.
void Continue(const Conversation& chat, bool opened, PromptWriter& prompt);
CallSyntax Calls(const char* block);

}  // namespace foredraft::dsml
