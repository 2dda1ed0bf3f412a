#include "server/http/transport.h"

#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "base/status_macros.h"
#include "net/tls_context.h"

namespace foredraft {
namespace {

namespace net = boost::asio;
namespace ssl = boost::asio::ssl;

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(Socket socket) : socket_(std::move(socket)) {}

  void Handshake(Done done) override {
    net::post(socket_.get_executor(), [done = std::move(done)] { done({}, 0); });
  }
  void ReadSome(net::mutable_buffer into, Done done) override {
    socket_.async_read_some(into, std::move(done));
  }
  void WriteAll(net::const_buffer from, Done done) override {
    net::async_write(socket_, from, std::move(done));
  }
  Socket& socket() override { return socket_; }

 private:
  Socket socket_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(Socket socket, TlsContext context)
      : context_(std::move(context)), stream_(std::move(socket), *context_) {}

  void Handshake(Done done) override {
    stream_.async_handshake(
        ssl::stream_base::server,
        [done = std::move(done)](const boost::system::error_code& error) { done(error, 0); });
  }
  void ReadSome(net::mutable_buffer into, Done done) override {
    stream_.async_read_some(into, std::move(done));
  }
  void WriteAll(net::const_buffer from, Done done) override {
    net::async_write(stream_, from, std::move(done));
  }
  Socket& socket() override { return stream_.next_layer(); }

 private:
  const TlsContext context_;  // a reload replaces it for new connections
  ssl::stream<Socket> stream_;
};

}  // namespace

absl::StatusOr<Transport::TlsContext> Transport::MakeTlsContext(const ServerPems& pems) {
  if (pems.cert.empty()) return TlsContext();
  ASSIGN_OR_RETURN(const TlsContextPtr made, ::foredraft::MakeTlsContext(pems, {}, Protocol::kHttp1));
  SSL_CTX_up_ref(made.get());
  return std::make_shared<ssl::context>(made.get());
}

std::unique_ptr<Transport> Transport::Create(Socket socket, const TlsContext& tls) {
  if (tls == nullptr) return std::make_unique<PlainTransport>(std::move(socket));
  return std::make_unique<TlsTransport>(std::move(socket), tls);
}

}  // namespace foredraft
