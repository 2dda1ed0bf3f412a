#include "base/log.h"

#include <cstdio>
#include <utility>

#include "base/visible_text.h"

namespace foredraft {
namespace {

LogSink& Sink() {
  static LogSink* const sink = new LogSink;  // never destroyed: a CHECK may fail while statics are torn down
  return *sink;
}

}  // namespace

void InstallLogSink(LogSink sink) { Sink() = std::move(sink); }

void LogLine(LogLevel level, std::string_view line, const LogFields& fields) {
  if (Sink()) {
    Sink()(level, line, fields);
  } else if (level != LogLevel::kDebug) {
    std::fprintf(stderr, "foredraft: %s\n", VisibleText(line).c_str());
  }
}

}  // namespace foredraft
