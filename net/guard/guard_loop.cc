#include "net/guard/guard_loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/out_of_memory.h"

namespace foredraft {
namespace {

constexpr size_t kAreaBytes = 64 << 10;
constexpr int kLongestWaitMs = 10'000;

// What an event of epoll belongs to: a connection's id and which of its descriptors, or the loop's own wake.
constexpr uint64_t kWakeTag = 0;
uint64_t ClientTag(uint64_t id) { return id << 1; }
uint64_t ServerTag(uint64_t id) { return id << 1 | 1; }

Relay::Ready ReadyBy(uint64_t tag, uint32_t events) {
  const bool is_server = (tag & 1) != 0;
  const bool closed = (events & (EPOLLHUP | EPOLLERR)) != 0;
  const bool reads = closed || (events & EPOLLIN) != 0;
  const bool writes = closed || (events & EPOLLOUT) != 0;
  return {.requests = is_server ? writes : true, .answers = is_server ? reads : writes};
}

}  // namespace

GuardLoop::GuardLoop(const char* name, Hooks hooks)
    : hooks_(std::move(hooks)),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      area_(kAreaBytes) {
  CHECK_GE(epoll_fd_, 0) << "epoll_create1: " << std::strerror(errno);
  CHECK_GE(wake_fd_, 0) << "eventfd: " << std::strerror(errno);
  uint32_t watched = 0;
  CHECK(Watch(wake_fd_, kWakeTag, EPOLLIN, watched)) << std::strerror(errno);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), name);
}

GuardLoop::~GuardLoop() {
  Stop();
  close(epoll_fd_);
  close(wake_fd_);
}

void GuardLoop::Stop() {
  if (stopped_.exchange(true)) return;
  eventfd_write(wake_fd_, 1);
  thread_.join();
  RunTasks();
  for (const auto& [id, connection] : connections_) hooks_.ended(connection);
  connections_.clear();
  count_.store(0);
}

void GuardLoop::Post(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  eventfd_write(wake_fd_, 1);
}

void GuardLoop::Run() {
  const MustHaveMemory scope;
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // a write under TLS raises SIGPIPE
  std::array<epoll_event, 256> events;
  while (!stopped_.load()) {
    const int count = epoll_wait(epoll_fd_, events.data(), events.size(), MillisecondsToWait());
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 != kWakeTag) {
        Advance(events[i].data.u64 >> 1, ReadyBy(events[i].data.u64, events[i].events));
      } else {
        eventfd_t ignored = 0;
        eventfd_read(wake_fd_, &ignored);
        RunTasks();
      }
    }
    PassTimers();
  }
}

int GuardLoop::MillisecondsToWait() const {
  if (timers_.empty()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, kLongestWaitMs));
}

void GuardLoop::RunTasks() {
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const std::function<void()>& task : tasks) task();
}

void GuardLoop::PassTimers() {
  const GuardTime now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const uint64_t id = timers_.begin()->second;
    SetTimer(connections_.at(id), GuardTime::max());
    Advance(id, {});
  }
}

void GuardLoop::Add(GuardedConnection connection) {
  const uint64_t id = connection.id;
  connections_.emplace(id, std::move(connection));
  count_.fetch_add(1);
  Advance(id, {});
}

void GuardLoop::Advance(uint64_t id, Relay::Ready ready) {
  const auto entry = connections_.find(id);
  if (entry == connections_.end()) return;  // it ended with an earlier event of the same turn
  entry->second.relay->Advance(Clock::now(), area_, ready);
  Settle(entry);
}

void GuardLoop::Settle(Connections::iterator entry) {
  GuardedConnection& connection = entry->second;
  Relay& relay = *connection.relay;
  if (!relay.is_over() && !WatchBoth(connection)) relay.Close();
  if (const std::optional<GuardEvent> event = relay.TakeEvent(); event.has_value()) {
    hooks_.event(connection, *event);
  }
  if (!connection.has_called && relay.has_called()) {
    connection.has_called = true;
    hooks_.called(connection);
  }
  hooks_.advanced(connection);
  if (!relay.is_over()) {
    SetTimer(connection, relay.wake_at());
    return;
  }
  Unwatch(connection);
  hooks_.ended(connection);
  connections_.erase(entry);
  count_.fetch_sub(1);
}

// A descriptor without events is taken out: epoll would tell again and again that its other end has closed.
bool GuardLoop::Watch(int fd, uint64_t tag, uint32_t events, uint32_t& watched) const {
  if (events == watched) return true;
  epoll_event event = {.events = events, .data = {.u64 = tag}};
  const int operation = watched == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  if (epoll_ctl(epoll_fd_, operation, fd, &event) != 0) return false;
  watched = events;
  return true;
}

bool GuardLoop::WatchBoth(GuardedConnection& connection) const {
  const Relay& relay = *connection.relay;
  if (!Watch(relay.client_fd(), ClientTag(connection.id), relay.client_events(), connection.client_events)) {
    return false;
  }
  return relay.server_fd() < 0 ||
         Watch(relay.server_fd(), ServerTag(connection.id), relay.server_events(), connection.server_events);
}

void GuardLoop::SetTimer(GuardedConnection& connection, GuardTime wake_at) {
  if (wake_at == connection.wake_at) return;
  if (connection.wake_at != GuardTime::max()) timers_.erase({connection.wake_at, connection.id});
  if (wake_at != GuardTime::max()) timers_.emplace(wake_at, connection.id);
  connection.wake_at = wake_at;
}

void GuardLoop::Unwatch(GuardedConnection& connection) {
  Relay& relay = *connection.relay;
  Watch(relay.client_fd(), 0, 0, connection.client_events);
  if (relay.server_fd() >= 0) Watch(relay.server_fd(), 0, 0, connection.server_events);
  SetTimer(connection, GuardTime::max());
}

std::unique_ptr<GuardedConnection> GuardLoop::Take(uint64_t id) {
  const auto entry = connections_.find(id);
  if (entry == connections_.end()) return nullptr;
  Unwatch(entry->second);
  auto taken = std::make_unique<GuardedConnection>(std::move(entry->second));
  connections_.erase(entry);
  count_.fetch_sub(1);
  return taken;
}

void GuardLoop::Close(uint64_t id, std::optional<GuardEvent> event) {
  const auto entry = connections_.find(id);
  if (entry == connections_.end()) return;
  if (event.has_value()) {
    entry->second.relay->Refuse(*event, Clock::now());
  } else {
    entry->second.relay->Close();
  }
  Settle(entry);
}

void GuardLoop::ForEach(const std::function<void(const GuardedConnection&)>& visit) const {
  for (const auto& [id, connection] : connections_) visit(connection);
}

}  // namespace foredraft
