#include "engine/model/deepseek_v4/v4_forward.h"

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
  allocate(a.index_scores, std::min(rows, kIndexerRowsAtOnce), positions / shape.sparse_ratio + 1);
  allocate(a.selected, static_cast<size_t>(rows) * config.index_topk);
  allocate(a.grouped, rows, shape.o_groups * shape.o_lora_rank);
}

}  // namespace

absl::StatusOr<V4Activations> AllocateV4Activations(Device& device, const ModelConfig& config,
                                                    const ForwardCapacity& capacity, int ranks) {
  const int rows = capacity.rows;
  const int streams = config.v4->hc_mult;
  Allocator allocate(device);
  V4Activations a;
  allocate(a.collapsed, rows, config.hidden_size);
  allocate(a.mix, rows, (2 + streams) * streams);
  allocate(a.normed, rows, config.hidden_size);
  allocate(a.projected, rows, config.hidden_size);
  AllocateAttention(allocate, config, rows, capacity.positions, a);
  const int shared_width = config.n_shared_experts * config.moe_intermediate_size;
  allocate(a.shared_gate_up, rows, 2 * shared_width);
  allocate(a.shared_activated, rows, shared_width);
  allocate(a.stream_rows, rows * streams, config.hidden_size);
  RETURN_IF_ERROR(allocate.status());
  RETURN_IF_ERROR(AllocateExperts(device, config, rows, ranks, a.experts));
  return a;
}

}  // namespace foredraft
