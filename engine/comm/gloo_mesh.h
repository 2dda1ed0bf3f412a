#pragma once

// Gloo's TCP connections between all pairs of ranks, with one operation: an exchange, in which every rank
// swaps one block, often an empty one, with every other rank. Each exchange therefore needs a message from
// every rank, so the next exchange after a loss detects it. Waiting parks the thread and does not spin.
//
// A small block is one message, written directly into memory that the receiver has registered. A large block
// is written to its destination after a handshake. Errors are Gloo's exceptions; after the first one the mesh
// must be closed.
//
// Owner: GlooCommunicator. Thread: one at a time; Close: any.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/comm/communicator_options.h"
#include "engine/comm/rank_rows.h"
#include "engine/comm/rendezvous.h"

namespace gloo {
class Context;
namespace transport {
class UnboundBuffer;
}
}  // namespace gloo

namespace foredraft {

class GlooMesh {
 public:
  // Memory that is sent to, or received from, one rank. In Blocks, indexed by rank, the own entry is not
  // used.
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  using Blocks = std::array<Block, kMaxRanks>;

  // INVALID_ARGUMENT if this host does not have the interface; UNAVAILABLE if the ranks do not connect within
  // options.connect_timeout.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(const CommunicatorOptions& options,
                                                           RendezvousStore& store);
  ~GlooMesh();

  // CHECKs that all ranks pass the same `operation` in the same exchange. Throws if a connection is lost, if
  // another rank takes longer than the step timeout, and after Close.
  void Exchange(uint32_t operation, const Blocks& outgoing, const Blocks& incoming);

  // The text of an exception of Gloo's, without Gloo's source file and line.
  static std::string ReasonOf(const std::exception& error);

  // The rank that the exchange waits for, or waited for when it threw.
  int waiting_for() const { return waiting_for_; }

  // Ends a waiting exchange, here and on the other ranks.
  void Close();

 private:
  struct Channel;

  GlooMesh(const CommunicatorOptions& options, std::shared_ptr<gloo::Context> context);

  // Create and destroy the buffers for the large blocks of an exchange.
  void BeginLarge(const Blocks& outgoing, const Blocks& incoming);
  void EndLarge();
  void Send(int peer, uint32_t operation, const Block& block);
  void Receive(int peer, uint32_t operation, const Block& block);
  std::chrono::milliseconds Remaining() const;

  // Constant after construction.
  const int rank_;
  const int size_;
  const std::chrono::milliseconds step_timeout_;
  const std::shared_ptr<gloo::Context> context_;
  std::array<std::unique_ptr<Channel>, kMaxRanks> channels_;  // by peer

  // Used by the thread that calls Exchange.
  uint64_t exchange_count_ = 0;  // the number of the exchange, equal on all ranks
  std::chrono::steady_clock::time_point deadline_;
  int waiting_for_ = 0;

  std::mutex mutex_;
  bool closed_ = false;                                     // guarded by mutex_
  std::vector<gloo::transport::UnboundBuffer*> in_flight_;  // guarded by mutex_; of the running exchange
};

}  // namespace foredraft
