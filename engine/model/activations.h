#pragma once

// Device memory between the ops of one forward, allocated once and shared by all layers. Nothing in it
// outlives a forward. Here is what every family has; attention's is in mla.h and in the families' folders.
// Owner: the Model.

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

// Rows of each tensor group whose experts run at once in a decode step. There is room for the pairs (row,
// expert) of all of them on one rank, so that a captured step never needs a second part; hence at most 2048
// of all groups together.
constexpr int MoeRowsAtOnce(const RankLayout& layout) {
  return std::min(512 * layout.attention_tp, 2048 / layout.attention_dp);
}

// Rows of each tensor group whose experts run at once in any forward but a decode step. A round reads the
// weights of all experts, so it has more rows than there is room for if all of them choose one rank's
// experts: there is room for twice the pairs of an even spread, and a rank that has more runs its experts in
// parts (PartRowsParams). Ranks that share columns would have to exchange rows in each part; so they have
// room for all rows.
constexpr int MoePromptRowsAtOnce(const RankLayout& layout) {
  return layout.moe_tp > 1 ? MoeRowsAtOnce(layout) : 1024 * layout.attention_tp;
}

// N = tensor groups, M = min(rows of the largest forward, MoePromptRowsAtOnce), X = experts per token,
// P = pairs that there is room for.
struct ExpertActivations {
  Matrix<float> router_logits;        // [M, E]
  int32_t* expert_ids = nullptr;      // [M, X]
  float* expert_weights = nullptr;    // [M, X]
  int32_t* expert_offsets = nullptr;  // [E + 1]
  int32_t* grouped_rows = nullptr;    // [P]
  int32_t* grouped_index = nullptr;   // [N * M, X]
  int part_pairs = 0;                 // PartRowsParams::part_pairs
  int32_t* part_borders = nullptr;    // [PartCount of all pairs + 1]
  Matrix<float> gate_up;  // [P, 2 I_e]; of the rank's columns, as activated_part; may be absent (AddExperts)
  InputRows activated;    // [P, I_e]
  // Inputs of gate_up rounded to NVFP4; absent where none are. One row for each of all groups where a layer's
  // experts have one input scale, else one for each pair.
  Matrix<bf16> rounded;  // [N * M or P, D]
  Matrix<float> out;     // [P, D]; of the rank's columns

  // Absent where a rank has whole experts: the rank's columns of `activated`, and those of all ranks that
  // share the experts, one rank's rows after another's.
  InputRows activated_part;                 // [P, I_e / moe_tp]
  std::byte* gathered_activated = nullptr;  // [moe_tp * P] rows, in BF16 or quantised
  Matrix<float> merged;                     // [moe_ep * G / T, D] the partial sums of whole rows

  // The exchange with other ranks. The rows of all groups; absent where N = 1.
  std::byte* gathered_x = nullptr;    // [N * M] in BF16, quantised or in NVFP4
  int32_t* gathered_ids = nullptr;    // [N * M, X]
  float* gathered_weights = nullptr;  // [N * M, X]
  // Absent where one rank has all experts. BF16 where experts are in eight groups, else FP32, as with several
  // groups of several ranks. Every rank's parts: of this rank's rows, or in a tensor group as in
  // GroupActivations.
  Matrix<float> partials_out;  // [N * M, D] this rank's experts' part of every row
  Matrix<float> partials_in;   // [N, M, D] or [G, D]
  Matrix<float> subtree;       // [M, D] of groups of several ranks: what the ranks of equal place give in all
  Matrix<bf16> partials_out_bf16;
  Matrix<bf16> partials_in_bf16;

  // In how many parts a rank's experts run over rows that have `pairs` pairs.
  int PartCount(int pairs) const { return pairs <= out.rows ? 1 : (pairs + part_pairs - 1) / part_pairs; }
};

// The sums and logits of a tensor group of T ranks; absent where T = 1. A rank has partial sums of B =
// min(rows of the largest forward, MoePromptRowsAtOnce) rows. From every rank it receives G / T rows: all of
// them, or where there are more than kOneStepRows, its own share (engine/model/tensor_group.h).
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
  Matrix<float> projected;  // [R, D] what a layer's half gives
  Matrix<float> gate_up;    // [R, 2 I] of dense MLPs and shared experts, I: the widest
  InputRows activated;      // [R, I]
  ExpertActivations experts;
  GroupActivations group;
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
  void operator()(QuantizedRows& out, int rows, int cols);  // absent where the device does not

  const absl::Status& status() const { return status_; }

 private:
  Device& device_;
  absl::Status status_;
};

struct ActivationSize {
  int rows = 0;           // of the largest forward
  int decode_rows = 0;    // of the largest one in the decode form
  int mlp_width = 0;      // of the rank's part of the widest dense MLP or shared expert
  int scratch_width = 0;  // floats of a row that the memory of gate_up has at least, for use between MLPs
  // What the experts of any layer need (AddExperts in engine/model/mlp.h).
  bool keeps_expert_gate_up = false;  // gate and up in memory
  bool rounds_rows = false;           // rows rounded to NVFP4
  bool rounds_pairs = false;  // pairs (row, expert) rounded apart, because the experts' input scales differ
};

// All but mtp_input.
void AllocateActivations(ActivationAllocator& allocate, const ModelConfig& config, const ModelShard& shard,
                         const ActivationSize& size, Activations& a);

}  // namespace foredraft
