#pragma once

// The batch sizes of decode steps.

#include <string>
#include <vector>

#include "config/config.h"

namespace foredraft {

// Batch sizes with graphs, ascending, the last one max_batch_size: cuda_graph_config.batch_sizes, else
// DefaultBuckets.
std::vector<int> DecodeBuckets(const Config& config);

// Says, for a warning, what becomes of graphs for more than max_batch_size sequences.
std::string CutToSlots(const Config& config);

// Batch sizes that decode steps may have, ascending: DecodeBuckets, also without graphs; with
// cuda_graph_config.enable_padding false every size up to max_batch_size.
std::vector<int> StepSizes(const Config& config);

// 1, 2, 4, 8, then multiples of 8, and `largest` at the end.
std::vector<int> DefaultBuckets(int largest);

}  // namespace foredraft
