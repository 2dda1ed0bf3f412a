#include "engine/kv_cache.h"

#include "base/status_macros.h"

namespace foredraft {

KvCacheShape KvCacheShape::Of(const ModelConfig& config, int module_count, int tokens_per_block,
                              int block_count, DType dtype) {
  return {.layer_count = config.num_hidden_layers + module_count,
          .latent_dim = config.kv_lora_rank,
          .rope_dim = config.qk_rope_head_dim,
          .level_count = module_count,
          .boundary_width = config.hidden_size,
          .tokens_per_block = tokens_per_block,
          .block_count = block_count,
          .dtype = dtype};
}

int64_t KvCacheShape::layer_block_bytes() const {
  const KvRowLayout row = {latent_dim, rope_dim, dtype == DType::kF8E4M3};
  return int64_t{tokens_per_block} * row.bytes();
}

int64_t KvCacheShape::block_bytes() const { return layer_count * layer_block_bytes(); }

absl::StatusOr<KvCache> KvCache::Create(Device& device, const KvCacheShape& shape,
                                        const int32_t* block_tables, int table_stride, bool poison) {
  KvCache cache;
  cache.shape_ = shape;
  cache.block_tables_ = block_tables;
  cache.table_stride_ = table_stride;
  const int64_t block_bytes = shape.layer_block_bytes();
  // NaN as BF16, as an E4M3 code and as a scale.
  const std::vector<uint8_t> nan_block(poison ? block_bytes : 0, 0xff);
  const auto stream = device.CreateStream();
  for (int layer = 0; layer < shape.layer_count; ++layer) {
    ASSIGN_OR_RETURN(uint8_t* const memory, device.AllocateArray<uint8_t>(shape.block_count * block_bytes));
    cache.layers_.push_back(memory);
    for (int block = 0; poison && block < shape.block_count; ++block) {
      device.CopyToDevice(*stream, memory + block * block_bytes, nan_block.data(), nan_block.size());
    }
  }
  for (int level = 0; level < shape.level_count; ++level) {
    ASSIGN_OR_RETURN(float* const memory,
                     device.AllocateArray<float>(size_t(shape.block_count) * shape.boundary_width));
    cache.boundaries_.push_back(Dense(memory, shape.block_count, shape.boundary_width));
  }
  stream->Synchronize();
  return cache;
}

KvLayer KvCache::layer(int index) const {
  return {.data = layers_[index],
          .block_tables = block_tables_,
          .table_stride = table_stride_,
          .block_count = shape_.block_count,
          .tokens_per_block = shape_.tokens_per_block,
          .latent_dim = shape_.latent_dim,
          .rope_dim = shape_.rope_dim,
          .dtype = shape_.dtype};
}

void KvCache::CopyBlockToHost(Device& device, Stream& stream, int block, uint8_t* host) const {
  const int64_t bytes = shape_.layer_block_bytes();
  for (const uint8_t* const layer : layers_) {
    device.CopyToHost(stream, host, layer + block * bytes, bytes);
    host += bytes;
  }
}

void KvCache::CopyBlockToDevice(Device& device, Stream& stream, int block, const uint8_t* host) const {
  const int64_t bytes = shape_.layer_block_bytes();
  for (uint8_t* const layer : layers_) {
    device.CopyPinnedToDevice(stream, layer + block * bytes, host, bytes);
    host += bytes;
  }
}

}  // namespace foredraft
