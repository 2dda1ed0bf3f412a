#pragma once

// Device memory between the ops of one forward, allocated once and shared by all layers. Its contents do not
// outlive a forward. This file has the buffers that every family needs; those of attention are in mla.h and
// in the families' folders. Owner: the Model.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/model_shard.h"
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

// The most rows per tensor group whose experts run at once in a decode step. One rank has room for the pairs
// (row, expert) of all these rows, so that a captured step never runs its experts in parts; hence all groups
// together have at most 2048 rows.
constexpr int MoeRowsAtOnce(const RankLayout& layout) {
  return std::min(512 * layout.attention_tp, 2048 / layout.attention_dp);
}

// The most rows per tensor group whose experts run at once in any forward except a decode step. Every round
// reads the weights of all experts, so rounds are large: a rank has room for twice the pairs of an even
// spread, and runs its experts in parts if it gets more pairs (PartRowsParams). Ranks that share the columns
// of experts would have to exchange rows in each part, so they have room for all pairs instead.
constexpr int MoePromptRowsAtOnce(const RankLayout& layout) {
  return layout.moe_tp > 1 ? MoeRowsAtOnce(layout) : 1024 * layout.attention_tp;
}

// N = tensor groups, M = min(rows of the largest forward, MoePromptRowsAtOnce), X = experts per token,
// P = pairs (row, expert) that a rank has room for.
struct ExpertActivations {
  Matrix<float> router_logits;        // [M, E]
  int32_t* expert_ids = nullptr;      // [M, X]
  float* expert_weights = nullptr;    // [M, X]
  int32_t* expert_offsets = nullptr;  // [E + 1]
  int32_t* grouped_rows = nullptr;    // [P]
  int32_t* grouped_index = nullptr;   // [N * M, X]
  int part_pairs = 0;                 // PartRowsParams::part_pairs
  int32_t* part_borders = nullptr;    // [PartCount of all pairs + 1]
  Matrix<float> gate_up;              // [P, 2 I_e / moe_tp]: the rank's columns; may be absent (AddExperts)
  InputRows activated;                // [P, I_e]
  // Inputs of gate_up rounded to NVFP4; absent where none are. One row per gathered row if a layer's experts
  // share one input scale, else one row per pair.
  Matrix<bf16> rounded;  // [N * M or P, D]
  Matrix<float> out;     // [P, D / moe_tp]: the rank's columns

  // The rank's columns of `activated`, and the columns of all ranks that share the experts, one rank's rows
  // after another's. Absent where a rank has whole experts.
  InputRows activated_part;                 // [P, I_e / moe_tp]
  std::byte* gathered_activated = nullptr;  // [moe_tp * P] rows, in BF16 or quantised
  Matrix<float> merged;                     // [moe_ep * G / T, D] the partial sums of whole rows

  // The gathered rows of all groups, for the exchange with other ranks; absent where N = 1.
  std::byte* gathered_x = nullptr;    // [N * M] in BF16, quantised or in NVFP4
  int32_t* gathered_ids = nullptr;    // [N * M, X]
  float* gathered_weights = nullptr;  // [N * M, X]
  // Partial sums that cross ranks; absent where one rank has all experts. BF16 if moe_ep is 8, unless there
  // are several tensor groups of several ranks; else FP32. partials_in has every rank's sums of this rank's
  // rows, or in a tensor group what GroupActivations says.
  Matrix<float> partials_out;  // [N * M, D] what this rank's experts add to every row
  Matrix<float> partials_in;   // [N, M, D] or [G, D]
  Matrix<float> subtree;       // [M, D] with several groups of several ranks: sums over ranks of equal place
  Matrix<bf16> partials_out_bf16;
  Matrix<bf16> partials_in_bf16;

  // The number of parts in which a rank's experts run over rows that have `pairs` pairs.
  int PartCount(int pairs) const { return pairs <= out.rows ? 1 : (pairs + part_pairs - 1) / part_pairs; }
};

// The sums and logits of a tensor group of T ranks; absent where T = 1. A rank has partial sums of B =
// min(rows of the largest forward, MoePromptRowsAtOnce) rows. From every rank it receives G / T rows: all
// rows or, if there are more than kOneStepRows, its own share of them (engine/model/tensor_group.h).
struct GroupActivations {
  Matrix<float> partials_out;  // [B, D]
  Matrix<float> partials_in;   // [G, D]
  Matrix<float> logits_out;    // [kLogitRowsAtOnce, w], w: rows of the head that each rank has
  Matrix<float> logits_in;     // [T * kLogitRowsAtOnce, w]
};
inline constexpr int kOneStepRows = 32;
inline constexpr int kLogitRowsAtOnce = 64;

// R = rows of the largest forward.
struct Activations {
  Matrix<float> hidden;     // [R, D] V3: the residual stream. V4: the streams reduced to one
  InputRows normed;         // [R, D] input of the next projection
  Matrix<float> projected;  // [R, D] output of a half layer (attention or MLP)
  Matrix<float> gate_up;    // [R, 2 I] of dense MLPs and shared experts; I: the widest one's width
  InputRows activated;      // [R, I]
  ExpertActivations experts;
  GroupActivations group;
  InputRows mtp_input;  // input of an MTP module's projection; the family's size
};

// Allocates buffers; after the first failure it does nothing.
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
  // Also allocates the quantised form where the device quantises rows.
  void operator()(InputRows& out, int rows, int cols);
  void operator()(QuantizedRows& out, int rows, int cols);  // absent where the device does not quantise rows

  const absl::Status& status() const { return status_; }

 private:
  Device& device_;
  absl::Status status_;
};

struct ActivationSize {
  int rows = 0;           // of the largest forward
  int decode_rows = 0;    // of the largest forward in the decode form
  int mlp_width = 0;      // of the rank's part of the widest dense MLP or shared expert
  int scratch_width = 0;  // floats per row that gate_up's memory has at least, for other uses between MLPs
  // What the experts of any layer need (AddExperts in engine/model/mlp.h).
  bool keeps_expert_gate_up = false;  // gate and up in memory
  bool rounds_rows = false;           // rows are rounded to NVFP4
  bool rounds_pairs = false;  // each pair (row, expert) is rounded, because the experts' input scales differ
};

// Allocates all of `a` except mtp_input.
void AllocateActivations(ActivationAllocator& allocate, const ModelConfig& config, const ModelShard& shard,
                         const ActivationSize& size, Activations& a);

}  // namespace foredraft
