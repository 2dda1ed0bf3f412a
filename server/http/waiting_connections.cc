#include "server/http/waiting_connections.h"

#include <algorithm>
#include <utility>

namespace foredraft {

uint64_t WaitingConnections::Enter(const std::string& address, std::function<void()> close) {
  std::function<void()> evicted;
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    number = next_number_++;
    queues_[address].push_back({number, std::move(close)});
    ++count_;
    if (const auto crowded = Crowded(address); crowded != queues_.end()) {
      evicted = std::move(crowded->second.front().close);
      crowded->second.pop_front();
      if (crowded->second.empty()) queues_.erase(crowded);
      --count_;
    }
  }
  if (evicted) evicted();
  return number;
}

std::map<std::string, WaitingConnections::Queue>::iterator WaitingConnections::Crowded(
    const std::string& newest) {
  const auto own = queues_.find(newest);
  if (static_cast<int>(own->second.size()) > max_per_address_) return own;
  if (count_ <= max_) return queues_.end();
  // Many addresses share the number: the one that has most of it gives one back.
  return std::max_element(queues_.begin(), queues_.end(),
                          [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
}

void WaitingConnections::Leave(const std::string& address, uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto queue = queues_.find(address);
  if (queue == queues_.end()) return;
  const auto found = std::find_if(queue->second.begin(), queue->second.end(),
                                  [&](const Waiting& waiting) { return waiting.number == number; });
  if (found == queue->second.end()) return;
  queue->second.erase(found);
  if (queue->second.empty()) queues_.erase(queue);
  --count_;
}

int WaitingConnections::count() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return count_;
}

}  // namespace foredraft
