#pragma once

#include <optional>
#include <string>

namespace foredraft {

// A checkpoint's chat templates, in Jinja.
struct ChatTemplates {
  // Absent: the checkpoint has none. Empty: the checkpoint has a list in which none is named "default".
  std::optional<std::string> chat;
  std::optional<std::string> tool_use;  // of a list: the one of this name, for requests with tools
};

}  // namespace foredraft
