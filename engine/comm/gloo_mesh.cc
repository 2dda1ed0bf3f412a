#include "engine/comm/gloo_mesh.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <ifaddrs.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace foredraft {
namespace {

using gloo::transport::UnboundBuffer;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSmallBytes = 32 << 10;

// Gloo asks for a send buffer of twice this size; the kernel grants at most net.core.wmem_max, by default
// 208 KiB, and doubles that.
constexpr size_t kFirstMessageBytes = 256 << 10;
constexpr int kFirstMessageSlot = 2;  // after the slots of a channel's two turns

// Precedes every small block, so that the receiver can check that both ranks are in the same exchange.
struct Header {
  uint64_t exchange;
  uint32_t operation;
  uint32_t bytes;
};

// Adapts a RendezvousStore to Gloo's interface. All waits end at one deadline; Gloo's timeout argument is
// ignored. Errors become exceptions, which Connect catches.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(RendezvousStore& store, Clock::time_point deadline) : store_(store), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    Check(store_.Set(Key(key), std::string(data.begin(), data.end())));
  }

  std::vector<char> get(const std::string& key) override {
    const absl::StatusOr<std::string> value = store_.Get(Key(key), deadline_);
    Check(value.status());
    return {value->begin(), value->end()};
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  static std::string Key(const std::string& key) { return "gloo/" + key; }
  static void Check(const absl::Status& status) {
    if (!status.ok()) throw gloo::IoException(std::string(status.message()));
  }

  RendezvousStore& store_;
  const Clock::time_point deadline_;
};

// Older versions of Gloo (Debian 12) take the store by reference, newer ones as a shared_ptr, which contexts
// keep in order to connect a rank at first use. Here the device connects all ranks at once, so contexts never
// use the store after Connect.
template <class Context>
void ConnectFullMesh(Context& context, const std::shared_ptr<GlooStore>& store,
                     std::shared_ptr<gloo::transport::Device>& device) {
  if constexpr (requires { context.connectFullMesh(store, device); }) {
    context.connectFullMesh(store, device);
  } else {
    context.connectFullMesh(*store, device);
  }
}

// The first message to every rank, which has Gloo give the sockets a long send buffer. Gloo sets a socket's
// send buffer to hold the longest message of registered memory so far, and the kernel no longer lengthens a
// buffer that was set. After small blocks alone a large block would find room for less than two segments of a
// loopback connection, and would wait for acknowledgements that the peer's kernel may delay by 40 ms.
class FirstMessages {
 public:
  explicit FirstMessages(gloo::Context& context)
      : out_(kFirstMessageBytes), in_(kFirstMessageBytes * static_cast<size_t>(context.size)) {
    for (int peer = 0; peer < context.size; ++peer) {
      if (peer == context.rank) continue;
      auto& pair = context.getPair(peer);
      receive_.push_back(
          pair->createRecvBuffer(kFirstMessageSlot, &in_[peer * kFirstMessageBytes], kFirstMessageBytes));
      send_.push_back(pair->createSendBuffer(kFirstMessageSlot, out_.data(), kFirstMessageBytes));
    }
  }

  // Called once all ranks have constructed their FirstMessages. Throws if a rank is lost.
  void Exchange() {
    for (const auto& buffer : send_) buffer->send(0, kFirstMessageBytes);
    for (const auto& buffer : receive_) buffer->waitRecv();
    for (const auto& buffer : send_) buffer->waitSend();
  }

 private:
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  std::vector<std::unique_ptr<gloo::transport::Buffer>> receive_;
  std::vector<std::unique_ptr<gloo::transport::Buffer>> send_;
};

// Gloo checks this too, but leaks the list when it throws.
bool HasAddress(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return false;
  bool found = false;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const int family = entry->ifa_addr != nullptr ? entry->ifa_addr->sa_family : AF_UNSPEC;
    found |= interface == entry->ifa_name && (family == AF_INET || family == AF_INET6);
  }
  freeifaddrs(list);
  return found;
}

