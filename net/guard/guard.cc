#include "net/guard/guard.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "net/guard/peer_name.h"
#include "net/socket_address.h"

namespace foredraft {
namespace {

constexpr std::chrono::seconds kSweepPeriod(10);
constexpr std::chrono::seconds kLastBytes(1);
// Limit of unfinished streams of all strangers together; each costs gRPC about 13 KB.
constexpr size_t kMaxUnfinishedStreams = 8192;
constexpr int kLeastLeaving = 16;

std::atomic<uint64_t> next_id = 1;

// Binds the guard's end of a pair to the client's name, which gRPC then takes for its peer's name.
bool BindName(int fd, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0;
}

// Makes a pair, gives one end to the listener's server and returns the other, the guard's; -1: it failed.
int OpenServer(GuardedListener& listener, int listener_fd, const GuardedPeer& peer) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    Log(LogLevel::kError, "a connection is closed: no pair of sockets: %s", std::strerror(errno));
    return -1;
  }
  if (!BindName(ends[0], AbstractName(peer))) {
    Log(LogLevel::kError, "a connection is closed: its socket cannot be named: %s", std::strerror(errno));
    close(ends[1]);
  } else if (listener.Give(listener_fd, ends[1])) {
    return ends[0];
  }
  close(ends[0]);
  return -1;
}

}  // namespace

void GuardedListener::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
}

bool GuardedListener::Give(int listener_fd, int fd) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) {
    close(fd);
    return false;
  }
  options_.intake(listener_fd, fd);
  return true;
}

Guard::Guard(ConnectionCount& count, std::function<void(GuardEvent)> counted)
    : count_(count),
      report_(std::move(counted)),
      table_(count, std::max(kLeastLeaving, count.max() / 16), [this](uint64_t id) { Promote(id); }),
      strangers_("guard-new", StrangerHooks()) {
  for (auto& loop : client_loops_) loop = std::make_unique<GuardLoop>("guard", ClientHooks());
  count_.OnFull([this] { return table_.EvictOne(); });
}

Guard::~Guard() { Stop(); }

GuardLoop::Hooks Guard::ClientHooks() {
  return {
      .event = [this](const GuardedConnection& connection,
                      GuardEvent event) { report_.Record(event, connection.peer, GuardLoop::Clock::now()); },
      .called = [this](const GuardedConnection& connection) { table_.NoteCall(connection.id); },
      .advanced = [](const GuardedConnection&) {},
      .ended = [this](const GuardedConnection& connection) { table_.Remove(connection.id); }};
}

GuardLoop::Hooks Guard::StrangerHooks() {
  GuardLoop::Hooks hooks = ClientHooks();
  hooks.advanced = [this](const GuardedConnection& connection) { CountStreams(connection); };
  hooks.ended = [this](const GuardedConnection& connection) { Ended(connection); };
  return hooks;
}

void Guard::Take(std::shared_ptr<GuardedListener> listener, int listener_fd, int fd) {
  Arrival arrival = {
      .id = next_id.fetch_add(1), .listener_fd = listener_fd, .fd = fd, .peer = PeerAddressOf(fd)};
  if (arrival.peer.empty() || stopped_.load()) {  // the client is gone already
    count_.Remove(fd);
    close(fd);
    return;
  }
  table_.Add(arrival.id, fd, LimitedAddress(arrival.peer));
  strangers_.Post(
      [this, listener = std::move(listener), arrival = std::move(arrival)] { Begin(listener, arrival); });
}

void Guard::Begin(const std::shared_ptr<GuardedListener>& listener, const Arrival& arrival) {
  const GuardTime now = GuardLoop::Clock::now();
  if (now >= next_sweep_) {
    budgets_.Sweep(now);
    next_sweep_ = now + kSweepPeriod;
  }
  GuardedConnection connection = {
      .id = arrival.id, .peer = arrival.peer, .address = LimitedAddress(arrival.peer)};
  Relay::Options options = {.fd = arrival.fd,
                            .tls = listener->options().tls ? listener->options().tls() : nullptr,
                            .handshake_timeout = listener->options().handshake_timeout,
                            .open_server = [listener, listener_fd = arrival.listener_fd,
                                            peer = GuardedPeer{.id = arrival.id, .address = arrival.peer}] {
                              return OpenServer(*listener, listener_fd, peer);
                            }};
  connection.relay =
      std::make_unique<Relay>(std::move(options), budgets_.Enter(connection.address, now), now);
  strangers_.Add(std::move(connection));
}

void Guard::Ended(const GuardedConnection& connection) {
  if (!table_.Remove(connection.id)) {
    report_.Record(GuardEvent::kEvicted, connection.peer, GuardLoop::Clock::now());
  }
  report_.StrangerLeft();
  budgets_.Leave(connection.address);
}

void Guard::Admitted(std::string_view grpc_peer) {
  if (const std::optional<GuardedPeer> peer = ReadGuardedPeer(grpc_peer); peer.has_value()) {
    table_.BecomeClient(peer->id);
  }
}

void Guard::Promote(uint64_t id) {
  strangers_.Post([this, id] { MoveToClients(id); });
}

void Guard::MoveToClients(uint64_t id) {
  const std::shared_ptr<GuardedConnection> connection = strangers_.Take(id);
  if (connection == nullptr) return;
  connection->relay->BecomeClient(GuardLoop::Clock::now());
  CountStreams(*connection);
  budgets_.Leave(connection->address);
  GuardLoop& loop = ClientLoop(id);
  loop.Post([&loop, connection] { loop.Add(std::move(*connection)); });
}

void Guard::CountStreams(const GuardedConnection& connection) {
  const size_t now = connection.relay->is_over() ? 0 : connection.relay->unfinished_streams();
  const auto counted = unfinished_.find(connection.id);
  const size_t before = counted == unfinished_.end() ? 0 : counted->second;
  if (now == before) return;
  unfinished_total_ += now - before;
  if (now == 0) {
    unfinished_.erase(counted);
  } else {
    unfinished_[connection.id] = now;
  }
  if (now > before && unfinished_total_ > kMaxUnfinishedStreams) CloseWorst();
}

// Closes it later, because the connection that is being advanced may be the worst one.
void Guard::CloseWorst() {
  const auto worst = std::max_element(unfinished_.begin(), unfinished_.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  strangers_.Post([this, id = worst->first] { strangers_.Close(id, GuardEvent::kStreams); });
}

void Guard::Stop() {
  if (stopped_.exchange(true)) return;
  count_.OnFull(nullptr);
  strangers_.Post([this] {
    std::vector<uint64_t> opening;
    strangers_.ForEach([&](const GuardedConnection& connection) {
      if (connection.relay->is_opening()) opening.push_back(connection.id);
    });
    for (const uint64_t id : opening) strangers_.Close(id, std::nullopt);
  });
  const GuardTime deadline = GuardLoop::Clock::now() + kLastBytes;
  const auto open = [this] {
    int count = strangers_.count();
    for (const auto& loop : client_loops_) count += loop->count();
    return count;
  };
  while (open() > 0 && GuardLoop::Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  strangers_.Stop();
  for (const auto& loop : client_loops_) loop->Stop();
}

}  // namespace foredraft
