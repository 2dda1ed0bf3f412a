#include "server/http/transport.h"

#include <boost/asio/post.hpp>
#include <string_view>
#include <utility>

namespace foredraft {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using State = ByteChannel::State;

error_code ErrorOf(State state) {
  if (state == State::kEnded) return net::error::eof;
  return state == State::kOver ? net::error::connection_reset : error_code();
}

}  // namespace

Transport::Transport(Socket socket, const TlsContextPtr& tls)
    : socket_(std::move(socket)),
      channel_(ByteChannel::Create(socket_.native_handle(), tls, Protocol::kHttp1)) {}

void Transport::Handshake(Done done) {
  Begin([this] { return Moved{.state = channel_->Handshake()}; }, std::move(done));
}

void Transport::ReadSome(net::mutable_buffer into, Done done) {
  const std::span<char> area(static_cast<char*>(into.data()), into.size());
  Begin([this, area] { return channel_->Read(area); }, std::move(done));
}

void Transport::WriteAll(net::const_buffer from, Done done) {
  std::string_view left(static_cast<const char*>(from.data()), from.size());
  const auto step = [this, left, size = from.size()]() mutable {
    while (!left.empty()) {
      const Moved put = channel_->Write(left);
      if (put.state != State::kOk) return put;
      left.remove_prefix(put.bytes);
    }
    return Moved{.bytes = size};
  };
  Begin(step, std::move(done));
}

void Transport::AwaitLoss(Done done) {
  socket_.async_wait(Socket::wait_error,
                     [done = std::move(done)](const error_code& error) { done(error, 0); });
}

void Transport::Close() {
  error_code ignored;
  socket_.close(ignored);
}

void Transport::Begin(std::function<Moved()> step, Done done) {
  const auto operation = std::make_shared<Operation>(Operation{std::move(step), std::move(done)});
  const Moved moved = socket_.is_open() ? operation->step() : Moved{.state = State::kOver};
  if (moved.state == State::kWantsRead || moved.state == State::kWantsWrite) return Settle(operation, moved);
  net::post(socket_.get_executor(), [this, operation, moved] { Settle(operation, moved); });
}

void Transport::GoOn(const std::shared_ptr<Operation>& operation) {
  // The descriptor of a closed socket may be another connection's by now.
  if (!socket_.is_open()) return operation->done(net::error::operation_aborted, 0);
  Settle(operation, operation->step());
}

void Transport::Settle(const std::shared_ptr<Operation>& operation, Moved moved) {
  if (moved.state != State::kWantsRead && moved.state != State::kWantsWrite) {
    return operation->done(ErrorOf(moved.state), moved.bytes);
  }
  socket_.async_wait(moved.state == State::kWantsRead ? Socket::wait_read : Socket::wait_write,
                     [this, operation](const error_code& error) {
                       if (error) return operation->done(error, 0);
                       GoOn(operation);
                     });
}

}  // namespace foredraft
