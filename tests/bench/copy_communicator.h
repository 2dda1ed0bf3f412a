#ifndef FOREDRAFT_TESTS_BENCH_COPY_COMMUNICATOR_H_
#define FOREDRAFT_TESTS_BENCH_COPY_COMMUNICATOR_H_

// Rank 0 of a group without other ranks: what the others would send is copied on the device instead, in the
// same sizes, on the same stream, in captured steps too. So a step of one rank's share has the exchange's
// traffic, though not its latency or its wires.
//
// Every rank's rows are this rank's own. Those of the others choose no expert of this rank, so its experts
// compute its own rows alone: as many pairs as in a balanced group, if its own rows choose no other experts
// (ChooseOwnExperts).
//
// Owner: RankEngine. Thread: that of the stream.

#include <utility>

#include "engine/comm/communicator.h"
#include "engine/weights/model_weights.h"
#include "kernels/device.h"

namespace foredraft {

class CopyCommunicator : public Communicator {
 public:
  // At most `max_choices` choices of experts (rows by top_k) in one exchange, of the `expert_count` of all
  // ranks.
  static absl::StatusOr<std::unique_ptr<CopyCommunicator>> Create(Device& device, int size, int expert_count,
                                                                  int max_choices);

  int rank() const override { return 0; }
  int size() const override { return size_; }

  // parts[1] are the choices, as ExpertExchange has them.
  void AllGather(Stream& stream, const AllGatherParams& params) override;
  void AllToAll(Stream& stream, const AllToAllParams& params) override;
  absl::Status Await(Stream& stream) override;

  absl::Status AllReduce(std::span<int64_t>, Reduction) override { return absl::OkStatus(); }
  absl::Status Broadcast(std::span<std::byte>, int) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  CopyCommunicator(const Ops& ops, int size, const int32_t* others_choices)
      : ops_(ops), size_(size), others_choices_(others_choices) {}

  // `in`, a stretch of `bytes`, to each of `count` adjacent ones from `out` on.
  void CopyToAll(Stream& stream, void* out, const void* in, int count, int64_t bytes);

  const Ops& ops_;
  const int size_;
  const int32_t* const
      others_choices_;  // device memory: an expert of the last rank, as often as an exchange may need
};

// Biases the routers so that rows choose among the first `own_count` experts alone.
void ChooseOwnExperts(Device& device, const ModelWeights& weights, int expert_count, int own_count);

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_COPY_COMMUNICATOR_H_
