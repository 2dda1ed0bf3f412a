#include "base/check.h"

#include <csignal>
#include <cstdlib>

#include "base/log.h"

namespace foredraft {

void FailCheck(const char* file, int line, const std::string& text) {
  LogLine(LogLevel::kError, "CHECK " + text + ", " + file + ":" + std::to_string(line));
  std::signal(SIGABRT, SIG_DFL);  // a handler is for libraries that abort without a text
  std::abort();
}

}  // namespace foredraft
