#pragma once

// Device memory between the ops of one forward, allocated once and shared by all layers. Nothing in it
// outlives a forward. Here is what every family has; attention's is in mla.h and in the families' folders.
// Owner: the Model.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/input_rows.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

// Positions whose keys and values a prefill expands at once, which bounds the memory of long contexts.
inline constexpr int kPrefillSegment = 4096;

// The size of the largest forward.
struct ForwardCapacity {
  int rows = 0;                   // in either form
  int decode_rows = 0;            // in the decode form
  int positions = 0;              // of a prefill's context
  int segment = kPrefillSegment;  // a multiple of kPrefillSegmentUnit; changes no bit
};

// Rows of each rank that a mixture of experts expands at once, which bounds the memory of long prefills. At
// most 2048 of all ranks together, because all of them may choose one rank's experts.
constexpr int MoeRowsAtOnce(int ranks) { return std::min(512, 2048 / ranks); }

// N = ranks, M = min(rows of the largest forward, MoeRowsAtOnce(N)), X = experts per token.
struct ExpertActivations {
  Matrix<float> router_logits;        // [M, E]
  int32_t* expert_ids = nullptr;      // [M, X]
  float* expert_weights = nullptr;    // [M, X]
  int32_t* expert_offsets = nullptr;  // [E + 1]
  int32_t* grouped_rows = nullptr;    // [N * M * X]
  int32_t* grouped_index = nullptr;   // [N * M, X]
  Matrix<float> gate_up;              // [N * M * X, 2 I_e]
  InputRows activated;                // [N * M * X, I_e]
  Matrix<float> out;                  // [N * M * X, D]

  // The exchange with other ranks; absent where N = 1. Partial sums are BF16 where N = 8, else FP32.
  std::byte* gathered_x = nullptr;    // [N * M] rows of all ranks, in BF16 or quantised
  int32_t* gathered_ids = nullptr;    // [N * M, X]
  float* gathered_weights = nullptr;  // [N * M, X]
  Matrix<float> partials_out;         // [N * M, D] this rank's experts' part of every row
  Matrix<float> partials_in;          // [N, M, D] every rank's part of this rank's rows
  Matrix<bf16> partials_out_bf16;
  Matrix<bf16> partials_in_bf16;
};

// R = rows of the largest forward.
struct Activations {
  Matrix<float> hidden;     // [R, D] V3: the residual stream. V4: the streams reduced to one
  InputRows normed;         // [R, D] input of the next projection
  Matrix<float> projected;  // [R, D] what a layer's half gives
  Matrix<float> gate_up;    // [R, 2 I] of dense MLPs and shared experts, I: the widest
  InputRows activated;      // [R, I]
  ExpertActivations experts;
  InputRows mtp_input;  // input of an MTP module's projection; the family's size
};

// Allocates until one allocation fails.
class ActivationAllocator {
 public:
  explicit ActivationAllocator(Device& device) : device_(device) {}

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
  // Quantised, too, where the device quantises rows.
  void operator()(InputRows& out, int rows, int cols);

  const absl::Status& status() const { return status_; }

 private:
  Device& device_;
  absl::Status status_;
};

struct ActivationSize {
  int rows = 0;  // of the largest forward
  int ranks = 1;
  int mlp_width = 0;      // of the widest dense MLP or shared expert
  int scratch_width = 0;  // floats of a row that the memory of gate_up has at least, for use between MLPs
};

// All but mtp_input.
void AllocateActivations(ActivationAllocator& allocate, const ModelConfig& config, const ActivationSize& size,
                         Activations& a);

}  // namespace foredraft
