#include "server/output/request_log.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "server/output/stderr_sink.h"

namespace foredraft {
namespace {

// Set by InstallLog, before other threads exist.
std::atomic<bool> json_lines = false;
std::shared_ptr<StderrSink> stderr_sink;

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// A quoted JSON string; spdlog's patterns cannot quote.
std::string Quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void WriteLine(LogLevel level, std::string_view line, std::string_view request_id) {
  std::string text(line);
  if (json_lines) {
    text = absl::StrCat("\"message\":", Quote(line));
    if (!request_id.empty()) absl::StrAppend(&text, ",\"request_id\":", Quote(request_id));
  } else if (!request_id.empty()) {
    text = absl::StrCat("request ", std::string(request_id), " ", text);
  }
  spdlog::default_logger_raw()->log(SpdlogLevel(level), text);
}

}  // namespace

void InstallLog(LogLevel level, LogFormat format) {
  json_lines = format == LogFormat::kJson;
  stderr_sink = std::make_shared<StderrSink>(STDERR_FILENO);
  auto logger = std::make_shared<spdlog::logger>("foredraft", stderr_sink);
  logger->set_pattern(
      json_lines ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})" : "%Y-%m-%dT%H:%M:%S.%eZ %-7l %v",
      spdlog::pattern_time_type::utc);
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(logger);
  SetLogLevel(level);
  InstallLogSink([](LogLevel line_level, std::string_view line) { WriteLine(line_level, line, ""); });
}

uint64_t DroppedLogLines() { return stderr_sink == nullptr ? 0 : stderr_sink->dropped_lines(); }

void SetLogLevel(LogLevel level) { spdlog::set_level(SpdlogLevel(level)); }

void LogRequest(LogLevel level, std::string_view request_id, std::string_view line) {
  WriteLine(level, line, request_id);
}

}  // namespace foredraft
