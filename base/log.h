#pragma once

// Log lines of all rooms. main installs the sink (spdlog); without one, lines go to stderr. Thread-safe.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"

namespace foredraft {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// A named value of a log line: its sentence contains the value, and JSON lines also have it as a member.
struct LogField {
  std::string_view name;  // lower_case_with_units, a literal: "queue_ms"
  std::variant<int64_t, double, bool, std::string> value;

  LogField(std::string_view field, int number) : name(field), value(int64_t{number}) {}
  LogField(std::string_view field, int64_t number) : name(field), value(number) {}
  LogField(std::string_view field, double number) : name(field), value(number) {}
  LogField(std::string_view field, bool truth) : name(field), value(truth) {}
  LogField(std::string_view field, std::string text) : name(field), value(std::move(text)) {}
  LogField(std::string_view field, const char* text) : name(field), value(std::string(text)) {}
};
using LogFields = std::vector<LogField>;

using LogSink = std::function<void(LogLevel level, std::string_view line, const LogFields& fields)>;

// Called once by main before other threads exist. An empty sink restores stderr.
void InstallLogSink(LogSink sink);

void LogLine(LogLevel level, std::string_view line, const LogFields& fields = {});

template <class... Args>
void Log(LogLevel level, const absl::FormatSpec<Args...>& format, const Args&... args) {
  LogLine(level, absl::StrFormat(format, args...));
}

}  // namespace foredraft
