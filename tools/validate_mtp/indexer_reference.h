#pragma once

// The indexer of sparse attention (docs/deepseek-v3.md section 9) in double: the scores by which a row of an
// MTP module chooses the positions that it attends. One thread.

#include <map>
#include <string>
#include <vector>

#include "tools/validate_mtp/reference_parts.h"

namespace foredraft::reference {

class IndexerReference : private ReferenceParts {
 public:
  // module: the beginning of its tensors' names. frequencies, rope_factor: those of the layer's attention.
  // The weights and the configuration outlive this object.
  IndexerReference(const Weights& weights, const ModelConfig& config, std::string module, Vector frequencies,
                   double rope_factor);

  // The key of a row whose normed input is `x`, [index_head_dim].
  Vector Key(const Vector& x, int position) const;

  // The score of each of `keys`, in their order, for a row at `position` with normed input x and normed query
  // latent.
  Vector Scores(const Vector& x, const Vector& latent, int position,
                const std::vector<std::span<const double>>& keys) const;

 private:
  std::string Name(const std::string& name) const { return module_ + "." + name; }
  // A head with its first values rotated by `position`, rounded as it is stored.
  Vector Rotated(std::span<const double> head, int position) const;

  const std::string module_;
  const Vector frequencies_;
  const double rope_factor_;
};

// By how much the positions that a device chose contradict exact scores: 0 if they are `count` positions with
// the highest scores, else the score of the best position left out minus that of the worst one chosen;
// infinity if `chosen` is not a list of `count` ascending positions from 1 on. scores: of positions 1, 2, ...
double SelectionGap(const Vector& scores, const std::vector<int>& chosen, int count);

}  // namespace foredraft::reference