// The text of a Gloo exception without its source file and line.
std::string ReasonOf(const std::exception& error) {
  const std::string text = error.what();
  const size_t prefix_end = text.find("] ");
  return prefix_end == std::string::npos ? text : text.substr(prefix_end + 2);
}

}  // namespace

// The memory of small blocks to and from one peer. There are two buffers per direction, used in turn: a rank
// sends for exchange n + 2 only after it has the peer's block of n + 1, which the peer sends after it has
// finished exchange n.
struct GlooMesh::Channel {
  struct Small {
    Header header;
    std::byte data[kSmallBytes];
  };
  std::array<Small, 2> in;
  std::array<Small, 2> out;
  std::array<std::unique_ptr<gloo::transport::Buffer>, 2> receive;
  std::array<std::unique_ptr<gloo::transport::Buffer>, 2> send;
  // Buffers of large blocks; they exist only during an exchange.
  std::unique_ptr<UnboundBuffer> large_in;
  std::unique_ptr<UnboundBuffer> large_out;
};

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::Connect(const CommunicatorOptions& options,
                                                            RendezvousStore& store) {
  if (!HasAddress(options.interface)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.interface: \"%s\", this host has no such interface with an address", options.interface));
  }
  try {
    gloo::transport::tcp::attr attributes;
    attributes.iface = options.interface;
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
    // The timeout for a small block. Gloo allows five times as long for each connection.
    context->setTimeout(options.step_timeout);
    const auto gloo_store = std::make_shared<GlooStore>(store, Clock::now() + options.connect_timeout);
    ConnectFullMesh(*context, gloo_store, device);
    FirstMessages first_messages(*context);
    std::unique_ptr<GlooMesh> mesh(new GlooMesh(options, std::move(context)));
    // A rank may send only after all ranks have registered their memory.
    for (int rank = 0; rank < options.size; ++rank) {
      const std::string key = "ready/" + std::to_string(rank);
      rank == options.rank ? gloo_store->set(key, {}) : gloo_store->wait({key});
    }
    first_messages.Exchange();
    return mesh;
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrFormat("rank %d: the %d ranks did not connect within %d s: %s",
                                                  options.rank, options.size, options.connect_timeout.count(),
                                                  ReasonOf(error)));
  }
}

GlooMesh::GlooMesh(const CommunicatorOptions& options, std::shared_ptr<gloo::Context> context)
    : rank_(options.rank),
      size_(options.size),
      step_timeout_(options.step_timeout),
      context_(std::move(context)) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    channels_[peer] = std::make_unique<Channel>();
    Channel& channel = *channels_[peer];
    for (int turn = 0; turn < 2; ++turn) {
      auto& pair = context_->getPair(peer);
      channel.receive[turn] = pair->createRecvBuffer(turn, &channel.in[turn], sizeof(Channel::Small));
      channel.send[turn] = pair->createSendBuffer(turn, &channel.out[turn], sizeof(Channel::Small));
    }
  }
}

// Closes before the channels are destroyed: Gloo's thread may be writing to their memory.
GlooMesh::~GlooMesh() { Close(); }

void GlooMesh::BeginLarge(const Exchange& exchange) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) throw gloo::IoException("the group is over");
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    Channel& channel = *channels_[peer];
    const ExchangeBlock& out = exchange.outgoing[peer];
    if (out.bytes > kSmallBytes) {
      channel.large_out = context_->createUnboundBuffer(out.data, out.bytes);
      in_flight_.push_back(channel.large_out.get());
    }
    const ExchangeBlock& in = exchange.incoming[peer];
    if (in.bytes > kSmallBytes) {
      channel.large_in = context_->createUnboundBuffer(in.data, in.bytes);
      in_flight_.push_back(channel.large_in.get());
    }
  }
}

void GlooMesh::EndLarge() {
  std::lock_guard<std::mutex> lock(mutex_);
  in_flight_.clear();
  for (const auto& channel : channels_) {
    if (channel == nullptr) continue;
    channel->large_in.reset();
    channel->large_out.reset();
  }
}

