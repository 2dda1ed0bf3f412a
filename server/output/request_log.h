#ifndef FOREDRAFT_SERVER_OUTPUT_REQUEST_LOG_H_
#define FOREDRAFT_SERVER_OUTPUT_REQUEST_LOG_H_

// The daemon's log: text or JSON lines on stderr (spdlog). Lines about a request carry its id. Thread-safe.

#include <cstdint>
#include <string_view>

#include "base/log.h"
#include "config/config.h"

namespace foredraft {

// Installs the sink of base/log.h; called once by main before other threads exist.
void InstallLog(LogLevel level, LogFormat format);
void SetLogLevel(LogLevel level);
// Lines that were dropped because nobody reads stderr: writing them would stop the daemon.
uint64_t DroppedLogLines();

void LogRequest(LogLevel level, std::string_view request_id, std::string_view line);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_OUTPUT_REQUEST_LOG_H_
