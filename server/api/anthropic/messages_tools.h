#pragma once

// Reads what a request of Anthropic's Messages API says of tools: its list, its choice, and the blocks by
// which system messages add and remove tools.

#include <set>
#include <string>
#include <string_view>

#include "server/api/fields/field_reader.h"
#include "server/api/fields/tool_fields.h"
#include "server/text/chat_message.h"

namespace foredraft {

// Owner: the reading of one request, which calls the functions in their order. Faults are kept in the
// readers. Tools of other types than custom are skipped and noted.
class MessagesTools {
 public:
  // Reads `tools`. `body` is the request's text.
  void ReadList(FieldReader& fields, std::string_view body);
  // Reads a tool_addition or tool_removal block. `text` is the block's; `message` is its message as read so
  // far.
  void ReadChange(FieldReader& block, std::string_view text, const std::string& type, ChatMessage& message);
  // Reads tool_choice, which may name a tool that a block has defined.
  ChatTools Take(FieldReader& fields);

 private:
  void ReadChoice(const nlohmann::json& object, ChatTools& tools, FieldReader& fields) const;
  // The tool that `object` defines; nullopt if it is skipped or refused.
  std::optional<ChatTool> ReadDefinition(const nlohmann::json& object, std::string_view text,
                                         const std::string& name, FieldReader& around);

  ToolList list_;
  std::set<std::string> skipped_;  // names of tools that the model is not told of
  std::set<std::string> defined_;  // names of tools that blocks define
  bool has_removed_ = false;
};

}  // namespace foredraft
