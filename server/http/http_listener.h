#pragma once

// Serves a service over HTTP/1.1 on an address of the configuration, in clear or under TLS, with a few
// threads for any number of connections (Boost.Asio; Boost.Beast reads the requests). Knows nothing of what
// it serves. Not thread-safe, except where a comment says so.

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "net/acceptor.h"
#include "net/tls.h"
#include "net/tls_context.h"
#include "server/http/connection.h"
#include "server/http/http_limits.h"
#include "server/http/http_service.h"

namespace foredraft {

class HttpListener {
 public:
  struct Options {
    const char* key = "";  // of the address, for errors
    std::string address;
    HttpService* service = nullptr;          // outlives the listener
    ConnectionCount* connections = nullptr;  // outlives the listener
    std::function<void()> refused;           // a connection that was one too many; on the acceptor's thread
    HttpLimits limits;
    BrowserRules browsers;
    ServerPems certificate;  // without one: in clear
    int io_threads = 1;
    // Threads that read long bodies; one more reads short ones. 0: Serve runs on the io threads.
    int workers = 0;
  };

  // The error names key and address.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Open(Options options);
  ~HttpListener();  // Shutdown

  int port() const { return acceptor_->port(); }
  // The address as configured; a port of 0 is replaced by the port that the kernel chose.
  std::string address() const;

  // Sets the certificate for connections from now on. Thread-safe.
  absl::Status SetCertificate(const ServerPems& certificate);

  // Whether connections have freed so much since the last true answer that the allocator should be trimmed.
  // Thread-safe.
  bool TakeFlood();

  // Accepts no more and closes what is open. Safe to call twice.
  void Shutdown();

 private:
  explicit HttpListener(const Options& options);
  void Take(int fd);

  std::string address_;
  std::unique_ptr<TurnPool> workers_;
  ConnectionHome home_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> keeps_running_{io_.get_executor()};
  std::mutex mutex_;
  TlsContextPtr tls_;  // guarded by mutex_; null: in clear
  std::vector<std::thread> threads_;
  std::unique_ptr<Acceptor> acceptor_;
  bool is_down_ = false;
};

}  // namespace foredraft
