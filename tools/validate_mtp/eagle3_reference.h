#pragma once

// An Eagle3 head with MLA in double, one row at a time, written from docs/eagle3.md alone. If its weights
// round, it also rounds its activations where the recipes do. One thread.

#include <map>
#include <vector>

#include "engine/model/draft_head.h"
#include "tools/validate_mtp/mla_reference.h"
#include "tools/validate_mtp/reference_parts.h"

namespace foredraft::reference {

struct HeadRow {
  int sequence = 0;
  int position = 0;  // at least 1
  int token = 0;
  Vector previous;  // [D]: fused or recycled, at position - 1
  bool decode_form = false;
};

class Eagle3Reference : protected ReferenceParts {
 public:
  // weights: the head's, under the names of DescribeEagle3. target: the target's weights. All outlive this
  // object.
  Eagle3Reference(const DraftHead& head, const Weights& weights, const Weights& target)
      : ReferenceParts(weights, head.layer),
        head_(head),
        target_(target),
        mla_(weights, head.layer, kLayer) {}

  // f of `taps`, [T][D]: the residual stream after each tapped layer.
  Vector Fuse(const std::vector<Vector>& taps) const;
  // The output that the next row takes: g, or o with norm_output. The row attends the rows of its sequence at
  // positions 1 .. its own that ran before; it replaces an earlier row at its position.
  Vector Forward(const HeadRow& row);
  // [Vd], in the order of the head's own ids.
  Vector Logits(const Vector& output) const;

 private:
  static constexpr char kLayer[] = "layers.0.";

  const DraftHead& head_;
  const Weights& target_;
  const MlaReference mla_;
  std::map<int, std::map<int, MlaReference::CachedRow>> cached_;  // by sequence and position
};

// The reference in both precisions.
struct Eagle3References {
  Eagle3Reference exact;
  Eagle3Reference rounded;
};

}  // namespace foredraft::reference
