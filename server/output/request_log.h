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

// What `serve` shows on a terminal, after InstallLog: ShowLine writes a line unchanged among those of the
// log, and KeepBelowLog sets lines that stay below the log (StderrSink::KeepBelow).
void ShowLine(std::string_view line);
void KeepBelowLog(std::string lines);

// Control characters, which clients' texts may have, are written as \\xNN, so that an entry stays one line.
// `fields` are in JSON lines only; `trace` is in every line.
void LogRequest(LogLevel level, std::string_view request_id, std::string_view line, LogFields fields = {},
                const std::optional<TraceContext>& trace = std::nullopt);

// The access log's line for a call that was refused; `peer` says from where. At most kRefusalLinesPerSecond
// lines a second: the next one says how many were left out.
inline constexpr int kRefusalLinesPerSecond = 10;
void LogRefusal(std::string_view request_id, std::string_view peer, const absl::Status& status,
                const std::optional<TraceContext>& trace = std::nullopt);

}  // namespace foredraft
