#pragma once

// Rank 0 of a group without other ranks. Instead of receiving the other ranks' data it copies data of the
// same size on the device, on the same stream, also in captured steps. A step then has the memory traffic of
// the exchange, but not its latency, and no traffic on the links.
//
// The rows of every rank are copies of this rank's own rows. With ChooseOwnExperts its own rows choose no
// other experts, so its experts compute as many pairs as in a balanced group. The other ranks' rows choose as
// Create was told (OthersChoices of slowest_rank.h).
//
// Owner: RankEngine. Thread: that of the stream.

#include <memory>
#include <span>

#include "engine/checkpoint/loaded_weights.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "tests/bench/lone_rank.h"

namespace foredraft {

class CopyCommunicator : public LoneRank {
 public:
  // `others_choices`: of the other ranks' rows in the largest exchange; a smaller one takes the first ones.
  static absl::StatusOr<std::unique_ptr<CopyCommunicator>> Create(Device& device, int size,
                                                                  std::span<const int32_t> others_choices);

  // parts[1] holds the expert choices, as in ExpertExchange.
  void AllGather(Stream& stream, const AllGatherParams& params) override;
  void AllToAll(Stream& stream, const AllToAllParams& params) override;

 private:
  CopyCommunicator(const Ops& ops, int size, const int32_t* others_choices, int64_t count)
      : LoneRank(size), ops_(ops), others_choices_(others_choices), others_choice_count_(count) {}

  // Copies the `bytes` bytes at `in` to `out`, `count` times in a row.
  void CopyToAll(Stream& stream, void* out, const void* in, int count, int64_t bytes);

  const Ops& ops_;
  const int32_t* const others_choices_;  // device memory
  const int64_t others_choice_count_;
};

// Biases the routers so that rows choose only among the first `own_count` of config.n_routed_experts experts;
// the tables of DeepSeek-V4's hash layers name no others either.
void ChooseOwnExperts(Device& device, const LoadedWeights& weights, const ModelConfig& config, int own_count);

}  // namespace foredraft
