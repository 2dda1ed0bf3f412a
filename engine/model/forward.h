#pragma once

// What every recipe of every family needs, as one argument. A view: the model builds one per forward, and all
// referents outlive that forward.

#include "engine/checkpoint/model_shard.h"
#include "engine/comm/communicator.h"
#include "engine/model/activations.h"
#include "engine/model/batch.h"
#include "engine/model/model_config.h"
#include "kernels/ops.h"

namespace foredraft {

struct Forward {
  const Ops& ops;
  Stream& stream;
  Communicator& comm;  // joins all ranks
  const ModelShard& shard;
  const ModelConfig& config;
  const Activations& activations;
  const Batch& batch;

  int rows() const { return batch.index.rows; }
  float norm_eps() const { return static_cast<float>(config.rms_norm_eps); }
  // This forward with its ops on another stream.
  Forward On(Stream& other) const { return {ops, other, comm, shard, config, activations, batch}; }
};

}  // namespace foredraft
