#include "config/decode_buckets.h"

#include <numeric>

#include "absl/strings/str_format.h"

namespace foredraft {

std::vector<int> DefaultBuckets(int largest) {
  std::vector<int> buckets;
  for (int size = 1; size < largest; size += size < 8 ? size : 8) buckets.push_back(size);
  buckets.push_back(largest);
  return buckets;
}

std::vector<int> DecodeBuckets(const Config& config) {
  if (!config.cuda_graph_config || config.cuda_graph_config->batch_sizes.empty()) {
    return DefaultBuckets(config.max_batch_size);
  }
  std::vector<int> buckets;
  for (const int size : config.cuda_graph_config->batch_sizes) {
    if (size < config.max_batch_size) buckets.push_back(size);
  }
  buckets.push_back(config.max_batch_size);
  return buckets;
}

std::string CutToSlots(const Config& config) {
  return absl::StrFormat(
      "cut to max_batch_size, %d: a rank decodes at most so many sequences at once, further requests wait "
      "(TensorRT-LLM's default of max_batch_size is 2048)",
      config.max_batch_size);
}

std::vector<int> StepSizes(const Config& config) {
  if (!config.cuda_graph_config || config.cuda_graph_config->enable_padding) return DecodeBuckets(config);
  std::vector<int> sizes(config.max_batch_size);
  std::iota(sizes.begin(), sizes.end(), 1);
  return sizes;
}

}  // namespace foredraft
