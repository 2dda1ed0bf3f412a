#include "net/byte_channel.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace foredraft {
namespace {

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

class ClearChannel final : public ByteChannel {
 public:
  explicit ClearChannel(int fd) : fd_(fd) {}

  State Handshake() override { return State::kOk; }
  Moved Read(std::span<char> into) override {
    const ssize_t count = recv(fd_, into.data(), into.size(), 0);
    if (count > 0) return {.bytes = static_cast<size_t>(count)};
    if (count == 0) return {.state = State::kEnded};
    return {.state = WouldBlock(errno) ? State::kWantsRead : State::kOver};
  }
  Moved Write(std::string_view from) override {
    const ssize_t count = send(fd_, from.data(), from.size(), MSG_NOSIGNAL);
    if (count >= 0) return {.bytes = static_cast<size_t>(count)};
    return {.state = WouldBlock(errno) ? State::kWantsWrite : State::kOver};
  }
  bool HasBuffered() const override { return false; }
  void End() override { shutdown(fd_, SHUT_WR); }

 private:
  const int fd_;
};

class TlsChannel final : public ByteChannel {
 public:
  TlsChannel(int fd, TlsContextPtr context, Protocol protocol)
      : fd_(fd), context_(std::move(context)), protocol_(protocol), tls_(SSL_new(context_.get()), SSL_free) {
    if (tls_ != nullptr && SSL_set_fd(tls_.get(), fd) == 1) return;
    tls_.reset();
  }

  State Handshake() override {
    if (tls_ == nullptr) return State::kOver;  // no memory
    ERR_clear_error();
    const int result = SSL_accept(tls_.get());
    if (result != 1) return StateOf(result);
    if (protocol_ == Protocol::kHttp1) return State::kOk;
    const unsigned char* protocol = nullptr;
    unsigned int size = 0;
    SSL_get0_alpn_selected(tls_.get(), &protocol, &size);
    return size > 0 ? State::kOk : State::kOver;
  }
  Moved Read(std::span<char> into) override {
    ERR_clear_error();
    const int result = SSL_read(tls_.get(), into.data(), static_cast<int>(into.size()));
    if (result > 0) return {.bytes = static_cast<size_t>(result)};
    // A connection that is closed without TLS's close_notify may have lost bytes on the way.
    const bool ended = SSL_get_error(tls_.get(), result) == SSL_ERROR_ZERO_RETURN;
    return {.state = ended ? State::kEnded : StateOf(result)};
  }
  Moved Write(std::string_view from) override {
    ERR_clear_error();
    const int size = static_cast<int>(std::min<size_t>(from.size(), INT_MAX));
    const int result = SSL_write(tls_.get(), from.data(), size);
    if (result > 0) return {.bytes = static_cast<size_t>(result)};
    return {.state = StateOf(result)};
  }
  bool HasBuffered() const override { return SSL_pending(tls_.get()) > 0; }
  void End() override {
    ERR_clear_error();
    if (tls_ != nullptr && SSL_is_init_finished(tls_.get())) SSL_shutdown(tls_.get());
    shutdown(fd_, SHUT_WR);
  }

 private:
  State StateOf(int result) const {
    switch (SSL_get_error(tls_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return State::kWantsRead;
      case SSL_ERROR_WANT_WRITE:
        return State::kWantsWrite;
      default:
        return State::kOver;
    }
  }

  const int fd_;
  const TlsContextPtr context_;  // a reload replaces it for new connections
  const Protocol protocol_;
  std::unique_ptr<SSL, decltype(&SSL_free)> tls_;
};

}  // namespace

std::unique_ptr<ByteChannel> ByteChannel::Create(int fd, const TlsContextPtr& tls, Protocol protocol) {
  if (tls == nullptr) return std::make_unique<ClearChannel>(fd);
  return std::make_unique<TlsChannel>(fd, tls, protocol);
}

}  // namespace foredraft
