#include "engine/weights/deepseek_v4_description.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

using Shape = std::vector<int64_t>;

// Describes the tensors under one name prefix.
class Describer {
 public:
  Describer(const ModelConfig& config, std::string prefix, ModelDescription& description, int mtp_module = -1)
      : config_(config),
        v4_(*config.v4),
        prefix_(std::move(prefix)),
        mtp_module_(mtp_module),
        description_(description) {}

  // `saved_as`: transformers' name where it is not "model." and DeepSeek's.
  void Tensor(TensorKind kind, const std::string& name, Shape shape, const std::string& saved_as = "") {
    const std::string full = prefix_ + name;
    description_.Tensor({.kind = kind,
                         .name = full,
                         .shape = std::move(shape),
                         .mtp_module = mtp_module_,
                         .saved_as = "model." + (saved_as.empty() ? full : prefix_ + saved_as)});
  }

  // A projection: where the checkpoint is quantised, in FP8 blocks, or of a routed expert in FP4 groups.
  void Linear(const std::string& name, int64_t rows, int64_t columns, TensorKind kind = TensorKind::kLinear,
              int expert = -1) {
    const std::string full = prefix_ + name;
    description_.Tensor({.kind = kind,
                         .name = full + ".weight",
                         .shape = {rows, columns},
                         .scale = full + ".scale",
                         .expert = expert,
                         .mtp_module = mtp_module_,
                         .saved_as = "model." + full + ".weight",
                         .scale_format = ScaleFormat::kE8m0,
                         .fp4 = expert >= 0 && v4_.fp4_experts});
  }

  void Norm(const std::string& name, int64_t size, const std::string& saved_as = "") {
    Tensor(TensorKind::kNorm, name + ".weight", {size}, saved_as.empty() ? "" : saved_as + ".weight");
  }

  // fn, base and scale of hyper-connections. `saved_as`: what stands before these words in transformers'
  // name.
  void Hyper(const std::string& name, int64_t outputs, int64_t scales, const std::string& saved_as = "") {
    const auto saved = [&](const char* part) { return saved_as.empty() ? "" : saved_as + part; };
    Tensor(TensorKind::kMatrix, name + "_fn", {outputs, int64_t{v4_.hc_mult} * config_.hidden_size},
           saved("fn"));
    Tensor(TensorKind::kBias, name + "_base", {outputs}, saved("base"));
    Tensor(TensorKind::kBias, name + "_scale", {scales}, saved("scale"));
  }

  void Layer(AttentionKind kind, bool is_hash) {
    const int64_t streams = v4_.hc_mult;
    for (const char* part : {"attn", "ffn"}) {
      Hyper(absl::StrCat("hc_", part), (2 + streams) * streams, 3);
      Norm(absl::StrCat(part, "_norm"), config_.hidden_size);
    }
    Attention(kind);
    Experts(is_hash);
  }

  void Module() {
    const int64_t hidden = config_.hidden_size;
    for (const char* name : {"enorm", "hnorm", "norm"}) Norm(name, hidden);
    Linear("e_proj", hidden, hidden);
    Linear("h_proj", hidden, hidden);
    Hyper("hc_head", v4_.hc_mult, 1);
    Layer(AttentionKind::kWindow, false);
  }

