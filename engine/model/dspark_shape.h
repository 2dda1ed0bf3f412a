#pragma once

#include <vector>

namespace foredraft {

// The shape of the DSpark stages with which a checkpoint drafts instead of MTP modules (docs/dspark.md).
struct DSparkShape {
  int block_size = 0;                 // rows of a block: drafts that one forward makes
  int noise_token_id = 0;             // id of all rows of a block except the first
  std::vector<int> target_layer_ids;  // the target's layers whose outputs it reads
  int markov_rank = 0;
  int stage_count = 0;  // 0: config.json does not say, and drafts are refused
};

}  // namespace foredraft
