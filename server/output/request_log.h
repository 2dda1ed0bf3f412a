#pragma once

// The daemon's log: text or JSON lines on stderr (spdlog). Lines about a request carry its id. Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/log.h"
#include "config/config.h"
#include "server/output/trace_context.h"

namespace foredraft {

// Installs the sink of base/log.h; called once by main before other threads exist.
void InstallLog(LogLevel level, LogFormat format);
void SetLogLevel(LogLevel level);
// Lines that were dropped because nobody reads stderr: writing them would stop the daemon.
uint64_t DroppedLogLines();

// What `serve` shows on a terminal, after InstallLog: a line as it is among those of the log, and lines that
// stay below it (StderrSink::KeepBelow).
void ShowLine(std::string_view line);
void KeepBelowLog(std::string lines);

// Control characters, which clients' texts may have, are written as \\xNN: a line is one line. `fields` are
// members of a JSON line alone; `trace` is a part of every line.
void LogRequest(LogLevel level, std::string_view request_id, std::string_view line, LogFields fields = {},
                const std::optional<TraceContext>& trace = std::nullopt);

// The access log's line for a call that was refused; `peer` says from where. At most kRefusalLinesPerSecond
// lines a second: the next one says how many there would have been.
inline constexpr int kRefusalLinesPerSecond = 10;
void LogRefusal(std::string_view request_id, std::string_view peer, const absl::Status& status,
                const std::optional<TraceContext>& trace = std::nullopt);

}  // namespace foredraft
