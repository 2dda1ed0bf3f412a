#ifndef FOREDRAFT_ENGINE_COMM_GLOO_MESH_H_
#define FOREDRAFT_ENGINE_COMM_GLOO_MESH_H_

// A TCP connection between every two ranks, by Gloo, and the one thing ever done with them: an exchange, in
// which every rank swaps one block, often an empty one, with every other. So each exchange needs an answer
// from all, and a lost rank shows in whatever comes first. Waiting parks the thread; nothing spins.
//
// Small blocks go straight into memory the receiver keeps ready: one message. Large ones go into place, after
// a handshake. Errors are Gloo's exceptions; after the first the mesh is dead.
//
// Owner: GlooCommunicator. Thread: one at a time, but for Close (any).

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/comm/communicator_factory.h"
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
  // What goes to, or comes from, each rank; a rank's own entry is not used.
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  using Blocks = std::array<Block, kMaxRanks>;

  // INVALID_ARGUMENT for an interface that this host has not; UNAVAILABLE when the ranks do not come together
  // within options.connect_timeout.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(const CommunicatorOptions& options,
                                                           RendezvousStore& store);
  ~GlooMesh();

  // `operation` is compared with the other ranks': they must all be in the same exchange. Throws when a
  // connection is lost, when a rank lets it wait longer than the step timeout, and after Close.
  void Exchange(uint32_t operation, const Blocks& outgoing, const Blocks& incoming);

  // The rank that the exchange waits for, or waited for when it threw.
  int waiting_for() const { return waiting_for_; }

  // Ends what waits, here and on the other ranks.
  void Close();

 private:
  struct Channel;

  GlooMesh(const CommunicatorOptions& options, std::shared_ptr<gloo::Context> context);

  // Of an exchange: buffers for its large blocks, and their end.
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

  // The calling thread's.
  uint64_t exchange_count_ = 0;  // names an exchange: the same on all ranks
  std::chrono::steady_clock::time_point deadline_;
  int waiting_for_ = 0;

  std::mutex mutex_;
  bool closed_ = false;                                     // guarded by mutex_
  std::vector<gloo::transport::UnboundBuffer*> in_flight_;  // guarded by mutex_; of the running exchange
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_COMM_GLOO_MESH_H_
