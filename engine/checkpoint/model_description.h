#pragma once

// The tree of a model: the tensors of its checkpoint, and how they become its weights' members.
// Written once per family (deepseek_v3_description.cc). Everything else reads it:
//
// clang-format off
//   checkpoint_check     does a checkpoint have these tensors, and no others?
//   weight_loader        reads them, fuses them, packs them
//   dummy_weights        random weights on the device (load_format: dummy)
//   synth                random weights on disk
//   checkpoint_summary   parameters and bytes, for `foredraft info`
//   server/cli/tune.cc   the shapes of the GEMMs
//
// A vendor's other names for the same tensors need no description: ModelKind::rename maps them to these.
// clang-format on
//
// A family that differs from DeepSeek-V3 only in values of ModelConfig is a row of deepseek_v3_families.h. A
// kind with other tensor names or another MTP layout has its own description (it may call
// DescribeDecoderLayer and rename tensors afterwards, as tests/engine/checkpoint/model_variant_test.cc does)
// and a row in engine/kinds/model_kinds.cc. A kind whose layers compute something new also needs its weights
// in LoadedWeights, its recipe in its folder, and any new ops (kernels/ops.h, one implementation per backend,
// a test in tests/ops).
//
// A new form of member is a new alternative of Member: each WeightSource fails to compile until it handles
// it. A new storage format is a file in engine/checkpoint/formats.

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/checkpoint/loaded_weights.h"
#include "engine/checkpoint/model_shard.h"
#include "kernels/tensor.h"
#include "kernels/weight_format.h"

namespace foredraft {

// The role of a tensor. It decides which dtypes a checkpoint may have (F32 and BF16 always) and the random
// values.
enum class TensorKind {
  kNorm,       // vector; random values around 1
  kBias,       // vector; random values around 0
  kEmbedding,  // [V, D]
  kHead,       // [V, D]
  kMatrix,     // a matrix that vendors leave in BF16: router, eh_proj
  kLinear,     // a projection: FP8 where the checkpoint has FP8 blocks
  kResidual,   // a projection whose output is added to the residual stream; FP8 as kLinear
  kIds,        // integers: experts by token id, each below n_routed_experts; I64
  kUnread,     // a copy of another tensor, or a part without effect: may be absent, never loaded
};

// One tensor of the checkpoint.
struct TensorSpec {
  TensorKind kind;
  std::string name;
  std::vector<int64_t> shape;  // row-major; a vector has one size
  std::string scale;           // name of its scales in the checkpoint; empty: it is never quantised
  int expert = -1;        // routed expert it belongs to: only that expert's rank reads it; -1: every rank
  int mtp_module = -1;    // MTP module it belongs to, from 0; -1: the target
  std::string copy_of;    // of kUnread: the tensor that it has to equal if it is present; empty: any values
  WeightFormat format;    // its format where it is quantised; files may still have it in BF16
  bool kept_f32 = false;  // vendors and random checkpoints store it in F32, and the device has it in FP32

