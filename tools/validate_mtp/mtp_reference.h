#pragma once

// The first MTP module of a checkpoint in double, one row at a time: the reference that `foredraft
// validate-mtp` compares a device with. Written from docs/deepseek-v3.md sections 5 and 9 and
// docs/deepseek-v4.md section 6 alone. tests/tools/mtp_reference_test.cc compares it with the goldens.
//
// Over rounding weights (Weights::Precision::kBf16) it also rounds its activations wherever the recipes do:
// its distance from the exact one is what BF16 costs.
//
// W is the width of what the module takes and gives: D, for DeepSeek-V4 the streams, N D. Positions are those
// of a row's token. One thread.

#include <memory>
#include <utility>

#include "tools/validate_mtp/reference_parts.h"

namespace foredraft::reference {

struct MtpRow {
  int sequence = 0;
  int position = 0;  // at least 1
  int token = 0;
  Vector previous;  // [W]: of the target or the module, at position - 1
  // The positions that it attends, ascending, where it sees more than index_topk. Empty: those that the
  // reference selects.
  std::vector<int> attended;
  // In the decode form (docs/deepseek-v3.md section 3): what rounds is another value, the exact one is equal.
  bool decode_form = false;
};

class MtpReference : protected ReferenceParts {
 public:
  // The weights and the configuration outlive it.
  static std::unique_ptr<MtpReference> Create(const Weights& weights, const ModelConfig& config);
  virtual ~MtpReference() = default;

  // The projection of embedding and previous output: [D], or the streams [N D].
  virtual Vector Project(const MtpRow& row) const = 0;
  // The decoder layer of what the projection gave. The row attends the rows of its sequence that went through
  // Layer before, at positions 1 .. position; a row at a position that was there replaces it.
  virtual Vector Layer(const MtpRow& row, const Vector& projected) = 0;
  // What the next recycled row and the logits take: for V3 the layer's output normed.
  virtual Vector Output(const Vector& layer_output) const = 0;
  // [V].
  virtual Vector Logits(const Vector& output) const = 0;

  Vector Forward(const MtpRow& row) { return Output(Layer(row, Project(row))); }

  // The experts that the last Layer chose.
  const ExpertChoice& choice() const { return choice_; }
  // By which the row of the last Layer selects positions: of 1 .. its own. Empty where it attends all of
  // them.
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
