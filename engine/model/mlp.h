#pragma once

// The MLP half of a layer: dense, or a mixture of experts (docs/deepseek-v3.md 3.4, docs/deepseek-v4.md 5).

#include "engine/model/forward.h"
#include "engine/model/linear.h"
#include "engine/model/weights.h"

namespace foredraft {

// out = down(activation(gate x, up x)). out and x: [R, D]. Uses the activations gate_up and activated.
void DenseMlp(const Forward& f, const DenseMlpWeights& w, GatedActivation activation, const InputRows& x,
              Matrix<float> out);

// Rows whose experts are to be chosen.
struct ScoredRows {
  Matrix<const float> logits;    // [R, E]: the router's
  RowIndex index;                // [R]
  const int32_t* ids = nullptr;  // [R]: their tokens
};

// The differences between families.
struct MoeRecipe {
  // Writes the activations expert_ids and expert_weights of the rows.
  void (*route)(const Forward& f, const MoeWeights& w, const ScoredRows& rows);
  GatedActivation activation = {};
  bool residual = true;     // hidden += experts(x) + shared(x); false: = instead of +=
  bool leaves_sum = false;  // a norm of hidden comes next, which can add the sum (LeftToAdd)
};

// Routes x, runs the shared expert and, on the ranks that have them, the chosen experts, and adds their
// outputs in order; returns sums that are left to add. x: [R, D], in the forms that router, experts and
// shared expert read; hidden: [R, D]. Without `residual` the model must have a shared expert. Runs in rounds
// of at most MoeRowsAtOnce rows per tensor group if all ranks have equally many rows, as in a decode step,
// else of at most MoePromptRowsAtOnce. All ranks take part in as many rounds as the group with the most rows
// needs. Each round exchanges rows once. If this rank's experts have more pairs than it has room for, they
// run in parts, which are row ranges that the device chooses. The host does not know the ranges, so it
// submits as many parts as the most pairs would need; most are empty. Each row is in one part, so no bit
// depends on the parts.
LeftToAdd MixtureOfExperts(const Forward& f, const MoeWeights& w, const MoeRecipe& recipe, const InputRows& x,
                           Matrix<float> hidden);

// Adds to `size` what these experts need of the activations on this device.
void AddExperts(const Device& device, const MoeWeights& w, ActivationSize& size);

}  // namespace foredraft
