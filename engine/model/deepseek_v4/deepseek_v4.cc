#include "engine/model/deepseek_v4/deepseek_v4.h"

#include <cmath>
#include <utility>

#include "base/status_macros.h"

namespace foredraft {
namespace {

// [positions, pairs, 2]: cos and sin, in double until the last step.
absl::StatusOr<const float*> UploadRopeTable(Device& device, const std::vector<double>& frequencies,
                                             int positions) {
  std::vector<float> table;
  table.reserve(static_cast<size_t>(positions) * frequencies.size() * 2);
  for (int position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      table.push_back(static_cast<float>(std::cos(position * frequency)));
      table.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  }
  ASSIGN_OR_RETURN(float* const memory, device.AllocateArray<float>(table.size()));
  const auto stream = device.CreateStream();
  device.CopyToDevice(*stream, memory, table.data(), table.size() * sizeof(float));
  stream->Synchronize();
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeepseekV4>> DeepseekV4::Create(Device& device, Communicator& comm,
                                                               const ModelConfig& config, V4Weights weights,
                                                               const ForwardCapacity& capacity) {
  std::unique_ptr<DeepseekV4> model(new DeepseekV4(device, comm, config, std::move(weights)));
  CacheRegistry registry(/*tokens_per_block=*/1);
  model->cache_rows_ = RegisterV4Rows(config, model->module_count(), registry);
  ASSIGN_OR_RETURN(model->activations_, AllocateV4Activations(device, config, capacity, comm.size()));
  const int positions = capacity.positions;
  ASSIGN_OR_RETURN(model->main_cos_sin_, UploadRopeTable(device, config.RopeInverseFrequencies(), positions));
  ASSIGN_OR_RETURN(model->compress_cos_sin_,
                   UploadRopeTable(device, config.CompressRopeInverseFrequencies(), positions));
  return model;
}

V4Forward DeepseekV4::ForwardOf(Stream& stream, const Batch& batch) const {
  return {.ops = ops_,
          .stream = stream,
          .comm = comm_,
          .config = config_,
          .activations = activations_,
          .batch = batch,
          .main_cos_sin = main_cos_sin_,
          .compress_cos_sin = compress_cos_sin_};
}

void DeepseekV4::RunTarget(Stream& stream, const Batch& batch, const KvCache& cache,
                           Matrix<float> output) const {
  const V4Forward f = ForwardOf(stream, batch);
  const Matrix<float> embedded = activations_.collapsed.first_rows(f.rows());
  f.ops.embed(stream,
              {.out = embedded, .table = weights_.embed, .ids = batch.ids, .vocab_size = config_.vocab_size});
  MtpSeedHcStack(f, embedded, output);
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    V4Layer(f, weights_.layers[i],
            {.kind = config_.v4->layers[i], .cache = LayerCache(cache, static_cast<int>(i))}, output);
  }
}

void DeepseekV4::RunModule(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                           Matrix<float> output) const {
  MtpForwardTail(ForwardOf(stream, batch), weights_.modules[module], weights_.embed,
                 LayerCache(cache, config_.num_hidden_layers + module), output);
}

void DeepseekV4::Logits(Stream& stream, int level, Matrix<const float> outputs, Matrix<float> logits) const {
  const bool target = level == 0;
  const V4Head head = {.hc_head = target ? weights_.hc_head : weights_.modules[level - 1].hc_head,
                       .norm = target ? weights_.norm : weights_.modules[level - 1].norm,
                       .head = weights_.head};
  MtpComputeLogitsTail(ForwardOf(stream, Batch{}), head, outputs, logits);
}

}  // namespace foredraft
