#pragma once

// The bytes of one connection, in clear or under TLS. All calls of one transport come from one strand, on
// which the callbacks run too.

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "net/tls.h"

namespace boost::asio::ssl {
class context;
}

namespace foredraft {

class Transport {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, Strand>;
  using Done = std::function<void(const boost::system::error_code& error, size_t bytes)>;
  using TlsContext = std::shared_ptr<boost::asio::ssl::context>;

  virtual ~Transport() = default;

  // Null without TLS.
  static absl::StatusOr<TlsContext> MakeTlsContext(const ServerPems& pems);
  // `tls` null: in clear.
  static std::unique_ptr<Transport> Create(Socket socket, const TlsContext& tls);

  virtual void Handshake(Done done) = 0;
  virtual void ReadSome(boost::asio::mutable_buffer into, Done done) = 0;
  virtual void WriteAll(boost::asio::const_buffer from, Done done) = 0;
  virtual Socket& socket() = 0;
};

}  // namespace foredraft
