#pragma once

// Which log lines are written: asked before a line is made of which there are many. Thread-safe.

#include "base/log.h"

namespace foredraft {

// The level is kInfo until a sink is installed, whose owner sets it.
void SetLeastLogLevel(LogLevel level);
bool IsLogged(LogLevel level);

}  // namespace foredraft
