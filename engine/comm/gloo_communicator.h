#ifndef FOREDRAFT_ENGINE_COMM_GLOO_COMMUNICATOR_H_
#define FOREDRAFT_ENGINE_COMM_GLOO_COMMUNICATOR_H_

// Ranks on CPUs, joined by Gloo's TCP transport: a connection per pair of ranks, on the interface of
// parallel.interface. Plaintext: that network is private.
//
// Of Gloo only the connections and their buffers are used. Every collective is one exchange, in which each
// pair of ranks swaps one block, often an empty one: so each needs an answer from all, and a lost rank shows
// in whatever comes first. Waiting parks the thread; nothing spins.
//
// A Gloo context is dead after any exception: the first one ends the group (communicator.h) and closes all
// connections, by which the other ranks learn of it at once.

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/comm/communicator_factory.h"
#include "engine/comm/group_status.h"
#include "engine/comm/rendezvous.h"

namespace gloo {
class Context;
namespace transport {
class UnboundBuffer;
}
}  // namespace gloo

namespace foredraft {

class GlooCommunicator : public Communicator {
 public:
  // From here on the process ignores SIGPIPE: writing to a rank that died must fail, not kill.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(const CommunicatorOptions& options,
                                                              RendezvousStore& store);
  ~GlooCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void AllGather(Stream& stream, const AllGatherParams& params) override;
  void AllToAll(Stream& stream, const AllToAllParams& params) override;
  absl::Status Await(Stream& stream) override;

  absl::Status AllReduce(std::span<int64_t> values, Reduction reduction) override;
  absl::Status Broadcast(std::span<std::byte> bytes, int root) override;
  absl::Status Barrier() override;

  void Abort(const absl::Status& reason) override;
  absl::Status status() const override { return status_.status(); }

 private:
  enum class Operation : uint8_t { kAllGather, kAllToAll, kAllReduce, kBroadcast, kBarrier };

  // What goes to, or comes from, each rank; a rank's own entry is not used.
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  using Blocks = std::array<Block, kMaxRanks>;

  GlooCommunicator(const CommunicatorOptions& options, std::shared_ptr<gloo::Context> context);

  // What the stream's nodes run.
  void GatherNow(const AllGatherParams& params);
  void GatherOnePart(const AllGatherParams& params, const GatherPart& part);
  void GatherPacked(const AllGatherParams& params);
  void ToAllNow(const AllToAllParams& params);

  // One block to and from every other rank. After a failure: nothing.
  void Exchange(Operation operation, const Blocks& outgoing, const Blocks& incoming);
  void ExchangeOrThrow(Operation operation, const Blocks& outgoing, const Blocks& incoming);
  void CloseConnections();
  int Peer(int step) const { return (rank_ + step) % size_; }

  // Constant after construction.
  const int rank_;
  const int size_;
  const std::chrono::milliseconds step_timeout_;
  const std::shared_ptr<gloo::Context> context_;

  // The calling thread's.
  uint64_t exchange_count_ = 0;         // names an exchange: the same on all ranks
  int waiting_for_ = 0;                 // the rank that the running exchange waits for
  std::vector<std::byte> packed_out_;   // one message, of several parts
  std::vector<std::byte> packed_in_;    // one from every rank
  std::vector<int64_t> reduce_buffer_;  // [size, values]

  GroupStatus status_;
  std::mutex mutex_;
  std::vector<gloo::transport::UnboundBuffer*> in_flight_;  // guarded by mutex_; of the running exchange
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_COMM_GLOO_COMMUNICATOR_H_
