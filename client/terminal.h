#pragma once

// What a command may write to a terminal.

namespace foredraft {

// Whether escape sequences may be written to this file: it is a terminal that knows them, and the
// environment variable NO_COLOR is not set (https://no-color.org).
bool HasColour(int fd);
// Whether escape sequences other than colours may be written to this file.
bool KnowsEscapes(int fd);

// The columns that the terminal has now; 80 where it does not say.
int TerminalColumns(int fd);

}  // namespace foredraft
