#include "base/check.h"

#include <cstdlib>

#include "base/log.h"

namespace foredraft {

void FailCheck(const char* file, int line, const std::string& text) {
  LogLine(LogLevel::kError, "CHECK " + text + ", " + file + ":" + std::to_string(line));
  std::abort();
}

}  // namespace foredraft
