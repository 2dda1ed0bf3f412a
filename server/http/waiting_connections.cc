#include "server/http/waiting_connections.h"

#include <algorithm>
#include <utility>

#include "base/out_of_memory.h"

namespace foredraft {

void WaitingConnections::Enter(const std::string& address, uint64_t number, std::function<void()> close) {
  const MustHaveMemory scope;  // a queue that is half made would be found empty
  std::function<void()> evicted;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queues_[address][number] = std::move(close);
    ++count_;
    if (const auto crowded = Crowded(address); crowded != queues_.end()) {
      evicted = std::move(crowded->second.begin()->second);
      crowded->second.erase(crowded->second.begin());
      if (crowded->second.empty()) queues_.erase(crowded);
      --count_;
    }
  }
  if (evicted) evicted();
}

std::map<std::string, WaitingConnections::Queue>::iterator WaitingConnections::Crowded(
    const std::string& newest) {
  const auto own = queues_.find(newest);
  if (static_cast<int>(own->second.size()) > max_per_address_) return own;
  if (count_ <= max_) return queues_.end();
  // All addresses share the bound: the address with the most connections gives one back; ties go to the
  // address whose oldest connection is older.
  return std::max_element(queues_.begin(), queues_.end(), [](const auto& a, const auto& b) {
    const Queue &left = a.second, &right = b.second;
    return left.size() != right.size() ? left.size() < right.size()
                                       : left.begin()->first > right.begin()->first;
  });
}

void WaitingConnections::Leave(const std::string& address, uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto queue = queues_.find(address);
  if (queue == queues_.end()) return;
  if (queue->second.erase(number) == 0) return;
  if (queue->second.empty()) queues_.erase(queue);
  --count_;
}

int WaitingConnections::count() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return count_;
}

}  // namespace foredraft
