#ifndef FOREDRAFT_ENGINE_KV_CACHE_H_
#define FOREDRAFT_ENGINE_KV_CACHE_H_

// The bytes of a rank's KV blocks: a block holds tokens_per_block positions of every layer, target and MTP,
// and the boundary of its last position (docs/speculation.md section 0). The scheduler decides which sequence
// has which blocks (scheduler/kv_block_pool.h). Owner: Rank. Thread: the one that submits plans.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "kernels/device.h"

namespace foredraft {

struct KvCacheShape {
  int layer_count = 0;  // target layers, then MTP modules
  int latent_dim = 0;
  int rope_dim = 0;
  int level_count = 0;     // MTP modules in use, M; 0 = no boundaries
  int boundary_width = 0;  // hidden size
  int tokens_per_block = 0;
  int block_count = 0;
  DType dtype = DType::kBF16;  // of the latents: KvLayer::dtype

  static KvCacheShape Of(const ModelConfig& config, int module_count, int tokens_per_block, int block_count,
                         DType dtype);
  // Of one block in one layer.
  int64_t layer_block_bytes() const;
  // Of one block in all layers; the boundary not counted.
  int64_t block_bytes() const;
  // Of one block's boundary: the outputs at its last position.
  int64_t boundary_bytes() const {
    return int64_t{level_count} * boundary_width * static_cast<int64_t>(sizeof(float));
  }
};

class KvCache {
 public:
  // block_tables: [slots, table_stride], device memory that outlives the cache. poison: see EngineOptions.
  static absl::StatusOr<KvCache> Create(Device& device, const KvCacheShape& shape,
                                        const int32_t* block_tables, int table_stride, bool poison);

  KvLayer layer(int index) const;
  const KvCacheShape& shape() const { return shape_; }

  // Output of level 0..M-1 at the last position of each block: [block_count, D] f32. Absent without MTP.
  Matrix<float> boundaries(int level) const {
    return boundaries_.empty() ? Matrix<float>{} : boundaries_[level];
  }

  // One block of all layers to or from block_bytes() of Device::AllocatePinned, which are written or read
  // when the stream reaches the copy.
  void CopyBlockToHost(Device& device, Stream& stream, int block, uint8_t* host) const;
  void CopyBlockToDevice(Device& device, Stream& stream, int block, const uint8_t* host) const;

 private:
  KvCacheShape shape_;
  std::vector<uint8_t*> layers_;           // each [block_count, layer_block_bytes]
  std::vector<Matrix<float>> boundaries_;  // [M], each [block_count, D]
  const int32_t* block_tables_ = nullptr;
  int32_t table_stride_ = 0;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_KV_CACHE_H_
