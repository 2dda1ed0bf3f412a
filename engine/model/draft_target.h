#pragma once

// The interface by which a target serves a draft head (engine/model/draft_head.h).

#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

class LayerReader {
 public:
  // Submits ops on `stream` that read `hidden`, [R, D]: the residual stream after layer `layer`, for all rows
  // of a target forward.
  virtual void Read(Stream& stream, int layer, Matrix<const float> hidden) const = 0;

 protected:
  ~LayerReader() = default;
};

class DraftTarget {
 public:
  // Makes RunTarget call `reader` after each layer, in order, until the next SetLayerReader. Null ends the
  // calls. `reader` outlives them.
  virtual void SetLayerReader(const LayerReader* reader) = 0;
  virtual const bf16* embed_tokens() const = 0;  // [V, D]

 protected:
  ~DraftTarget() = default;
};

}  // namespace foredraft
