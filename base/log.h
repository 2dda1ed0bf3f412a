#pragma once

// Log lines of all rooms. main installs the sink (spdlog); without one, lines go to stderr. Thread-safe.

#include <functional>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"

namespace foredraft {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel level, std::string_view line)>;

// Called once by main before other threads exist. An empty sink restores stderr.
void InstallLogSink(LogSink sink);

void LogLine(LogLevel level, std::string_view line);

template <class... Args>
void Log(LogLevel level, const absl::FormatSpec<Args...>& format, const Args&... args) {
  LogLine(level, absl::StrFormat(format, args...));
}

}  // namespace foredraft
