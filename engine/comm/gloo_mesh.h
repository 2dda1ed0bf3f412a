#pragma once

// The ExchangeMesh over Gloo's TCP connections, on parallel.interface. The network must be private: nothing
// is encrypted. Waiting parks the thread and does not spin.
//
// A small block is one message, written directly into memory that the receiver has registered. A large block
// is written to its destination after a handshake.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/comm/communicator_options.h"
#include "engine/comm/exchange_mesh.h"
#include "engine/comm/rendezvous.h"

namespace gloo {
class Context;
namespace transport {
class UnboundBuffer;
}
}  // namespace gloo

namespace foredraft {

class GlooMesh : public ExchangeMesh {
 public:
  // INVALID_ARGUMENT if this host does not have the interface; UNAVAILABLE if the ranks do not connect within
  // options.connect_timeout.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(const CommunicatorOptions& options,
                                                           RendezvousStore& store);
  ~GlooMesh() override;

  absl::Status Run(const Exchange& exchange) override;
  int waiting_for() const override { return waiting_for_; }
  void Close() override;

 private:
  struct Channel;

  GlooMesh(const CommunicatorOptions& options, std::shared_ptr<gloo::Context> context);

  // These throw Gloo's exceptions.
  void Swap(const Exchange& exchange);
  void Send(int peer, uint32_t operation, const ExchangeBlock& block);
  void Receive(int peer, uint32_t operation, const ExchangeBlock& block);
  // Create and destroy the buffers for the large blocks of an exchange.
  void BeginLarge(const Exchange& exchange);
  void EndLarge();
  std::chrono::milliseconds Remaining() const;

  // Constant after construction.
  const int rank_;
  const int size_;
  const std::chrono::milliseconds step_timeout_;
  const std::shared_ptr<gloo::Context> context_;
  std::array<std::unique_ptr<Channel>, kMaxRanks> channels_;  // by peer

  // Used by the thread that calls Run.
  uint64_t exchange_count_ = 0;  // the number of the exchange, equal on all ranks
  std::chrono::steady_clock::time_point deadline_;
  int waiting_for_ = 0;

  std::mutex mutex_;
  bool closed_ = false;                                     // guarded by mutex_
  std::vector<gloo::transport::UnboundBuffer*> in_flight_;  // guarded by mutex_; of the running exchange
};

}  // namespace foredraft
