#include "engine/kv_cache.h"

#include "base/status_macros.h"

namespace foredraft {

KvCacheShape KvCacheShape::Of(const ModelConfig& config, int module_count, int tokens_per_block,
                              int block_count) {
  return {.layer_count = config.num_hidden_layers + module_count,
          .latent_dim = config.kv_lora_rank,
          .rope_dim = config.qk_rope_head_dim,
          .level_count = module_count,
          .boundary_width = config.hidden_size,
          .tokens_per_block = tokens_per_block,
          .block_count = block_count};
}

int64_t KvCacheShape::block_bytes() const {
  return int64_t{layer_count} * tokens_per_block * (latent_dim + rope_dim) *
         static_cast<int64_t>(sizeof(bf16));
}

absl::StatusOr<KvCache> KvCache::Create(Device& device, const KvCacheShape& shape,
                                        const int32_t* block_tables, int table_stride, bool poison) {
  KvCache cache;
  cache.shape_ = shape;
  cache.block_tables_ = block_tables;
  cache.table_stride_ = table_stride;
  const size_t elements = shape.block_count * cache.layer_block_elements();
  const std::vector<bf16> nan_block(poison ? cache.layer_block_elements() : 0, bf16{0x7fc0});
  const auto stream = device.CreateStream();
  for (int layer = 0; layer < shape.layer_count; ++layer) {
    ASSIGN_OR_RETURN(bf16* const memory, device.AllocateArray<bf16>(elements));
    cache.layers_.push_back(memory);
    for (int block = 0; poison && block < shape.block_count; ++block) {
      device.CopyToDevice(*stream, memory + block * cache.layer_block_elements(), nan_block.data(),
                          nan_block.size() * sizeof(bf16));
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

int64_t KvCache::layer_block_elements() const {
  return int64_t{shape_.tokens_per_block} * (shape_.latent_dim + shape_.rope_dim);
}

KvLayer KvCache::layer(int index) const {
  return {.data = layers_[index],
          .block_tables = block_tables_,
          .table_stride = table_stride_,
          .block_count = shape_.block_count,
          .tokens_per_block = shape_.tokens_per_block,
          .latent_dim = shape_.latent_dim,
          .rope_dim = shape_.rope_dim};
}

void KvCache::CopyBlockToHost(Device& device, Stream& stream, int block, uint8_t* host) const {
  const size_t bytes = layer_block_elements() * sizeof(bf16);
  for (bf16* const layer : layers_) {
    device.CopyToHost(stream, host, layer + block * layer_block_elements(), bytes);
    host += bytes;
  }
}

void KvCache::CopyBlockToDevice(Device& device, Stream& stream, int block, const uint8_t* host) const {
  const size_t bytes = layer_block_elements() * sizeof(bf16);
  for (bf16* const layer : layers_) {
    device.CopyPinnedToDevice(stream, layer + block * layer_block_elements(), host, bytes);
    host += bytes;
  }
}

}  // namespace foredraft
