#include "tests/bench/copy_communicator.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"

namespace foredraft {
namespace {

constexpr float kDecisive = 16.0f;  // above any score of random weights

// Writes what the routers of a model's layers add to their scores, and what its hash layers read.
class Routers {
 public:
  Routers(Device& device, const ModelConfig& config, int own_count)
      : device_(device), stream_(device.CreateStream()), bias_(config.n_routed_experts, 0.0f) {
    CHECK_LE(config.num_experts_per_tok, own_count);
    std::fill_n(bias_.begin(), own_count, kDecisive);
    table_.resize(size_t{1} * config.vocab_size * config.num_experts_per_tok);
    for (size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<int32_t>(i % own_count);
  }

  void operator()(const V3Weights& weights) {
    for (const V3LayerWeights& layer : weights.layers) Set(layer.moe);
    for (const V3ModuleWeights& module : weights.mtp_modules) Set(module.layer.moe);
    stream_->Synchronize();
  }
  void operator()(const V4Weights& weights) {
    for (const V4LayerWeights& layer : weights.layers) Set(layer.ffn);
    for (const V4ModuleWeights& module : weights.modules) Set(module.layer.ffn);
    for (const V4LayerWeights& stage : weights.dspark.stages) Set(stage.ffn);
    stream_->Synchronize();
  }

 private:
  void Set(const MoeWeights& moe) {
    if (moe.expert_table != nullptr) Write(moe.expert_table, table_);
    if (moe.bias != nullptr) Write(moe.bias, bias_);
  }
  template <class T>
  void Write(const T* device_memory, const std::vector<T>& values) {
    device_.CopyToDevice(*stream_, const_cast<T*>(device_memory), values.data(), values.size() * sizeof(T));
  }

  Device& device_;
  const std::unique_ptr<Stream> stream_;
  std::vector<float> bias_;     // [experts]
  std::vector<int32_t> table_;  // [vocabulary, experts per token]: a token's are distinct
};

}  // namespace

absl::StatusOr<std::unique_ptr<CopyCommunicator>> CopyCommunicator::Create(
    Device& device, int size, std::span<const int32_t> others_choices) {
  ASSIGN_OR_RETURN(int32_t* const memory, device.AllocateArray<int32_t>(others_choices.size()));
  const auto stream = device.CreateStream();
  device.CopyToDevice(*stream, memory, others_choices.data(), others_choices.size_bytes());
  stream->Synchronize();
  return std::unique_ptr<CopyCommunicator>(
      new CopyCommunicator(device.ops(), size, memory, static_cast<int64_t>(others_choices.size())));
}

// One launch: copies the rows of a matrix with row stride 0.
void CopyCommunicator::CopyToAll(Stream& stream, void* out, const void* in, int count, int64_t bytes) {
  CHECK_EQ(bytes % static_cast<int64_t>(sizeof(float)), 0);
  if (bytes == 0 || count == 0) return;
  const int32_t width = static_cast<int32_t>(bytes / static_cast<int64_t>(sizeof(float)));
  ops_.copy_rows(stream, {.out = Dense(static_cast<float*>(out), count, width),
                          .x = {static_cast<const float*>(in), count, width, 0},
                          .rows = count});
}

void CopyCommunicator::AllGather(Stream& stream, const AllGatherParams& params) {
  const int32_t rows = params.rows[0];
  const int ranks = std::min(params.set.count, size());
  for (int rank = 1; rank < ranks; ++rank) CHECK_EQ(params.rows[rank], rows);
  const bool has_choices = params.parts[2].row_bytes > 0;  // beside rows and weights (ExpertExchange::Gather)
  for (size_t i = 0; i < params.parts.size(); ++i) {
    const GatherPart& part = params.parts[i];
    const int64_t bytes = rows * part.row_bytes;
    if (i == 1 && has_choices) {
      CopyToAll(stream, part.out, part.in, 1, bytes);
      CHECK_LE((ranks - 1) * bytes, others_choice_count_ * static_cast<int64_t>(sizeof(int32_t)));
      CopyToAll(stream, static_cast<std::byte*>(part.out) + bytes, others_choices_, 1, (ranks - 1) * bytes);
    } else {
      CopyToAll(stream, part.out, part.in, ranks, bytes);
    }
  }
}

void CopyCommunicator::AllToAll(Stream& stream, const AllToAllParams& params) {
  CopyToAll(stream, params.out, params.in, size(), params.rows[0] * params.row_bytes);
}

void ChooseOwnExperts(Device& device, const LoadedWeights& weights, const ModelConfig& config,
                      int own_count) {
  Routers own(device, config, own_count);
  if (const V3Weights* const v3 = weights.Find<V3Weights>()) own(*v3);
  if (const V4Weights* const v4 = weights.Find<V4Weights>()) own(*v4);
}

}  // namespace foredraft
