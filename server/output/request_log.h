#ifndef FOREDRAFT_SERVER_OUTPUT_REQUEST_LOG_H_
#define FOREDRAFT_SERVER_OUTPUT_REQUEST_LOG_H_

// The daemon's log: text or JSON lines on stderr (spdlog). Lines about a request carry its id. Thread-safe.

#include <string>
#include <string_view>

#include "base/log.h"

namespace foredraft {

// level: debug, info, warning, error. format: text, json. Installs the sink of base/log.h; called once by
// main before other threads exist.
void InstallLog(const std::string& level, const std::string& format);
void SetLogLevel(const std::string& level);

void LogRequest(LogLevel level, std::string_view request_id, std::string_view line);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_OUTPUT_REQUEST_LOG_H_
