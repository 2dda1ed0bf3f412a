#include "engine/comm/group_status.h"

#include "base/check.h"

namespace foredraft {

bool GroupStatus::Fail(const absl::Status& reason) {
  CHECK(!reason.ok());
  std::lock_guard<std::mutex> lock(mutex_);
  if (!reason_.ok()) return false;
  reason_ = absl::UnavailableError(reason.message());
  failed_.store(true, std::memory_order_release);
  return true;
}

absl::Status GroupStatus::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reason_;
}

}  // namespace foredraft
