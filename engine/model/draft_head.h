#pragma once

// A draft head: a checkpoint of its own that drafts for a target (docs/eagle3.md), with one decoder layer
// with MLA over the target's embedding and the hidden states of some target layers. Plain data; the drafter's
// kind fills it (engine/spec/eagle3).

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model_config.h"

namespace foredraft {

struct DraftHead {
  std::string dir;    // of the checkpoint
  ModelConfig layer;  // its layer's sizes, norms and rotation; hidden_size and vocab_size are the target's
  // The target's layers whose outputs (the residual stream after the layer) it reads, counted from 0,
  // ascending.
  std::vector<int> taps;
  bool assumed_taps = false;  // neither its config.json nor the configuration names them
  int draft_vocab_size = 0;   // Vd: the number of tokens that it can choose
  // [Vd] the target's token of each of the head's ids; empty: the head's ids are the target's, all V of them.
  std::vector<int32_t> token_ids;
  bool own_lm_head = true;            // false: uses the target's lm_head
  bool norm_before_residual = false;  // the layer's residual is the normed hidden half
  bool norm_before_fc = false;        // one norm over all taps before fc
  bool fc_norm = false;               // a norm of each tap before fc
  bool norm_output = false;           // the next draft takes the normed output
};

// ", reading layers 1, 29, 57"; empty without a head.
std::string TapsText(const ModelConfig& model);

}  // namespace foredraft