absl::Status GlooMesh::Run(const Exchange& exchange) {
  try {
    Swap(exchange);
    return absl::OkStatus();
  } catch (const std::exception& error) {
    if (Clock::now() >= deadline_) return absl::DeadlineExceededError("");
    return absl::UnavailableError(ReasonOf(error));
  }
}

void GlooMesh::Swap(const Exchange& exchange) {
  ++exchange_count_;
  deadline_ = Clock::now() + step_timeout_;
  // The large buffers are destroyed with the exchange, also when it throws, so that Close does not reach them
  // later.
  struct Large {
    GlooMesh& mesh;
    ~Large() { mesh.EndLarge(); }
  } large{*this};
  BeginLarge(exchange);
  const auto for_each_peer = [&](const auto& action) {
    for (int step = 1; step < size_; ++step) {
      waiting_for_ = (rank_ + step) % size_;
      action(waiting_for_);
    }
  };
  for_each_peer([&](int peer) {
    if (Channel& channel = *channels_[peer]; channel.large_in) channel.large_in->recv(peer, exchange_count_);
  });
  for_each_peer([&](int peer) { Send(peer, exchange.operation, exchange.outgoing[peer]); });
  for_each_peer([&](int peer) { Receive(peer, exchange.operation, exchange.incoming[peer]); });
  for_each_peer([&](int peer) {
    Channel& channel = *channels_[peer];
    if (channel.large_out == nullptr) {
      channel.send[exchange_count_ % 2]->waitSend();
    } else if (!channel.large_out->waitSend(Remaining())) {
      throw gloo::IoException("the group is over");
    }
  });
}

void GlooMesh::Send(int peer, uint32_t operation, const ExchangeBlock& block) {
  Channel& channel = *channels_[peer];
  if (channel.large_out != nullptr) {
    channel.large_out->send(peer, exchange_count_);
    return;
  }
  const int turn = static_cast<int>(exchange_count_ % 2);
  Channel::Small& small = channel.out[turn];
  small.header = {exchange_count_, operation, static_cast<uint32_t>(block.bytes)};
  if (block.bytes > 0) std::memcpy(small.data, block.data, static_cast<size_t>(block.bytes));
  channel.send[turn]->send(0, sizeof(Header) + static_cast<size_t>(block.bytes));
}

void GlooMesh::Receive(int peer, uint32_t operation, const ExchangeBlock& block) {
  Channel& channel = *channels_[peer];
  if (channel.large_in != nullptr) {
    if (!channel.large_in->waitRecv(Remaining())) throw gloo::IoException("the group is over");
    return;
  }
  const int turn = static_cast<int>(exchange_count_ % 2);
  channel.receive[turn]->waitRecv();
  const Channel::Small& small = channel.in[turn];
  CHECK(small.header.exchange == exchange_count_ && small.header.operation == operation &&
        small.header.bytes == block.bytes)
      << "lockstep: rank " << peer << " is in exchange " << small.header.exchange << ", operation "
      << small.header.operation << " of " << small.header.bytes << " bytes, rank " << rank_ << " in exchange "
      << exchange_count_ << ", operation " << operation << " of " << block.bytes << " bytes";
  if (block.bytes > 0) std::memcpy(block.data, small.data, static_cast<size_t>(block.bytes));
}

std::chrono::milliseconds GlooMesh::Remaining() const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));  // a negative timeout would mean Gloo's default
}

// Gloo has no call that ends a wait for a small block. But when any wait times out, Gloo fails everything
// that is pending on all connections and closes them, so this waits 1 ms for a message that no rank sends.
void GlooMesh::Close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    closed_ = true;
    for (UnboundBuffer* buffer : in_flight_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }
  try {
    std::byte nothing;
    context_->createUnboundBuffer(&nothing, 1)->waitRecv(std::chrono::milliseconds(1));
  } catch (const std::exception&) {
    // The expected timeout.
  }
}

}  // namespace foredraft
