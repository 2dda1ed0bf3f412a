#include "server/http/transport.h"

#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

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
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  boost::system::error_code error;
  const auto refuse = [&](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("server.tls: ", what, ": ", error.message()));
  };
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  // Without resumption: a session would outlive the authority that let its client in.
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);
  context->use_certificate_chain(net::buffer(pems.cert), error);
  if (error) return refuse("cert");
  context->use_private_key(net::buffer(pems.key), ssl::context::pem, error);
  if (error) return refuse("key");
  if (!pems.client_ca.empty()) {
    context->add_certificate_authority(net::buffer(pems.client_ca), error);
    if (error) return refuse("client_ca");
    context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, error);
    if (error) return refuse("client_ca");
  }
  return context;
}

std::unique_ptr<Transport> Transport::Create(Socket socket, const TlsContext& tls) {
  if (tls == nullptr) return std::make_unique<PlainTransport>(std::move(socket));
  return std::make_unique<TlsTransport>(std::move(socket), tls);
}

}  // namespace foredraft
