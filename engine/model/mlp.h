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

// What families do differently.
struct MoeRecipe {
  // Writes the activations expert_ids and expert_weights of the rows.
  void (*route)(const Forward& f, const MoeWeights& w, const ScoredRows& rows);
  GatedActivation activation = {};
  bool residual = true;     // hidden += experts(x) + shared(x); false: = instead of +=
  bool leaves_sum = false;  // where a norm of hidden comes next, which can add to it (LeftToAdd)
};

// Routes x, runs the chosen experts on the ranks that have them and the shared expert, and adds their outputs
// in order, but for what it returns. x: [R, D], in the forms that router, experts and shared expert read;
// hidden: [R, D]. Without `residual` there is a shared expert. Runs in rounds: of at most MoeRowsAtOnce rows
// per tensor group where all ranks have as many rows, as in a decode step, else of MoePromptRowsAtOnce. All
// ranks take part in as many rounds as the group with the most rows needs. A round exchanges rows once. Where
// this rank's experts have more pairs than there is room for, they run in parts: row ranges that the device
// chooses. The host does not know them, so it submits as many parts as the most pairs need; most are empty. A
// row is in one part: no bit depends on them.
LeftToAdd MixtureOfExperts(const Forward& f, const MoeWeights& w, const MoeRecipe& recipe, const InputRows& x,
                           Matrix<float> hidden);

// Adds to `size` what the activations need for these experts on this device.
void AddExperts(const Device& device, const MoeWeights& w, ActivationSize& size);

}  // namespace foredraft
