#include "server/output/request_log.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log_level.h"
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

// A quoted JSON string; spdlog's patterns cannot quote. The result is ASCII, with every other character as
// \uXXXX: terminals, too, show lines of JSON.
std::string Quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

std::string JsonOf(const LogField& field) {
  return std::visit(
      [](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) return Quote(value);
        if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
        if constexpr (std::is_same_v<T, double>) {
          return std::isfinite(value) ? absl::StrFormat("%.3f", value) : "null";
        }
        if constexpr (std::is_same_v<T, int64_t>) return absl::StrCat(value);
      },
      field.value);
}

void WriteLine(LogLevel level, std::string_view line, std::string_view request_id, const LogFields& fields) {
  std::string text;
  if (json_lines) {
    text = absl::StrCat("\"message\":", Quote(line));
    if (!request_id.empty()) absl::StrAppend(&text, ",\"request_id\":", Quote(request_id));
    for (const LogField& field : fields) absl::StrAppend(&text, ",", Quote(field.name), ":", JsonOf(field));
  } else if (!request_id.empty()) {
    text = absl::StrCat("request ", VisibleText(request_id), " ", VisibleText(line));
  } else {
    text = VisibleText(line);
  }
  spdlog::default_logger_raw()->log(SpdlogLevel(level), text);
}

// Bounds the lines per second, and counts those that it leaves out.
class LineBudget {
 public:
  // Returns how many lines were left out since the last one that was written; -1: this one is left out too.
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
  InstallLogSink([](LogLevel line_level, std::string_view line, const LogFields& fields) {
    WriteLine(line_level, line, "", fields);
  });
}

void ShowLine(std::string_view line) {
  if (stderr_sink != nullptr) stderr_sink->WriteLine(line);
}

void KeepBelowLog(std::string lines) {
  if (stderr_sink != nullptr) stderr_sink->KeepBelow(std::move(lines));
}

uint64_t DroppedLogLines() { return stderr_sink == nullptr ? 0 : stderr_sink->dropped_lines(); }

void SetLogLevel(LogLevel level) {
  spdlog::set_level(SpdlogLevel(level));
  SetLeastLogLevel(level);
}

void LogRequest(LogLevel level, std::string_view request_id, std::string_view line, LogFields fields,
                const std::optional<TraceContext>& trace) {
  if (!trace.has_value()) return WriteLine(level, line, request_id, fields);
  fields.emplace_back("trace_id", trace->trace_id);
  fields.emplace_back("span_id", trace->span_id);
  fields.emplace_back("parent_span_id", trace->parent_id);
  std::string text(line);
  if (!json_lines) absl::StrAppend(&text, ", trace ", trace->trace_id);
  WriteLine(level, text, request_id, fields);
}

void LogRefusal(std::string_view request_id, std::string_view peer, const absl::Status& status,
                const std::optional<TraceContext>& trace) {
  static LineBudget budget;
  const int64_t left_out = budget.Take();
  if (left_out < 0) return;
  if (left_out > 0) {
    LogLine(LogLevel::kInfo, absl::StrFormat("%d refusals were not logged", left_out),
            {{"refusals", left_out}});
  }
  const std::string code = absl::StatusCodeToString(status.code());
  LogRequest(LogLevel::kInfo, request_id,
             absl::StrCat("refused, peer ", std::string(peer), ": ", code, " ", status.message()),
             {{"outcome", "refused"}, {"peer", std::string(peer)}, {"code", code}}, trace);
}

}  // namespace foredraft
