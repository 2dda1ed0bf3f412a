#include "server/port_probe.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;

struct Socket {
  explicit Socket(int fd) : fd(fd) {}
  Socket(Socket&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd >= 0) close(fd);
  }
  int fd;
};

absl::Status Failed(const char* what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

absl::Status WaitFor(int fd, int16_t events, steady_clock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) return absl::DeadlineExceededError("no answer");
    pollfd polled = {.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&polled, 1, static_cast<int>(left));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Failed("poll", errno);
  }
}

absl::Status Connect(int fd, const sockaddr* address, socklen_t size, steady_clock::time_point deadline) {
  if (connect(fd, address, size) == 0) return absl::OkStatus();
  if (errno != EINPROGRESS && errno != EAGAIN) return Failed("connect", errno);
  RETURN_IF_ERROR(WaitFor(fd, POLLOUT, deadline));
  int error = 0;
  socklen_t error_size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size);
  return error == 0 ? absl::OkStatus() : Failed("connect", error);
}

// Binds first: the listener must know the port before it accepts.
int BindAnyPort(int fd, int family) {
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family);
  const socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  socklen_t bound_size = sizeof(any);
  if (bind(fd, reinterpret_cast<sockaddr*>(&any), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&any), &bound_size) != 0) {
    return 0;
  }
  return ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&any)->sin6_port
                                  : reinterpret_cast<sockaddr_in*>(&any)->sin_port);
}

absl::StatusOr<Socket> DialTcp(const PortProbe& probe, steady_clock::time_point deadline) {
  const size_t colon = probe.address.rfind(':');
  std::string host = probe.address.substr(0, colon);
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "[::]") host = "[::1]";
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), probe.address.c_str() + colon + 1, &hints, &found) != 0) {
    return absl::UnavailableError(absl::StrCat(host, ": no such host"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  Socket dialled(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (dialled.fd < 0) return Failed("socket", errno);
  const int port = BindAnyPort(dialled.fd, found->ai_family);
  if (probe.dials_from && port != 0) probe.dials_from(port);
  RETURN_IF_ERROR(Connect(dialled.fd, found->ai_addr, found->ai_addrlen, deadline));
  return dialled;
}

absl::StatusOr<Socket> DialUnix(const std::string& path, steady_clock::time_point deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  Socket dialled(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (dialled.fd < 0) return Failed("socket", errno);
  RETURN_IF_ERROR(Connect(dialled.fd, reinterpret_cast<sockaddr*>(&address), sizeof(address), deadline));
  return dialled;
}

// A server of HTTP/2 answers the client's preface with its settings.
absl::Status AskHttp2(int fd, steady_clock::time_point deadline) {
  constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";  // and empty settings
  constexpr char kSettings = 4;  // the type of a frame, its fourth byte
  RETURN_IF_ERROR(WaitFor(fd, POLLOUT, deadline));
  if (send(fd, kPreface, sizeof(kPreface) - 1, MSG_NOSIGNAL) < 0) return Failed("send", errno);
  char header[9];
  size_t received = 0;
  while (received < sizeof(header)) {
    RETURN_IF_ERROR(WaitFor(fd, POLLIN, deadline));
    const ssize_t count = recv(fd, header + received, sizeof(header) - received, 0);
    if (count == 0) return absl::UnavailableError("the connection was closed without an answer");
    if (count < 0 && errno != EAGAIN && errno != EINTR) return Failed("recv", errno);
    if (count > 0) received += static_cast<size_t>(count);
  }
  return header[3] == kSettings ? absl::OkStatus() : absl::UnavailableError("the answer is not HTTP/2");
}

// Any byte of the server's handshake counts: with server.tls.client_ca it refuses this client afterwards.
absl::Status AskTls(int fd, steady_clock::time_point deadline) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls(SSL_new(context.get()), SSL_free);
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_set_alpn_protos(tls.get(), kHttp2, sizeof(kHttp2));
  SSL_set_fd(tls.get(), fd);
  while (true) {
    const int result = SSL_connect(tls.get());
    if (BIO_number_read(SSL_get_rbio(tls.get())) > 0) return absl::OkStatus();
    const int error = SSL_get_error(tls.get(), result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      return absl::UnavailableError("the connection was closed without an answer");
    }
    RETURN_IF_ERROR(WaitFor(fd, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline));
  }
}

}  // namespace

absl::Status Probe(const PortProbe& probe) {
  const steady_clock::time_point deadline = steady_clock::now() + probe.timeout;
  const bool is_unix = absl::StartsWith(probe.address, "unix:");
  ASSIGN_OR_RETURN(
      const Socket dialled,
      is_unix ? DialUnix(probe.address.substr(absl::StartsWith(probe.address, "unix:///") ? 7 : 5), deadline)
              : DialTcp(probe, deadline));
  return probe.tls ? AskTls(dialled.fd, deadline) : AskHttp2(dialled.fd, deadline);
}

absl::Status ProbeServer(int fd, std::chrono::milliseconds timeout) {
  const Socket dialled(fd);
  return AskHttp2(dialled.fd, steady_clock::now() + timeout);
}

}  // namespace foredraft
