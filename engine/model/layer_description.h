#pragma once

// Describes the tensors that decoder layers of several families share, under Hugging Face's names: MLA and
// gated MLPs. Families build their model descriptions with it (engine/checkpoint/model_description.h).

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/model_description.h"
#include "engine/model/model_config.h"
#include "engine/model/weights.h"

namespace foredraft {

// Describes the tensors under one name prefix. `config` and `description` outlive it.
class LayerDescriber {
 public:
  using Tensors = std::vector<const TensorSpec*>;
  using Shape = std::vector<int64_t>;

  LayerDescriber(const ModelConfig& config, std::string prefix, ModelDescription& description,
                 int mtp_module = -1)
      : config_(config), prefix_(std::move(prefix)), mtp_module_(mtp_module), description_(description) {}

  const TensorSpec* Tensor(TensorKind kind, const std::string& name, Shape shape);
  // The matrix of a projection, which may be quantised.
  const TensorSpec* Linear(TensorKind kind, const std::string& name, Shape shape, int expert = -1);
  WeightSpec& Weight(const std::string& name, Member member, Tensors tensors, int expert_count = 1);
  void Norm(const std::string& name, int size, const float** out);

  // self_attn of a layer; its projections of queries and latents read rows of `input_width`.
  void Attention(MlaWeights& mla, int input_width);

  struct MlpParts {
    const TensorSpec* gate;
    const TensorSpec* up;
    const TensorSpec* down;
  };
  MlpParts MlpTensors(const std::string& name, int width, int expert = -1);
  void Mlp(const std::string& name, const MlpParts& parts, DenseMlpWeights& mlp);

 protected:
  IndexRange Inputs(int32_t k) const { return description_.shard.Inputs(k, unit_); }

  const ModelConfig& config_;
  const std::string prefix_;
  const int mtp_module_;
  const int32_t unit_ = SegmentUnit(config_.projections);
  ModelDescription& description_;
};

}  // namespace foredraft
