#include "client/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace foredraft {

bool HasColour(int fd) {
  const char* no_colour = getenv("NO_COLOR");
  return KnowsEscapes(fd) && (no_colour == nullptr || *no_colour == '\0');
}

bool KnowsEscapes(int fd) {
  if (isatty(fd) != 1) return false;
  const char* terminal = getenv("TERM");
  return terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
}

int TerminalColumns(int fd) {
  constexpr int kUnknown = 80;
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUnknown;
}

}  // namespace foredraft
