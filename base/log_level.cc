#include "base/log_level.h"

#include <atomic>

namespace foredraft {
namespace {

constinit std::atomic<LogLevel> least = LogLevel::kInfo;

}  // namespace

void SetLeastLogLevel(LogLevel level) { least.store(level, std::memory_order_relaxed); }

bool IsLogged(LogLevel level) { return level >= least.load(std::memory_order_relaxed); }

}  // namespace foredraft
