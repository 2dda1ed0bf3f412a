#pragma once

// Stands between the connections that listeners accept and gRPC. It terminates TLS, checks the frames that
// clients send (relay.h), and passes everything on to gRPC through pairs of unix sockets.
//
// gRPC 1.51 counts neither header blocks nor resets (CVE-2023-33953, CVE-2023-44487), keeps the memory that
// floods took, and does not tell callers with a token from others. Here a connection is a stranger's until a
// call on it was admitted (Admitted). Strangers share a thread; clients have threads of their own, so that no
// stranger's bytes are read before a client's.

#include <openssl/ssl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "net/acceptor.h"
#include "net/guard/guard_loop.h"
#include "net/guard/guard_report.h"
#include "net/guard/guard_table.h"
#include "net/guard/stranger_budgets.h"
#include "net/tls_context.h"

namespace foredraft {

// A listener behind a guard. Thread-safe.
class GuardedListener {
 public:
  struct Options {
    std::chrono::milliseconds handshake_timeout{};
    // The TLS context of new connections. Null, or a function that returns null: they are in clear.
    std::function<TlsContextPtr()> tls;
    // Gives the server a connected socket.
    std::function<void(int listener_fd, int fd)> intake;
  };
  explicit GuardedListener(Options options) : options_(std::move(options)) {}

  // Once this returns, the server gets no connection any more, and none is being given to it.
  void Stop();
  // False: the listener has stopped, and `fd` has been closed.
  bool Give(int listener_fd, int fd);
  const Options& options() const { return options_; }

 private:
  const Options options_;
  std::mutex mutex_;
  bool stopped_ = false;  // guarded by mutex_
};

class Guard {
 public:
  // `count` counts the connections, and asks the guard for room when all are taken. `counted`: see
  // GuardReport.
  Guard(ConnectionCount& count, std::function<void(GuardEvent)> counted);
  ~Guard();  // Stop

  // Takes an accepted, non-blocking connection that `count` has counted. Any thread.
  void Take(std::shared_ptr<GuardedListener> listener, int listener_fd, int fd);
  // Tells the guard that a call of this peer, as gRPC names it, was admitted. Any thread.
  void Admitted(std::string_view grpc_peer);
  // Whether strangers may have left much memory behind since the last call, so that it should be given back.
  // Any thread.
  bool TakeFlood() { return report_.TakeFlood(); }

  // Called after the servers have closed their connections: passes on what they sent last, for at most a
  // second, and closes all. Safe to call twice.
  void Stop();

 private:
  static constexpr size_t kClientLoops = 2;
  struct Arrival {
    uint64_t id;
    int listener_fd;
    int fd;
    std::string peer;
  };

  GuardLoop::Hooks StrangerHooks();
  GuardLoop::Hooks ClientHooks();
  GuardLoop& ClientLoop(uint64_t id) { return *client_loops_[id % kClientLoops]; }
  void Promote(uint64_t id);
  void CountStreams(const GuardedConnection& connection);
  void Begin(const std::shared_ptr<GuardedListener>& listener, const Arrival& arrival);
  void MoveToClients(uint64_t id);
  void Ended(const GuardedConnection& connection);
  void CloseWorst();

  ConnectionCount& count_;
  GuardReport report_;
  GuardTable table_;
  // Used by the strangers' thread only.
  StrangerBudgets budgets_;
  GuardTime next_sweep_{};
  std::unordered_map<uint64_t, size_t> unfinished_;  // streams by connection
  size_t unfinished_total_ = 0;

  std::atomic<bool> stopped_ = false;
  GuardLoop strangers_;
  std::array<std::unique_ptr<GuardLoop>, kClientLoops> client_loops_;
};

}  // namespace foredraft
