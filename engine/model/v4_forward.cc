#include "engine/model/v4_forward.h"

#include <algorithm>

#include "base/status_macros.h"

namespace foredraft {
namespace {

// Allocates matrices and arrays until one fails.
class Allocator {
 public:
  explicit Allocator(Device& device) : device_(device) {}

  template <class T>
  void operator()(Matrix<T>& out, int rows, int cols) {
    T* data = nullptr;
    (*this)(data, static_cast<size_t>(rows) * cols);
    out = Dense(data, rows, cols);
  }
  template <class T>
  void operator()(T*& out, size_t count) {
    if (!status_.ok()) return;
    absl::StatusOr<T*> memory = device_.AllocateArray<T>(count);
    status_ = memory.status();
    if (memory.ok()) out = *memory;
  }
  const absl::Status& status() const { return status_; }

 private:
  Device& device_;
  absl::Status status_;
};

void AllocateAttention(Allocator& allocate, const ModelConfig& config, int rows, int positions,
                       V4Activations& a) {
  const DeepseekV4Shape& shape = *config.v4;
  const int width = config.num_attention_heads * shape.head_dim;
  const int channels = 2 * std::max(shape.head_dim, config.index_head_dim);
  const int index_width = config.index_n_heads * config.index_head_dim;
  allocate(a.latent, rows, config.q_lora_rank);
  allocate(a.latent_normed, rows, config.q_lora_rank);
  allocate(a.q, rows, width);
  allocate(a.q_rotated, rows, width);
  allocate(a.kv, rows, shape.head_dim);
  allocate(a.keys, rows, shape.head_dim);
  allocate(a.values, rows, channels);
  allocate(a.gates, rows, channels);
  allocate(a.index_q, rows, index_width);
  allocate(a.index_rotated, rows, index_width);
  allocate(a.index_weights, rows, config.index_n_heads);
  allocate(a.index_scores, rows, positions / shape.sparse_ratio + 1);
  allocate(a.selected, static_cast<size_t>(rows) * config.index_topk);
  allocate(a.grouped, rows, shape.o_groups * shape.o_lora_rank);
}

void AllocateExperts(Allocator& allocate, const ModelConfig& config, int rows, V4Activations& a) {
  const int pairs = rows * config.num_experts_per_tok;
  allocate(a.router_logits, rows, config.n_routed_experts);
  allocate(a.expert_ids, pairs);
  allocate(a.expert_weights, pairs);
  allocate(a.expert_offsets, config.n_routed_experts + 1);
  allocate(a.grouped_rows, pairs);
  allocate(a.grouped_index, pairs);
  allocate(a.gate_up, pairs, 2 * config.moe_intermediate_size);
  allocate(a.activated, pairs, config.moe_intermediate_size);
  allocate(a.expert_out, pairs, config.hidden_size);
}

}  // namespace

absl::StatusOr<V4Activations> AllocateV4Activations(Device& device, const ModelConfig& config, int rows,
                                                    int positions) {
  const int streams = config.v4->hc_mult;
  Allocator allocate(device);
  V4Activations a;
  allocate(a.collapsed, rows, config.hidden_size);
  allocate(a.mix, rows, (2 + streams) * streams);
  allocate(a.normed, rows, config.hidden_size);
  allocate(a.projected, rows, config.hidden_size);
  AllocateAttention(allocate, config, rows, positions, a);
  AllocateExperts(allocate, config, rows, a);
  allocate(a.stream_rows, rows * streams, config.hidden_size);
  RETURN_IF_ERROR(allocate.status());
  return a;
}

}  // namespace foredraft
