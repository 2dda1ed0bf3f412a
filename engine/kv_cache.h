#pragma once

// The bytes of a rank's cache, in groups of blocks (engine/cache_groups.h): a block has the rows of
// tokens_per_block positions of every layer of its group, target and MTP. Blocks of group 0, the history,
// also have the boundary of their last position (docs/speculation.md section 0). The scheduler decides which
// sequence has which blocks. Owner: Rank. Thread: the one that submits plans.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache_groups.h"
#include "engine/engine_options.h"
#include "engine/host_frames.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"

namespace foredraft {

struct KvCacheShape {
  std::vector<CacheGroup> groups;  // the history first
  std::vector<int> block_counts;   // of each group, scratch included
  int level_count = 0;             // MTP modules in use, M; 0 = no boundaries
  int boundary_width = 0;          // Model::output_width
  // DeepSeek-V3's rows.
  int latent_dim = 0;
  int rope_dim = 0;
  DType dtype = DType::kBF16;  // of the latents: KvLayer::dtype

  static KvCacheShape Of(const ModelConfig& config, int module_count, int tokens_per_block,
                         std::vector<int> block_counts, DType dtype);
  // history_blocks: of group 0, scratch included; the others follow from the options. 1: every group has the
  // scratch block alone; of DeepSeek-V4, whose ops read no unmapped rows, one more.
  static KvCacheShape Of(const EngineOptions& options, const ModelConfig& config, int history_blocks);

  int tokens_per_block() const { return groups[0].tokens_per_block; }  // of the history
  // Of one block of a group in all layers; the boundary not counted.
  int64_t block_bytes(int group = 0) const { return groups[group].bytes_per_block; }
  // Of one history block's boundary: the outputs at its last position.
  int64_t boundary_bytes() const {
    return int64_t{level_count} * boundary_width * static_cast<int64_t>(sizeof(float));
  }
  // Of all groups but the history.
  int64_t window_bytes() const;
  // Of everything.
  int64_t total_bytes() const {
    return block_counts[0] * (block_bytes() + boundary_bytes()) + window_bytes();
  }
};

// The values of one position that an engine hands from a level to the next: D, or all of V4's streams.
int OutputWidth(const ModelConfig& config);

// A group's block table of every slot, in device memory.
struct GroupTable {
  const int32_t* entries = nullptr;  // [slots, stride]
  int32_t stride = 0;
};

// The cache of one layer of DeepSeek-V4 (docs/deepseek-v4.md section 10).
struct V4LayerCache {
  PagedRows<bf16> keys;           // by position
  PagedRows<bf16> entries;        // by window; absent in layers of ratio 0
  PagedRows<float> state;         // by position; likewise
  PagedRows<bf16> index_entries;  // by window; of CSA layers
  PagedRows<float> index_state;   // by position; of CSA layers
};

class KvCache {
 public:
  // tables: of each group; their memory outlives the cache. poison: see EngineOptions.
  static absl::StatusOr<KvCache> Create(Device& device, const KvCacheShape& shape,
                                        std::span<const GroupTable> tables, bool poison);

  KvLayer layer(int index) const;  // DeepSeek-V3
  // DeepSeek-V4: [num_hidden_layers], then the MTP modules.
  std::span<const V4LayerCache> v4_layers() const { return v4_layers_; }
  const KvCacheShape& shape() const { return shape_; }

  // Output of level 0..M-1 at the last position of each history block: [block_count, boundary_width] f32.
  // Absent without MTP.
  Matrix<float> boundaries(int level) const {
    return boundaries_.empty() ? Matrix<float>{} : boundaries_[level];
  }

  // One block of all layers to or from `host`, which is written or read when the stream reaches the copy.
  void CopyBlockToHost(Device& device, Stream& stream, int group, int block, const HostFrames& host) const;
  void CopyBlockToDevice(Device& device, Stream& stream, int group, int block, const HostFrames& host) const;

  // Fills all rows with NaN.
  void Poison(Device& device, Stream& stream) const;

 private:
  // The memory of some rows: [block_count of their group, rows.bytes()].
  struct RowMemory {
    LayerRows rows;
    uint8_t* data = nullptr;
  };

  void AddV4Rows(const RowMemory& memory, const GroupTable& table);
  template <class Copy>
  void ForEachPiece(int group, int block, const HostFrames& host, const Copy& copy) const;

  KvCacheShape shape_;
  std::vector<std::vector<RowMemory>> memory_;  // of each group
  std::vector<Matrix<float>> boundaries_;       // [M], each [block_count, boundary_width]
  GroupTable history_table_;
  std::vector<V4LayerCache> v4_layers_;
};

}  // namespace foredraft
