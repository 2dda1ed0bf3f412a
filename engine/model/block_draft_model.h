#pragma once

#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace foredraft {

// What a model has beside Model's levels whose own drafter makes all drafts of a step in one forward of
// blocks (docs/dspark.md). The stages are levels; Logits of the last one are the heads' common part.
class BlockDraftModel {
 public:
  // bias: [rows, V], what the drafter's Markov head adds to the logits of the token after each of `ids`.
  virtual void MarkovBias(Stream& stream, const int32_t* ids, Matrix<float> bias) const = 0;

  // The confidence in draft p.draft_index of each sequence, for p.outputs and p.slots. Its hidden states are
  // rows `first_row`.. of the last call of Model::Logits, its tokens those of the last call of MarkovBias.
  virtual void Confidence(Stream& stream, int first_row, const DraftConfidenceParams& p) const = 0;

 protected:
  ~BlockDraftModel() = default;
};

}  // namespace foredraft
