#include "client/terminal.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace foredraft {

bool HasColour(int fd) {
  if (isatty(fd) != 1) return false;
  const char* no_colour = getenv("NO_COLOR");
  if (no_colour != nullptr && *no_colour != '\0') return false;
  const char* terminal = getenv("TERM");
  return terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
}

}  // namespace foredraft
