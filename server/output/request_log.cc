#include "server/output/request_log.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/visible_text.h"
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

// A quoted JSON string; spdlog's patterns cannot quote. In ASCII alone, with every other character as \uXXXX:
// terminals, too, show lines of JSON.
std::string Quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

void WriteLine(LogLevel level, std::string_view line, std::string_view request_id) {
  std::string text;
  if (json_lines) {
    text = absl::StrCat("\"message\":", Quote(line));
    if (!request_id.empty()) absl::StrAppend(&text, ",\"request_id\":", Quote(request_id));
  } else if (!request_id.empty()) {
    text = absl::StrCat("request ", VisibleText(request_id), " ", VisibleText(line));
  } else {
    text = VisibleText(line);
  }
  spdlog::default_logger_raw()->log(SpdlogLevel(level), text);
}

// Lines per second, and how many more there would have been.
class LineBudget {
 public:
  // Lines left out since the last one that was written; -1: this one is left out too.
  int64_t Take() {
    const auto now = std::chrono::steady_clock::now();
    std::lock_guard<std::mutex> lock(mutex_);
    if (now - second_ >= std::chrono::seconds(1)) {
      second_ = now;
      written_ = 0;
    }
    if (written_ == kRefusalLinesPerSecond) {
      ++left_out_;
      return -1;
    }
    ++written_;
    return std::exchange(left_out_, 0);
  }

 private:
  std::mutex mutex_;
  // Guarded by mutex_.
  std::chrono::steady_clock::time_point second_;
  int written_ = 0;
  int64_t left_out_ = 0;
};

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

void ShowLine(std::string_view line) {
  if (stderr_sink != nullptr) stderr_sink->WriteLine(line);
}

void KeepBelowLog(std::string lines) {
  if (stderr_sink != nullptr) stderr_sink->KeepBelow(std::move(lines));
}

uint64_t DroppedLogLines() { return stderr_sink == nullptr ? 0 : stderr_sink->dropped_lines(); }

void SetLogLevel(LogLevel level) { spdlog::set_level(SpdlogLevel(level)); }

void LogRequest(LogLevel level, std::string_view request_id, std::string_view line) {
  WriteLine(level, line, request_id);
}

void LogRefusal(std::string_view request_id, std::string_view peer, const absl::Status& status) {
  static LineBudget budget;
  const int64_t left_out = budget.Take();
  if (left_out < 0) return;
  if (left_out > 0) Log(LogLevel::kInfo, "%d refusals were not logged", left_out);
  LogRequest(LogLevel::kInfo, request_id,
             absl::StrCat("refused, peer ", std::string(peer), ": ", absl::StatusCodeToString(status.code()),
                          " ", status.message()));
}

}  // namespace foredraft
