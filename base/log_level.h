#pragma once

// Which log lines are written: asked before a line is made of which there are many. Thread-safe.

#include "base/log.h"

namespace foredraft {

// Whoever installs the sink sets the level; before that it is kInfo.
void SetLeastLogLevel(LogLevel level);
bool IsLogged(LogLevel level);

}  // namespace foredraft
