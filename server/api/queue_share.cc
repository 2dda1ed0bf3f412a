#include "server/api/queue_share.h"

#include "absl/strings/str_format.h"
#include "base/error_reason.h"

namespace foredraft {

absl::StatusOr<QueueShare::Place> QueueShare::Take(const std::string& client, int max) {
  std::lock_guard<std::mutex> lock(counts_->mutex);
  int& taken = counts_->taken[client];
  if (taken >= max) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrFormat(
            "%d requests of this client wait, which is its share of the queue (server.max_queue_share)",
            taken)),
        kReasonQueueFull);
  }
  ++taken;
  return Place(nullptr, [counts = counts_, client](const void*) {
    std::lock_guard<std::mutex> done_lock(counts->mutex);
    const auto it = counts->taken.find(client);
    if (--it->second == 0) counts->taken.erase(it);
  });
}

std::string ClientOf(const std::string& peer) {
  const size_t colon = peer.rfind(':');
  const bool has_port = peer.starts_with("ipv4:") || peer.starts_with("ipv6:");
  return has_port && colon != std::string::npos && colon > 5 ? peer.substr(0, colon) : peer;
}

}  // namespace foredraft
