#ifndef FOREDRAFT_ENGINE_MODEL_DECODER_LAYER_H_
#define FOREDRAFT_ENGINE_MODEL_DECODER_LAYER_H_

// One layer: norm, attention, residual, norm, MLP or experts, residual.

#include "engine/comm/communicator.h"
#include "engine/model/mla.h"

namespace foredraft {

// Updates a.hidden, [R, D]. `comm` joins the ranks that the experts are spread over.
void DecoderLayer(const Ops& ops, Stream& stream, Communicator& comm, const ModelConfig& config,
                  const LayerWeights& w, const Activations& a, const Batch& batch,
                  const AttentionContext& context);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_DECODER_LAYER_H_
