#pragma once

// Rank 0 of a group without other ranks. Instead of receiving the other ranks' data it copies data of the
// same size on the device, on the same stream, also in captured steps. A step then has the memory traffic of
// the exchange, but not its latency, and no traffic on the links.
//
// The rows of every rank are copies of this rank's own rows. The other ranks' rows choose no expert of this
// rank, so its experts compute its own rows only. With ChooseOwnExperts its own rows choose no other experts;
// its experts then compute as many pairs as in a balanced group.
//
// Owner: RankEngine. Thread: that of the stream.

#include <utility>

#include "engine/checkpoint/loaded_weights.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "tests/bench/lone_rank.h"

namespace foredraft {

class CopyCommunicator : public LoneRank {
 public:
  // `max_choices`: most expert choices (rows x top_k) in one exchange. `expert_count`: experts of all ranks.
  static absl::StatusOr<std::unique_ptr<CopyCommunicator>> Create(Device& device, int size, int expert_count,
                                                                  int max_choices);

  // parts[1] holds the expert choices, as in ExpertExchange.
  void AllGather(Stream& stream, const AllGatherParams& params) override;
  void AllToAll(Stream& stream, const AllToAllParams& params) override;

 private:
  CopyCommunicator(const Ops& ops, int size, const int32_t* others_choices)
      : LoneRank(size), ops_(ops), others_choices_(others_choices) {}

  // Copies the `bytes` bytes at `in` to `out`, `count` times in a row.
  void CopyToAll(Stream& stream, void* out, const void* in, int count, int64_t bytes);

  const Ops& ops_;
  const int32_t* const
      others_choices_;  // device memory: an expert of the last rank, repeated for the largest exchange
};

// Biases the routers so that rows choose only among the first `own_count` of config.n_routed_experts experts;
// the tables of DeepSeek-V4's hash layers name no others either.
void ChooseOwnExperts(Device& device, const LoadedWeights& weights, const ModelConfig& config, int own_count);

}  // namespace foredraft
