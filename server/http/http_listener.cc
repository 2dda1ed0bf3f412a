#include "server/http/http_listener.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/strand.hpp>
#include <boost/system/system_error.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "net/socket_address.h"

namespace foredraft {
namespace {

constexpr int kNice = 5;
constexpr std::chrono::seconds kClosing(1);
constexpr int64_t kFloodBytes = int64_t{16} << 20;
// Bytes of memory that a byte of a body takes while it is read: a value of two bytes, "1,", takes 16.
constexpr int64_t kBytesPerBodyByte = 8;

}  // namespace

HttpListener::HttpListener(const Options& options)
    : address_(options.address),
      workers_(options.workers == 0 ? nullptr : std::make_unique<TurnPool>()),
      home_{.service = *options.service,
            .limits = options.limits,
            .browsers = BrowserPolicy(options.browsers),
            .workers = workers_.get(),
            .connections = *options.connections} {
  if (workers_ == nullptr) return;
  workers_->Start({.thread_name = "http-work",
                   .threads = options.workers,
                   .short_threads = 1,
                   .nice = kNice,
                   .waiting = " requests wait to be read, allowed at most "});
}

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Open(Options options) {
  ASSIGN_OR_RETURN(ListeningSockets sockets,
                   ListeningSockets::Open(options.key, options.address, /*private_mode=*/false));
  std::unique_ptr<HttpListener> listener(new HttpListener(options));
  RETURN_IF_ERROR(listener->SetCertificate(options.certificate));
  try {
    // Asio opens its epoll instance with the first socket. If the first connection did that when connections
    // have taken all descriptors, it would end the process.
    const Transport::Socket first(boost::asio::make_strand(listener->io_));
  } catch (const boost::system::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(options.key, ": ", options.address, ": ", error.what()));
  }
  for (int i = 0; i < options.io_threads; ++i) {
    listener->threads_.emplace_back([io = &listener->io_] {
      const MustHaveMemory scope;  // for Asio itself; a connection's handlers have their own
      sigset_t broken_pipe;
      sigemptyset(&broken_pipe);
      sigaddset(&broken_pipe, SIGPIPE);
      pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);  // a write under TLS raises it
      io->run();
    });
    pthread_setname_np(listener->threads_.back().native_handle(), "http-io");
  }
  listener->acceptor_ = std::make_unique<Acceptor>(
      std::move(sockets), *options.connections,
      [listener = listener.get()](int /*listener_fd*/, int fd) { listener->Take(fd); },
      std::move(options.refused));
  return listener;
}

HttpListener::~HttpListener() { Shutdown(); }

std::string HttpListener::address() const {
  const bool chosen = address_.ends_with(":0") && port() != 0;
  return chosen ? absl::StrCat(address_.substr(0, address_.size() - 1), port()) : address_;
}

absl::Status HttpListener::SetCertificate(const ServerPems& certificate) {
  TlsContextPtr context;
  if (!certificate.cert.empty()) {
    ASSIGN_OR_RETURN(context, MakeTlsContext(certificate, {}, Protocol::kHttp1));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  tls_ = std::move(context);
  return absl::OkStatus();
}

bool HttpListener::TakeFlood() {
  if (home_.freed_bytes.load() + kBytesPerBodyByte * home_.budget->given() < kFloodBytes) return false;
  home_.freed_bytes.store(0);
  home_.budget->ForgetGiven();
  return true;
}

void HttpListener::Take(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  Transport::Socket socket(boost::asio::make_strand(io_));
  boost::system::error_code error;
  const bool has_peer = getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (has_peer) {
    socket.assign(boost::asio::generic::stream_protocol(address.ss_family, 0), fd, error);
  }
  if (!has_peer || error) {  // the client is gone already
    close(fd);
    return;
  }
  TlsContextPtr tls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tls = tls_;
  }
  try {
    std::make_shared<Connection>(home_, std::move(socket), tls, AddressText(address))->Start();
  } catch (const boost::system::system_error&) {
    // OpenSSL had no memory for the connection, and its socket is closed.
  }
}

void HttpListener::Shutdown() {
  if (std::exchange(is_down_, true)) return;
  if (acceptor_ != nullptr) acceptor_->Stop();
  if (workers_ != nullptr) workers_->Stop();
  home_.open.CloseAll();
  home_.open.WaitForNone(std::chrono::steady_clock::now() + kClosing);
  keeps_running_.reset();
  io_.stop();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace foredraft
