#pragma once

// The head of a checkpoint of its own that drafts for a target (docs/eagle3.md): one decoder layer with MLA
// over the target's embedding and the hidden states of some of its layers. Plain: its drafter's kind reads it
// (engine/spec/eagle3).

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model_config.h"

namespace foredraft {

struct DraftHead {
  std::string dir;    // of the checkpoint
  ModelConfig layer;  // the sizes, norms and rotation of its layer; hidden_size and vocab_size: the target's
  // The target's layers whose outputs it reads, from 0, ascending: the residual stream behind the layer.
  std::vector<int> taps;
  bool assumed_taps = false;  // neither its config.json nor the configuration says which
  int draft_vocab_size = 0;   // Vd, tokens that it can choose
  // [Vd] the token of each, where it is not the token of the same id; empty: all V tokens, in order.
  std::vector<int32_t> token_ids;
  bool own_lm_head = true;            // false: logits by the target's
  bool norm_before_residual = false;  // the layer's residual is the normed hidden half
  bool norm_before_fc = false;        // one norm over all taps before fc
  bool fc_norm = false;               // a norm of each tap before fc
  bool norm_output = false;           // the next draft takes the normed output
};

// ", reading layers 1, 29, 57"; empty without a head.
std::string TapsText(const ModelConfig& model);

}  // namespace foredraft
