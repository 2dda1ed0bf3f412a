#include "net/guard/guard_table.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>

namespace foredraft {

void GuardTable::Add(uint64_t id, int fd, const std::string& address) {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_[id] = {.fd = fd, .address = address};
  strangers_[address].silent[id] = fd;
}

bool GuardTable::Remove(uint64_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return true;
  const bool evicted = found->second.evicted;
  if (!evicted) count_.Remove(found->second.fd);
  ForgetStranger(id, found->second.address);
  entries_.erase(found);
  if (evicted && leaving_-- == max_leaving_) left_.notify_all();
  return !evicted;
}

void GuardTable::NoteCall(uint64_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  const auto strangers = strangers_.find(found->second.address);
  if (strangers == strangers_.end() || strangers->second.silent.erase(id) == 0) return;
  strangers->second.callers[id] = found->second.fd;
}

void GuardTable::BecomeClient(uint64_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.is_client || found->second.evicted) return;
  found->second.is_client = true;
  ForgetStranger(id, found->second.address);
  promoted_(id);
}

bool GuardTable::Strangers::GoesBefore(const Strangers& other) const {
  if (size() != other.size()) return size() > other.size();
  if (silent.empty() != other.silent.empty()) return !silent.empty();
  return first().first < other.first().first;
}

bool GuardTable::EvictOne() {
  constexpr std::chrono::seconds kLongestWait(1);
  std::unique_lock<std::mutex> lock(mutex_);
  if (!left_.wait_for(lock, kLongestWait, [this] { return leaving_ < max_leaving_; })) return false;
  const auto most = std::min_element(strangers_.begin(), strangers_.end(), [](const auto& a, const auto& b) {
    return a.second.GoesBefore(b.second);
  });
  if (most == strangers_.end()) return false;
  const auto [id, fd] = most->second.first();
  entries_[id].evicted = true;
  ++leaving_;
  ForgetStranger(id, most->first);
  count_.Remove(fd);
  shutdown(fd, SHUT_RDWR);  // its owner reads the end and closes it
  return true;
}

void GuardTable::ForgetStranger(uint64_t id, const std::string& address) {
  const auto strangers = strangers_.find(address);
  if (strangers == strangers_.end()) return;
  strangers->second.silent.erase(id);
  strangers->second.callers.erase(id);
  if (strangers->second.size() == 0) strangers_.erase(strangers);
}

}  // namespace foredraft
