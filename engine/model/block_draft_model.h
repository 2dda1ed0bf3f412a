#pragma once

#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace foredraft {

// The heads of a model whose own drafter makes all drafts of a step in one forward of blocks
// (docs/dspark.md). Its stages are levels of Model; MarkovBias is added to the Logits of the last one.
class BlockDraftModel {
 public:
  // bias: [rows, V], what the drafter's Markov head adds to the logits of the token after each of `ids`.
  virtual void MarkovBias(Stream& stream, const int32_t* ids, Matrix<float> bias) const = 0;

  // Writes the confidence in draft p.draft_index of each sequence to p.outputs and p.slots. It is made from
  // rows first_row.. of the hidden states of the last Model::Logits call and from the tokens of the last
  // MarkovBias call.
  virtual void Confidence(Stream& stream, int first_row, const DraftConfidenceParams& p) const = 0;

 protected:
  ~BlockDraftModel() = default;
};

}  // namespace foredraft
