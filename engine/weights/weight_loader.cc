#include "engine/weights/weight_loader.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/checkpoint_check.h"
#include "engine/weights/host_tensor.h"
#include "engine/weights/tensor_names.h"

namespace foredraft {
namespace {

// The embedding goes to the device in pieces of this size: it is the largest tensor, and needs no packing.
constexpr int64_t kTablePieceBytes = int64_t{64} << 20;

// One call of LoadWeights: reads a group of tensors, packs it, forgets it.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelConfig& config, Device& device, Stream& stream,
         const LoadProgress& progress, const ExpertShard& shard)
      : checkpoint_(checkpoint),
        config_(config),
        device_(device),
        stream_(stream),
        progress_(progress),
        first_expert_(shard.first_expert(config.n_routed_experts)),
        expert_count_(shard.expert_count_here(config.n_routed_experts)) {}

  absl::StatusOr<ModelWeights> Load(int mtp_module_count) {
    total_bytes_ = BytesToRead(mtp_module_count);
    ModelWeights weights;
    ASSIGN_OR_RETURN(weights.embed_tokens, Table(kEmbedTokens));
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
      ASSIGN_OR_RETURN(LayerWeights layer_weights, Layer(layer));
      weights.layers.push_back(layer_weights);
    }
    ASSIGN_OR_RETURN(weights.norm, Vector({kFinalNorm}));
    ASSIGN_OR_RETURN(weights.lm_head, Linear({config_.tie_word_embeddings ? kEmbedTokens : kLmHead}));
    for (int module = 0; module < mtp_module_count; ++module) {
      ASSIGN_OR_RETURN(MtpModuleWeights module_weights, MtpModule(config_.num_hidden_layers + module));
      weights.mtp_modules.push_back(module_weights);
    }
    stream_.Synchronize();
    return weights;
  }

 private:
  int64_t BytesToRead(int mtp_module_count) const {
    int64_t bytes = 0;
    const auto add = [&](const std::string& name) {
      if (const TensorLocation found = checkpoint_.Find(name); found.entry != nullptr)
        bytes += found.entry->bytes;
    };
    for (const TensorSpec& spec : ExpectedTensors(config_, mtp_module_count)) {
      if (spec.kind == TensorKind::kCopy || !IsHere(spec)) continue;
      add(spec.name);
      add(spec.name + kScaleSuffix);
    }
    if (config_.tie_word_embeddings) add(kEmbedTokens);  // read again, for the head's packing
    return bytes;
  }

  bool IsHere(const TensorSpec& spec) const {
    return spec.expert < 0 || (spec.expert >= first_expert_ && spec.expert < first_expert_ + expert_count_);
  }

  void Advance(int64_t bytes) {
    done_bytes_ += bytes;
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  template <class T>
  absl::StatusOr<const T*> Upload(const std::vector<T>& host) {
    ASSIGN_OR_RETURN(T * memory, device_.AllocateArray<T>(host.size()));
    device_.CopyToDevice(stream_, memory, host.data(), host.size() * sizeof(T));
    return static_cast<const T*>(memory);
  }

  // Vectors one after the other, as FP32.
  absl::StatusOr<const float*> Vector(std::initializer_list<std::string> names) {
    std::vector<float> floats;
    int64_t bytes = 0;
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(const HostTensor tensor, ReadTensor(checkpoint_, config_, name));
      const std::vector<float> part = ToFloats(tensor);
      floats.insert(floats.end(), part.begin(), part.end());
      bytes += tensor.file_bytes;
    }
    ASSIGN_OR_RETURN(const float* vector, Upload(floats));
    Advance(bytes);
    return vector;
  }

  // Matrices stacked along n. If only some are FP8 (a checkpoint with modules_to_not_convert), all become
  // BF16.
  absl::StatusOr<PackedWeight> Linear(const std::vector<std::string>& names) {
    std::vector<HostTensor> tensors;
    ASSIGN_OR_RETURN(const std::vector<HostWeight> parts, Stacked(names, tensors));
    return device_.PackWeight(parts);
  }

  // One projection, or two stacked, of every expert of a layer that is here.
  absl::StatusOr<PackedWeights> ExpertWeights(int layer, const std::vector<std::string>& projections) {
    std::vector<HostTensor> tensors;
    if (expert_count_ == 0) return PackedWeights{};
    return device_.PackWeights(expert_count_, [&](int index) {
      const int expert = first_expert_ + index;
      std::vector<std::string> names;
      for (const std::string& projection : projections)
        names.push_back(ExpertPrefix(layer, expert) + projection);
      return Stacked(names, tensors);
    });
  }

  // `tensors` keeps the memory of what is returned.
  absl::StatusOr<std::vector<HostWeight>> Stacked(const std::vector<std::string>& names,
                                                  std::vector<HostTensor>& tensors) {
    tensors.clear();
    int64_t bytes = 0;
    int f8_count = 0;
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(HostTensor tensor, ReadTensor(checkpoint_, config_, name));
      bytes += tensor.file_bytes;
      f8_count += tensor.dtype == DType::kF8E4M3;
      tensors.push_back(std::move(tensor));
    }
    std::vector<HostWeight> parts;
    for (HostTensor& tensor : tensors) {
      if (f8_count != static_cast<int>(tensors.size())) tensor = ToBf16(std::move(tensor));
      parts.push_back(tensor.View());
    }
    Advance(bytes);
    return parts;
  }

  // A matrix of BF16 rows, unpacked: the embedding.
  absl::StatusOr<const bf16*> Table(const std::string& name) {
    const TensorLocation found = checkpoint_.Find(name);
    const bool f32 = found.entry->dtype == "F32";
    const int64_t element_bytes = f32 ? sizeof(float) : sizeof(bf16);
    const int64_t count = found.entry->bytes / element_bytes;
    ASSIGN_OR_RETURN(bf16 * table, device_.AllocateArray<bf16>(static_cast<size_t>(count)));
    const int64_t piece_count = std::min(count, kTablePieceBytes / element_bytes);
    std::vector<float> floats(f32 ? piece_count : 0);
    std::vector<bf16> piece(piece_count);
    for (int64_t first = 0; first < count; first += piece_count) {
      const int64_t length = std::min(piece_count, count - first);
      void* out = f32 ? static_cast<void*>(floats.data()) : piece.data();
      RETURN_IF_ERROR(found.file->Read(*found.entry, first * element_bytes, length * element_bytes, out));
      for (int64_t i = 0; f32 && i < length; ++i) piece[i] = ToBf16(floats[i]);
      device_.CopyToDevice(stream_, table + first, piece.data(), static_cast<size_t>(length) * sizeof(bf16));
      Advance(length * element_bytes);
    }
    return static_cast<const bf16*>(table);
  }

  // kv_b whole, and cut into W_UK (transposed) and W_UV of every head.
  absl::Status KvB(const std::string& prefix, MlaWeights& mla) {
    ASSIGN_OR_RETURN(HostTensor kv_b, ReadTensor(checkpoint_, config_, prefix + kKvBProj));
    const int64_t bytes = kv_b.file_bytes;
    kv_b = ToBf16(std::move(kv_b));
    const HostWeight whole = kv_b.View();
    ASSIGN_OR_RETURN(mla.kv_b, device_.PackWeight(std::span(&whole, 1)));
    const int32_t nope = config_.qk_nope_head_dim;
    const int32_t value = config_.v_head_dim;
    std::vector<bf16> part;
    const auto w_uk = [&](int head) -> absl::StatusOr<std::vector<HostWeight>> {
      part = TransposeRows(kv_b, head * (nope + value), nope);
      return std::vector<HostWeight>{{.dtype = DType::kBF16, .n = kv_b.k, .k = nope, .data = part.data()}};
    };
    const auto w_uv = [&](int head) -> absl::StatusOr<std::vector<HostWeight>> {
      part = CopyRows(kv_b, head * (nope + value) + nope, value);
      return std::vector<HostWeight>{{.dtype = DType::kBF16, .n = value, .k = kv_b.k, .data = part.data()}};
    };
    ASSIGN_OR_RETURN(mla.w_uk, device_.PackWeights(config_.num_attention_heads, w_uk));
    ASSIGN_OR_RETURN(mla.w_uv, device_.PackWeights(config_.num_attention_heads, w_uv));
    Advance(bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<MlaWeights> Attention(const std::string& prefix) {
    MlaWeights mla;
    const bool lora = config_.q_lora_rank > 0;
    ASSIGN_OR_RETURN(mla.qkv_a, Linear({prefix + (lora ? kQAProj : kQProj), prefix + kKvAProj}));
    if (lora) {
      ASSIGN_OR_RETURN(mla.q_a_layernorm, Vector({prefix + kQALayernorm}));
      ASSIGN_OR_RETURN(mla.q_b, Linear({prefix + kQBProj}));
    }
    if (config_.attention_bias) {
      ASSIGN_OR_RETURN(mla.qkv_a_bias, QkvABias(prefix));
      ASSIGN_OR_RETURN(mla.o_proj_bias, Vector({prefix + kOBias}));
    }
    ASSIGN_OR_RETURN(mla.kv_a_layernorm, Vector({prefix + kKvALayernorm}));
    RETURN_IF_ERROR(KvB(prefix, mla));
    ASSIGN_OR_RETURN(mla.o_proj, Linear({prefix + kOProj}));
    return mla;
  }

  // q_proj has no bias, even where attention_bias is true: zeros above kv_a's.
  absl::StatusOr<const float*> QkvABias(const std::string& prefix) {
    if (config_.q_lora_rank > 0) return Vector({prefix + kQABias, prefix + kKvABias});
    ASSIGN_OR_RETURN(const HostTensor kv_a, ReadTensor(checkpoint_, config_, prefix + kKvABias));
    std::vector<float> bias(static_cast<size_t>(config_.num_attention_heads) * config_.qk_head_dim(), 0.0f);
    const std::vector<float> part = ToFloats(kv_a);
    bias.insert(bias.end(), part.begin(), part.end());
    Advance(kv_a.file_bytes);
    return Upload(bias);
  }

  absl::StatusOr<DenseMlpWeights> Mlp(const std::string& prefix) {
    DenseMlpWeights mlp;
    ASSIGN_OR_RETURN(mlp.gate_up, Linear({prefix + kGateProj, prefix + kUpProj}));
    ASSIGN_OR_RETURN(mlp.down, Linear({prefix + kDownProj}));
    return mlp;
  }

  absl::StatusOr<MoeWeights> Moe(int layer) {
    MoeWeights moe;
    const std::string prefix = LayerPrefix(layer);
    ASSIGN_OR_RETURN(moe.router, Linear({prefix + kRouter}));
    ASSIGN_OR_RETURN(moe.e_score_correction_bias, Vector({prefix + kRouterBias}));
    ASSIGN_OR_RETURN(moe.expert_gate_up, ExpertWeights(layer, {kGateProj, kUpProj}));
    ASSIGN_OR_RETURN(moe.expert_down, ExpertWeights(layer, {kDownProj}));
    if (config_.n_shared_experts > 0) {
      ASSIGN_OR_RETURN(moe.shared, Mlp(prefix + "mlp.shared_experts."));
    }
    return moe;
  }

  absl::StatusOr<LayerWeights> Layer(int layer) {
    LayerWeights weights;
    const std::string prefix = LayerPrefix(layer);
    ASSIGN_OR_RETURN(weights.input_layernorm, Vector({prefix + kInputLayernorm}));
    ASSIGN_OR_RETURN(weights.self_attn, Attention(prefix));
    ASSIGN_OR_RETURN(weights.post_attention_layernorm, Vector({prefix + kPostAttentionLayernorm}));
    weights.is_moe = config_.IsMoe(layer);
    if (weights.is_moe) {
      ASSIGN_OR_RETURN(weights.moe, Moe(layer));
    } else {
      ASSIGN_OR_RETURN(weights.mlp, Mlp(prefix + "mlp."));
    }
    return weights;
  }

  absl::StatusOr<MtpModuleWeights> MtpModule(int layer) {
    MtpModuleWeights weights;
    const std::string prefix = LayerPrefix(layer);
    ASSIGN_OR_RETURN(weights.enorm, Vector({prefix + kEnorm}));
    ASSIGN_OR_RETURN(weights.hnorm, Vector({prefix + kHnorm}));
    ASSIGN_OR_RETURN(weights.eh_proj, Linear({prefix + kEhProj}));
    ASSIGN_OR_RETURN(weights.shared_head_norm, Vector({prefix + kSharedHeadNorm}));
    ASSIGN_OR_RETURN(weights.layer, Layer(layer));
    return weights;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  Device& device_;
  Stream& stream_;
  const LoadProgress& progress_;
  const int first_expert_;
  const int expert_count_;
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

}  // namespace

absl::StatusOr<ModelWeights> LoadWeights(const std::string& checkpoint_dir, const ModelConfig& config,
                                         int mtp_module_count, Device& device, Stream& stream,
                                         const LoadProgress& progress, const ExpertShard& shard) {
  if (mtp_module_count < 0 || mtp_module_count > config.num_nextn_predict_layers)
    return absl::InvalidArgumentError(absl::StrFormat("%s: MTP modules: %d asked for, the checkpoint has %d",
                                                      checkpoint_dir, mtp_module_count,
                                                      config.num_nextn_predict_layers));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(checkpoint_dir));
  RETURN_IF_ERROR(CheckTensors(checkpoint, config));
  Loader loader(checkpoint, config, device, stream, progress, shard);
  return loader.Load(mtp_module_count);
}

}  // namespace foredraft
