#pragma once

// Which log lines are written: asked before a line is made of which there are many. Thread-safe.

#include "base/log.h"

namespace foredraft {

// Set by whoever installs the sink; kInfo before.
void SetLeastLogLevel(LogLevel level);
bool IsLogged(LogLevel level);

}  // namespace foredraft
