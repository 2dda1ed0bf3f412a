#include "engine/memory_estimate.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/cache/kv_cache_shape.h"
#include "engine/checkpoint/dummy_weights.h"
#include "engine/decode_step.h"
#include "engine/engine_shapes.h"
#include "engine/model_weights.h"
#include "engine/rank.h"
#include "engine/spec/drafter_kind.h"

namespace foredraft {
namespace {

// Assumed, from the memory that CUDA 12 and 13 and NCCL 2 take on Hopper GPUs in other programs.
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kContextBytes = 700 * kMiB;     // CUDA's context, kernels, cuBLASLt
constexpr int64_t kNcclBytes = 1024 * kMiB;       // 16 channels to 7 peers
constexpr int64_t kWorkspaceBytes = 1024 * kMiB;  // partial results of attention, gathered rows of experts
constexpr int64_t kGraphNodeBytes = 8 << 10;

// A rank whose peers do not exist.
class SizingCommunicator : public Communicator {
 public:
  SizingCommunicator(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void AllGather(Stream&, const AllGatherParams&) override {}
  void AllToAll(Stream&, const AllToAllParams&) override {}
  absl::Status Await(Stream&) override { return absl::OkStatus(); }
  absl::Status AllReduce(std::span<int64_t>, Reduction) override { return absl::OkStatus(); }
  absl::Status Broadcast(std::span<std::byte>, int) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  const int rank_;
  const int size_;
};

int64_t BytesOf(const SizingDevice& device, const std::string& purpose) {
  for (const auto& [name, bytes] : device.purposes()) {
    if (name == purpose) return bytes;
  }
  return 0;
}

absl::StatusOr<MemoryEstimate> EstimateRank(SizedBackend backend, const EngineOptions& options,
                                            const ModelConfig& config, int index) {
  const int rank_count = options.layout.world_size();
  Rank rank;
  auto device = std::make_unique<SizingDevice>(backend);
  const SizingDevice& counted = *device;
  rank.device = std::move(device);
  rank.comm = std::make_unique<SizingCommunicator>(index, rank_count);
  rank.device->BeginPurpose("weights");
  ModelConfig of_class = config;
  of_class.nvfp4_inputs = options.nvfp4_inputs;
  ASSIGN_OR_RETURN(LoadedWeights weights,
                   AllocateDummyWeights(of_class, options.drafter_requirements.module_count, *rank.device,
                                        {.layout = options.layout, .rank = index}));
  if (options.drafter != nullptr && options.drafter->describe != nullptr) {
    ASSIGN_OR_RETURN(LoadedWeights drafter,
                     AllocateDummyWeights(options.drafter->describe(config), *rank.device));
    weights.SetDrafter(std::move(drafter));
  }
  RETURN_IF_ERROR(rank.Allocate(options, config, std::move(weights)));
  MemoryEstimate memory;
  memory.weight_bytes = BytesOf(counted, "weights");
  memory.activation_bytes = BytesOf(counted, "activations");
  memory.slot_bytes = BytesOf(counted, "slots");
  RETURN_IF_ERROR(rank.AllocateCache(options, /*history_blocks=*/1, /*poison=*/false));
  memory.cache = KvCacheShapeOf(options, config, /*history_blocks=*/2);
  memory.cache.block_counts[0] = 1;
  memory.sequence_blocks = options.blocks_per_slot(memory.cache.tokens_per_block());
  if (options.capture_graphs) {
    const std::vector<StepKey> steps =
        StepsOf(options.graph_sizes(), options.max_draft_len, options.cuts_drafts);
    memory.graph_count = static_cast<int64_t>(steps.size());
    memory.graph_nodes = static_cast<int64_t>(
        rank.device->Capture(*rank.stream, [&] { DecodeStep(rank, steps.back()); })->node_count());
  }
  if (backend == SizedBackend::kCpu) return memory;
  memory.graph_bytes = memory.graph_count * memory.graph_nodes * kGraphNodeBytes;
  memory.workspace_bytes = kWorkspaceBytes;
  memory.library_bytes = kContextBytes + (rank_count > 1 ? kNcclBytes : 0);
  return memory;
}

}  // namespace

absl::StatusOr<MemoryEstimate> EstimateMemory(SizedBackend backend, const EngineOptions& options,
                                              const ModelConfig& config) {
  ASSIGN_OR_RETURN(MemoryEstimate most, EstimateRank(backend, options, config, 0));
  for (int rank = 1; rank < options.layout.attention_tp; ++rank) {
    ASSIGN_OR_RETURN(MemoryEstimate memory, EstimateRank(backend, options, config, rank));
    if (memory.fixed_bytes() > most.fixed_bytes()) most = std::move(memory);
  }
  return most;
}

absl::StatusOr<int> BlocksOn(int64_t device_bytes, const MemoryEstimate& memory,
                             const EngineOptions& options) {
  const DeviceMemory left = {.free_bytes = device_bytes - memory.fixed_bytes(), .total_bytes = device_bytes};
  return BlocksThatFit(left, memory.graph_bytes, options.free_memory_fraction, memory.cache,
                       memory.sequence_blocks);
}

int64_t SmallestDevice(const MemoryEstimate& memory, const EngineOptions& options) {
  const double cache_bytes = static_cast<double>(memory.cache_bytes(1 + memory.sequence_blocks));
  return memory.fixed_bytes() + memory.graph_bytes +
         static_cast<int64_t>(std::ceil(cache_bytes / options.free_memory_fraction));
}

}  // namespace foredraft
