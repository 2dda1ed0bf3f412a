#ifndef FOREDRAFT_CLIENT_TERMINAL_H_
#define FOREDRAFT_CLIENT_TERMINAL_H_

// What a command may write to a terminal.

namespace foredraft {

// Whether escape sequences may be written to this file: it is a terminal that knows them, and the
// environment variable NO_COLOR is not set (https://no-color.org).
bool HasColour(int fd);

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_TERMINAL_H_