  int64_t element_count() const;
  // True if the tensor is quantised in a quantised checkpoint and in random weights.
  bool is_quantised() const { return kind == TensorKind::kLinear || kind == TensorKind::kResidual; }
};

// The member of a model's weights that a weight becomes.
struct VectorMember {  // the tensors (also matrices) one after another in FP32, after `leading_zeros` zeros
  const float** out;
  int leading_zeros = 0;
};
struct TableMember {  // rows in BF16, not packed
  const bf16** out;
};
struct MatrixMember {  // the tensors stacked along n
  PackedWeight* out;
};
struct ExpertsMember {  // per expert, its tensors stacked along n
  PackedWeights* out;
  InputScales* inputs = nullptr;
  // The tensors of all experts of the layer, other ranks' included, expert by expert.
  std::vector<const TensorSpec*> of_layer = {};
};
struct RowGroupsMember {  // the tensor cut along n into `count` matrices of equal height, in BF16
  PackedWeights* out;
  int count;
};
struct IdsMember {  // the table as INT32
  const int32_t** out;
};
struct KvBMember {  // kv_b, both whole and cut per head into W_UK (transposed) and W_UV
  PackedWeight* whole;
  PackedWeights* w_uk;
  PackedWeights* w_uv;
  int head_count;
  int nope;   // rows of a head that are W_UK's
  int value;  // rows of a head that are W_UV's, after those
};
using Member = std::variant<VectorMember, TableMember, IdsMember, MatrixMember, ExpertsMember,
                            RowGroupsMember, KvBMember>;

// A rank's part of a tensor: these rows, and of them these columns.
struct TensorSlice {
  IndexRange rows;
  IndexRange columns;  // a vector has 1
};

// One weight of a rank on its device, and the tensors it is made of.
struct WeightSpec {
  std::string name;  // "shared.gate_up": the same in every layer
  Member member;
  std::vector<const TensorSpec*>
      tensors;           // of experts: the tensors of the rank's first expert, then of its second...
  int expert_count = 1;  // of the rank; 1 for a weight that is not per expert
  // The rank's part of each tensor where the weight is cut; empty: the rank has all tensors whole.
  std::vector<TensorSlice> slices = {};
  // Canonical segments of the whole weight's inputs (PackedWeight::segments); 0: none.
  int32_t segments = 0;

  // The tensors stacked for the rank's expert `index`; all tensors for a weight that is not per expert.
  std::span<const TensorSpec* const> parts(int index = 0) const;
  // The rank's slice of part `index`.
  TensorSlice slice(int index) const;
  // Rows and columns of the whole matrix, or of one expert's matrix.
  int rows() const;
  int columns() const { return static_cast<int>(tensors.front()->shape.back()); }
  // CutRows cuts by outputs: one range of rows per tensor. CutColumns cuts a weight of one tensor by inputs,
  // in canonical segments.
  void CutRows(std::initializer_list<IndexRange> rows);
  void CutColumns(const IndexRange& columns, int32_t segment_unit);
  // Whether the cut goes through a block that shares a scale: no rank can have such a part.
  bool CutsBlocks() const;
  // Records in `packed`, which holds the rank's part of the matrix, which part that is.
  void Mark(PackedWeight& packed) const;
  // True if all tensors are of quantised kinds, so that the fused weight may stay quantised.
  bool is_quantised() const;
};

// Move-only: members and weights point into it.
struct ModelDescription {
  std::string name;           // for errors: the architecture and how many layers and modules config.json has
  WeightFormat projections;   // ModelConfig::projections
  int layer_count = 0;        // of the target
  int expert_count = 0;       // routed experts of a layer
  bool ties_head = false;     // the head is the embedding
  bool nvfp4_inputs = false;  // ModelConfig::nvfp4_inputs
  ModelShard shard;           // the rank's part: `weights` has that alone, `tensors` has the whole model
  std::unique_ptr<LoadedWeights> model = std::make_unique<LoadedWeights>();  // what a WeightSource fills
  std::deque<TensorSpec>
      tensors;  // in the checkpoint's order; scales are not listed: they follow from dtypes
  std::vector<WeightSpec> weights;
  // Tensors with this name ending (left by old converters) are accepted and not read. Empty: none.
  std::string unread_ending;
  // Tensors whose names begin with one of these are accepted and not read: tensors of a drafter that is not
  // described, or of a multimodal model's vision part, which is not served.
  std::vector<std::string> unread_beginnings;
  bool IsOfUnreadPart(std::string_view name) const;
  const TensorSpec* Tensor(TensorSpec tensor);
};

// Root mean square of a random matrix, so that activations stay of order one.
float RandomAmplitude(const TensorSpec& tensor, const ModelDescription& model);

// A random table of kIds: in each row, different experts.
std::vector<int32_t> RandomIds(const TensorSpec& tensor, const ModelDescription& model, uint64_t seed);

}  // namespace foredraft
