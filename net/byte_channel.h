#pragma once

// The bytes of an accepted connection, in clear or under TLS, without waiting. Does not own the descriptor.
// Not thread-safe.

#include <memory>
#include <span>
#include <string_view>

#include "net/tls_context.h"

namespace foredraft {

class ByteChannel {
 public:
  enum class State {
    kOk,
    kWantsRead,   // goes on once the descriptor can be read
    kWantsWrite,  // goes on once the descriptor can be written
    kEnded,       // Read alone: the peer sends nothing more, and may still read
    kOver,        // broken
  };
  struct Moved {
    State state = State::kOk;
    size_t bytes = 0;  // with kOk
  };

  // `tls` null: in clear. With kHttp2 the client must choose HTTP/2 in the handshake. Under TLS a write to a
  // peer that is gone raises SIGPIPE, which the calling thread must block.
  static std::unique_ptr<ByteChannel> Create(int fd, const TlsContextPtr& tls, Protocol protocol);
  virtual ~ByteChannel() = default;

  // kOk: done.
  virtual State Handshake() = 0;
  virtual Moved Read(std::span<char> into) = 0;
  virtual Moved Write(std::string_view from) = 0;
  // Whether Read has bytes although the descriptor has none.
  virtual bool HasBuffered() const = 0;
  // Tells the peer that nothing follows, if that can be said at once.
  virtual void End() = 0;
};

}  // namespace foredraft
