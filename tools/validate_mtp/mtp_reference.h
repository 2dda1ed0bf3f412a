#pragma once

// The first MTP module of a checkpoint in double, one row at a time: the reference with which `foredraft
// validate-mtp` compares a device. Written from docs/deepseek-v3.md sections 5 and 9 and docs/deepseek-v4.md
// section 6 alone. tests/tools/mtp_reference_test.cc compares it with the goldens.
//
// If its weights round (Weights::Precision::kBf16), it also rounds its activations wherever the recipes do;
// its distance from the exact reference is the error of BF16.
//
// W is the width of the module's input and output: D, or N D (the streams) for DeepSeek-V4. A row's position
// is that of its token. One thread.

#include <memory>
#include <utility>

#include "tools/validate_mtp/reference_parts.h"

namespace foredraft::reference {

struct MtpRow {
  int sequence = 0;
  int position = 0;  // at least 1
  int token = 0;
  Vector previous;  // [W]: output of the target or the module at position - 1
  // The positions that it attends, ascending, if it sees more than index_topk. Empty: the reference selects
  // them.
  std::vector<int> attended;
  // Whether the row runs in the decode form (docs/deepseek-v3.md section 3), which rounds at other places;
  // the exact value is the same.
  bool decode_form = false;
};

class MtpReference : protected ReferenceParts {
 public:
  // The weights and the configuration outlive the reference.
  static std::unique_ptr<MtpReference> Create(const Weights& weights, const ModelConfig& config);
  virtual ~MtpReference() = default;

  // The projection of embedding and previous output: [D], or the streams [N D].
  virtual Vector Project(const MtpRow& row) const = 0;
  // The decoder layer's output for Project's result. The row attends the rows of its sequence at positions 1
  // .. position that went through Layer before; it replaces an earlier row at its position.
  virtual Vector Layer(const MtpRow& row, const Vector& projected) = 0;
  // The input of the next recycled row and of the logits: for V3, the normed output of the layer.
  virtual Vector Output(const Vector& layer_output) const = 0;
  // [V].
  virtual Vector Logits(const Vector& output) const = 0;

  Vector Forward(const MtpRow& row) { return Output(Layer(row, Project(row))); }

  // The experts that the last Layer chose.
  const ExpertChoice& choice() const { return choice_; }
  // The scores of positions 1 .. its own by which the row of the last Layer selects positions. Empty if it
  // attends all of them.
  const Vector& position_scores() const { return position_scores_; }

 protected:
  MtpReference(const Weights& weights, const ModelConfig& config) : ReferenceParts(weights, config) {}

  void NoteChoice(ExpertChoice choice) { choice_ = std::move(choice); }
  void NoteScores(Vector scores) { position_scores_ = std::move(scores); }

 private:
  ExpertChoice choice_;
  Vector position_scores_;
};

std::unique_ptr<MtpReference> CreateV3Reference(const Weights& weights, const ModelConfig& config);
std::unique_ptr<MtpReference> CreateV4Reference(const Weights& weights, const ModelConfig& config);

}  // namespace foredraft::reference