 private:
  void Attention(AttentionKind kind) {
    const int64_t hidden = config_.hidden_size;
    const int64_t width = int64_t{config_.num_attention_heads} * v4_.head_dim;
    const int64_t output = int64_t{v4_.o_groups} * v4_.o_lora_rank;
    Linear("attn.wq_a", config_.q_lora_rank, hidden);
    Norm("attn.q_norm", config_.q_lora_rank);
    Linear("attn.wq_b", width, config_.q_lora_rank);
    Linear("attn.wkv", v4_.head_dim, hidden);
    Norm("attn.kv_norm", v4_.head_dim, "attn.norm");
    Linear("attn.wo_a", output, width / v4_.o_groups);
    Linear("attn.wo_b", hidden, output, TensorKind::kResidual);
    Tensor(TensorKind::kBias, "attn.attn_sink", {config_.num_attention_heads});
    if (kind == AttentionKind::kWindow) return;
    Compressor("attn.compressor", kind, v4_.head_dim);
    if (kind != AttentionKind::kCompressedSparse) return;
    Linear("attn.indexer.wq_b", int64_t{config_.index_n_heads} * config_.index_head_dim, config_.q_lora_rank);
    Tensor(TensorKind::kMatrix, "attn.indexer.weights_proj.weight", {config_.index_n_heads, hidden});
    Compressor("attn.indexer.compressor", kind, config_.index_head_dim);
  }

  void Compressor(const std::string& name, AttentionKind kind, int64_t width) {
    // An overlapping compressor gives each token a part in the window after its own, too.
    const int64_t channels = kind == AttentionKind::kCompressedSparse ? 2 * width : width;
    Tensor(TensorKind::kMatrix, name + ".wkv.weight", {channels, config_.hidden_size});
    Tensor(TensorKind::kMatrix, name + ".wgate.weight", {channels, config_.hidden_size});
    Tensor(TensorKind::kMatrix, name + ".ape", {v4_.Ratio(kind), channels});
    Norm(name + ".norm", width);
  }

  void Mlp(const std::string& name, int64_t width, int expert = -1) {
    Linear(name + ".w1", width, config_.hidden_size, TensorKind::kLinear, expert);
    Linear(name + ".w2", config_.hidden_size, width, TensorKind::kResidual, expert);
    Linear(name + ".w3", width, config_.hidden_size, TensorKind::kLinear, expert);
  }

  void Experts(bool is_hash) {
    const ModelConfig& c = config_;
    Tensor(TensorKind::kMatrix, "ffn.gate.weight", {c.n_routed_experts, c.hidden_size});
    if (is_hash) {
      Tensor(TensorKind::kIds, "ffn.gate.tid2eid", {c.vocab_size, c.num_experts_per_tok});
    } else {
      Tensor(TensorKind::kBias, "ffn.gate.bias", {c.n_routed_experts});
    }
    for (int expert = 0; expert < c.n_routed_experts; ++expert) {
      Mlp(absl::StrCat("ffn.experts.", expert), c.moe_intermediate_size, expert);
    }
    Mlp("ffn.shared_experts", int64_t{c.n_shared_experts} * c.moe_intermediate_size);
  }

  const ModelConfig& config_;
  const DeepseekV4Shape& v4_;
  const std::string prefix_;
  const int mtp_module_;
  ModelDescription& description_;
};

}  // namespace

ModelDescription DescribeDeepSeekV4(const ModelConfig& config, int mtp_module_count,
                                    const ExpertShard& shard) {
  ModelDescription description{.shard = shard};
  description.model->layers.resize(config.num_hidden_layers);
  description.model->mtp_modules.resize(mtp_module_count);
  const Shape table = {config.vocab_size, config.hidden_size};
  description.Tensor({.kind = TensorKind::kEmbedding,
                      .name = "embed.weight",
                      .shape = table,
                      .saved_as = "model.embed_tokens.weight"});
  description.Tensor({.kind = TensorKind::kHead, .name = "head.weight", .shape = table});
  Describer top(config, "", description);
  top.Norm("norm", config.hidden_size);
  top.Hyper("hc_head", config.v4->hc_mult, 1, "hc_head.hc_");
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    Describer(config, absl::StrCat("layers.", i, "."), description)
        .Layer(config.v4->Kind(i), config.v4->IsHash(i));
  }
  for (int i = 0; i < mtp_module_count; ++i) {
    Describer(config, absl::StrCat("mtp.", i, "."), description, i).Module();
  }
  return description;
}

}  // namespace foredraft
