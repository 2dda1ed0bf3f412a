#pragma once

// DSpark in double (docs/dspark.md sections 2 and 3), beginning at the outputs of the target's layers: the
// reference with which `foredraft validate-mtp` compares a device. Like MtpReference, it rounds its
// activations if its weights round. One thread.

#include <vector>

#include "tools/validate_mtp/v4_layer_reference.h"

namespace foredraft::reference {

// The streams of one block's rows.
using BlockStreams = std::vector<Vector>;  // [G][N D]

class DSparkReference : private ReferenceParts {
 public:
  // `weights` is a checkpoint with DSpark stages. It and the configuration outlive the reference.
  DSparkReference(const Weights& weights, const ModelConfig& config);

  int stage_count() const { return static_cast<int>(stages_.size()); }

  // Section 2. Tap: the tap [D] of a layer's output [N D]. MainX: main_x [D] of a row's taps [T D].
  // ContextKey: the key that a stage keeps of main_x at the row's position.
  Vector Tap(const Vector& streams) const;
  Vector MainX(const Vector& taps) const;
  Vector ContextKey(int stage, const Vector& main_x, int position) const;

  // Section 3. The streams with which the block after `token` begins.
  BlockStreams Seed(int token) const;
  // A stage's output. position: P, of the block's first row. context: the stage's keys at max(0, P - W) .. P
  // - 1.
  BlockStreams Stage(int stage, const BlockStreams& streams, int position,
                     const std::vector<Vector>& context);
  // How each row of the last Stage chose its experts.
  const std::vector<ExpertChoice>& choices() const { return choices_; }

  // U, [V]: the logits of a row of the last stage's output, without the bias.
  Vector Logits(const Vector& streams) const;
  // What the Markov head adds to the logits of the token after `token`, [V].
  Vector Bias(int token) const;

 private:
  std::vector<V4LayerReference> stages_;
  std::vector<ExpertChoice> choices_;  // [G]
};

}  // namespace foredraft::reference
