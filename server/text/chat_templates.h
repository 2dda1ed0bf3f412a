#pragma once

#include <optional>
#include <string>

namespace foredraft {

// A checkpoint's chat templates, in Jinja.
struct ChatTemplates {
  // Absent: the checkpoint has none. Empty: of a list none is named "default", so that none is known.
  std::optional<std::string> chat;
  std::optional<std::string> tool_use;  // of a list: the one of this name, for requests with tools
};

}  // namespace foredraft
