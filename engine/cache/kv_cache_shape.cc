#include "engine/cache/kv_cache_shape.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace foredraft {

int64_t KvCacheShape::boundary_bytes() const {
  int64_t bytes = 0;
  for (const SlotRow& row : boundaries) bytes += row.bytes();
  return bytes;
}

int64_t KvCacheShape::window_bytes() const {
  int64_t bytes = 0;
  for (size_t group = 1; group < groups.size(); ++group) {
    bytes += block_counts[group] * groups[group].bytes_per_block;
  }
  return bytes;
}

absl::StatusOr<int> BlocksThatFit(const DeviceMemory& memory, int64_t graph_bytes, double fraction,
                                  const KvCacheShape& shape, int sequence_blocks) {
  constexpr double kGiB = 1 << 30;
  const int64_t block_bytes = shape.block_bytes() + shape.boundary_bytes();
  const int64_t budget = static_cast<int64_t>(
      static_cast<double>(std::max<int64_t>(memory.free_bytes - graph_bytes, 0)) * fraction);
  const int64_t history_bytes = std::max<int64_t>(budget - shape.window_bytes(), 0);
  const int64_t blocks = std::min<int64_t>(history_bytes / block_bytes, std::numeric_limits<int32_t>::max());
  if (blocks >= 1 + sequence_blocks) return static_cast<int>(blocks);
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / kGiB; };
  const std::string taken =
      absl::StrFormat("of %.2f GiB, weights and workspaces take %.2f and graphs %.2f",
                      gib(memory.total_bytes), gib(memory.total_bytes - memory.free_bytes), gib(graph_bytes));
  if (memory.free_bytes <= graph_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no GPU memory for the KV cache: ", taken,
                     ": use more ranks or GPUs with more memory, or lower max_batch_size or max_num_tokens"));
  }
  return absl::ResourceExhaustedError(
      absl::StrFormat("too little GPU memory for the KV cache: %s; free_gpu_memory_fraction %.2f of the rest "
                      "holds %d blocks of %d tokens (%d bytes each), and one request of max_seq_len needs "
                      "%d: lower max_seq_len, max_batch_size or max_num_tokens, or raise the fraction",
                      taken, fraction, blocks, shape.tokens_per_block(), block_bytes, 1 + sequence_blocks));
}

}  // namespace foredraft
