#pragma once

// Which log lines are written. Code that logs often asks before it makes a line. Thread-safe.

#include "base/log.h"

namespace foredraft {

// The level is kInfo until the owner of the log's sink sets it.
void SetLeastLogLevel(LogLevel level);
bool IsLogged(LogLevel level);

}  // namespace foredraft
