#pragma once

// What a request of Anthropic's Messages API says of tools: its list, its choice, and the blocks by which
// system messages give the model a tool and take it away.

#include <set>
#include <string>
#include <string_view>

#include "server/api/fields/field_reader.h"
#include "server/api/fields/tool_fields.h"
#include "server/text/chat_message.h"

namespace foredraft {

// Owner: the reading of one request, whose fields it reads in the order of its functions. Faults are kept in
// the readers. Tools of other types than custom are skipped, and noted.
class MessagesTools {
 public:
  // tools. `body` is the request's text.
  void ReadList(FieldReader& fields, std::string_view body);
  // A block tool_addition or tool_removal. `text`: the block's; `message`: the one that it is in, as read so
  // far.
  void ReadChange(FieldReader& block, std::string_view text, const std::string& type, ChatMessage& message);
  // Reads tool_choice, which may name a tool that a block has defined.
  ChatTools Take(FieldReader& fields);

 private:
  void ReadChoice(const nlohmann::json& object, ChatTools& tools, FieldReader& fields) const;
  // The tool that a definition is of; nullopt where it is skipped, or refused.
  std::optional<ChatTool> ReadDefinition(const nlohmann::json& object, std::string_view text,
                                         const std::string& name, FieldReader& around);

  ToolList list_;
  std::set<std::string> skipped_;  // names of tools that the model is not told of
  std::set<std::string> defined_;  // by blocks
  bool has_removed_ = false;
};

}  // namespace foredraft
