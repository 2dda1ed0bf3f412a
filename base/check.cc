#include "base/check.h"

#include <atomic>
#include <cstdlib>

#include "base/log.h"

namespace foredraft {
namespace {

std::atomic<bool> has_failed = false;

}  // namespace

void FailCheck(const char* file, int line, const std::string& text) {
  LogLine(LogLevel::kError, "CHECK " + text + ", " + file + ":" + std::to_string(line));
  has_failed = true;
  std::abort();
}

bool CheckHasFailed() { return has_failed; }

}  // namespace foredraft
