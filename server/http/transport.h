#pragma once

// The bytes of one connection, in clear or under TLS. TLS reads and writes the socket itself: with
// boost::asio::ssl a connection held 68 KB of buffers in addition to OpenSSL's own, and half a handshake by
// anybody took them. All calls of one transport come from one strand, on which the callbacks run too.

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <functional>
#include <memory>

#include "net/byte_channel.h"
#include "net/tls_context.h"

namespace foredraft {

class Transport {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, Strand>;
  using Done = std::function<void(const boost::system::error_code& error, size_t bytes)>;

  // `tls` null: in clear.
  Transport(Socket socket, const TlsContextPtr& tls);

  // `done` is called once, never before the call has returned, and keeps the transport alive. One Handshake
  // or ReadSome may run at a time, and one WriteAll together with it.
  void Handshake(Done done);
  // The error eof: the peer sends nothing more, and may still read.
  void ReadSome(boost::asio::mutable_buffer into, Done done);
  void WriteAll(boost::asio::const_buffer from, Done done);
  // Calls `done` once the connection is reset, or closed.
  void AwaitLoss(Done done);
  // Tells the peer that nothing follows.
  void End() { channel_->End(); }
  void Close();
  int fd() { return socket_.native_handle(); }

 private:
  using Moved = ByteChannel::Moved;
  struct Operation {
    std::function<Moved()> step;  // does what can be done at once; again once the socket is ready
    Done done;
  };

  void Begin(std::function<Moved()> step, Done done);
  void GoOn(const std::shared_ptr<Operation>& operation);
  // Calls done, or waits for the socket and then goes on.
  void Settle(const std::shared_ptr<Operation>& operation, Moved moved);

  Socket socket_;
  const std::unique_ptr<ByteChannel> channel_;
};

}  // namespace foredraft
