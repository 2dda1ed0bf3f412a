#include "engine/kv_budget.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_format.h"

namespace foredraft {

absl::StatusOr<int> BlocksThatFit(const DeviceMemory& memory, int64_t graph_bytes, double fraction,
                                  const KvCacheShape& shape, int sequence_blocks) {
  constexpr double kGiB = 1 << 30;
  const int64_t boundary_bytes =
      int64_t{shape.level_count} * shape.boundary_width * static_cast<int64_t>(sizeof(float));
  const int64_t block_bytes = shape.block_bytes() + boundary_bytes;
  const int64_t budget = static_cast<int64_t>(
      static_cast<double>(std::max<int64_t>(memory.free_bytes - graph_bytes, 0)) * fraction);
  const int64_t blocks = std::min<int64_t>(budget / block_bytes, std::numeric_limits<int32_t>::max());
  if (blocks >= 1 + sequence_blocks) return static_cast<int>(blocks);
  return absl::ResourceExhaustedError(absl::StrFormat(
      "KV cache: %.2f of the %.2f GiB that weights and workspaces leave free (of %.2f), less %.2f for "
      "graphs, is room for %d blocks "
      "of %d tokens (%d bytes each), one request of max_seq_len needs %d: lower max_seq_len, max_batch_size "
      "or max_num_tokens",
      fraction, static_cast<double>(memory.free_bytes) / kGiB, static_cast<double>(memory.total_bytes) / kGiB,
      static_cast<double>(graph_bytes) / kGiB, blocks, shape.tokens_per_block, block_bytes,
      1 + sequence_blocks));
}

}  // namespace foredraft
