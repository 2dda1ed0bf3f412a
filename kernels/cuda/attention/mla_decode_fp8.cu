// mla_decode with FP8 products for Hopper: E4M3 wgmma over tiles of 64 keys as they lie in the cache
// (docs/invariants.md section 3), warp-specialised.
//
// Two consumer warpgroups and a producer. The consumers take turns in scores and softmax of tiles, for 64
// heads, and each adds all tiles to 256 of the 512 latent columns of the output: so one group's products keep
// the tensor cores busy during the other one's softmax. A tile's codes, RoPE parts and scales come in two
// loads by TMA, or row by row; with three stages the next tile is on its way while two are in use. One warp
// of the producer converts the scales to factors of keys and of weights (TileScales).
//
// Registers allow a thread 128 accumulators of outputs, which are FP32 from tile to tile, and besides 64 for
// a tile's scores or 64 for its values and their products. V is transposed on its way into registers
// (mla_decode_fp8_values.h): in shared memory that would take another write and read, and shared memory
// already limits all products (docs/predictions.md).
//
// A row alone fixes its tiles, and each sum has one order, so neither other rows nor the number of heads
// change its bits.

#include "kernels/cuda/attention/mla_decode_fp8_consumer.h"
#include "kernels/cuda/attention/mla_decode_fp8_producer.h"

namespace foredraft::cuda {
namespace fp8_decode {
namespace {

// kBlocks: blocks of a cluster, 1 or 2.
template <KeySource source, int kBlocks>
__global__ void __launch_bounds__(kThreads, 1) MlaDecodeFp8(const __grid_constant__ Fp8DecodePlan p) {
  auto& shared = SharedStorage<Fp8DecodeShared>();
  if (threadIdx.x == 0) {
    if (source == KeySource::kPages) {
      PrefetchTensorMap(p.codes);
      PrefetchTensorMap(p.scales);
      PrefetchTensorMap(p.rope);
    }
    MbarrierInit(shared.item_full, 1);
    MbarrierInit(shared.item_empty, 2 * kGroupWarps);
    for (int stage = 0; stage < kStages; ++stage) {
      MbarrierInit(shared.scaled[stage], 1);
      MbarrierInit(shared.weights_ready[stage], kGroupWarps);
      for (int load = 0; load < kLoads; ++load) {
        MbarrierInit(shared.full[stage][load], source == KeySource::kPages ? 1 : kRowWarps);
        MbarrierInit(shared.empty[stage][load], kBlocks * 2 * kGroupWarps);
      }
    }
    FenceMbarrierInit();
  }
  if constexpr (kBlocks > 1) {
    ClusterStart();
  } else {
    __syncthreads();
  }
  GridDependencySync();
  if (threadIdx.x >= kConsumerThreads) {
    WarpgroupRegDealloc<56>();
    Produce<source, kBlocks>(p, shared);
  } else {
    WarpgroupRegAlloc<224>();
    Fp8Item<kBlocks> attention(p.plan, shared);
    while (attention.Run()) {
    }
  }
  if constexpr (kBlocks > 1)
    ClusterSync();  // the other block writes into this one's shared memory until then
}

// Maps of the parts of the cache's rows.
void MapRows(const KvLayer& layer, Fp8DecodePlan& p) {
  const uint64_t row_bytes = kRow.bytes();
  const uint64_t rows = static_cast<uint64_t>(layer.block_count) * layer.tokens_per_block;
  const uint32_t page_rows = static_cast<uint32_t>(p.page_rows);
  p.codes = EncodeTensorMap({.data = layer.data,
                             .element_bytes = 1,
                             .extent = {kTileRowBytes, rows, kScaleGroups},
                             .pitch = {row_bytes, kTileRowBytes},
                             .box = {kTileRowBytes, page_rows, p.page_rows == kKeyTile ? kLoadGroups : 1u},
                             .swizzled = true});
  p.scales = EncodeTensorMap({.data = layer.data + kRow.scale_offset(),
                              .element_bytes = sizeof(float),
                              .extent = {kScaleGroups, rows, 1},
                              .pitch = {row_bytes, row_bytes},
                              .box = {kScaleGroups, page_rows, 1},
                              .swizzled = false});
  p.rope = EncodeTensorMap({.data = layer.data + kRow.rope_offset(),
                            .element_bytes = sizeof(bf16),
                            .extent = {64, rows, 1},
                            .pitch = {row_bytes, row_bytes},
                            .box = {64, page_rows, 1},
                            .swizzled = true});
}

}  // namespace
}  // namespace fp8_decode

void LaunchDecodeFp8(Stream& stream, const DecodePlan& plan, int32_t blocks) {
  using namespace fp8_decode;
  const MlaDecodeParams& op = plan.op;
  const bool by_pages = op.selected == nullptr && hopper_decode::LoadsPages(op.layer);
  Fp8DecodePlan p = {
      .plan = plan, .codes = {}, .scales = {}, .rope = {}, .page_rows = hopper_decode::PageRows(op.layer)};
  if (by_pages) MapRows(op.layer, p);
  const bool pairs = plan.pairs && plan.head_tiles % 2 == 0 && by_pages;
  const LaunchShape shape = {.grid = dim3(blocks),
                             .block = dim3(kThreads),
                             .shared_bytes = sizeof(Fp8DecodeShared),
                             .cluster = pairs ? 2u : 1u};
  Launch(stream,
         pairs      ? MlaDecodeFp8<KeySource::kPages, 2>
         : by_pages ? MlaDecodeFp8<KeySource::kPages, 1>
                    : MlaDecodeFp8<KeySource::kRows, 1>,
         shape, p);
}

}  // namespace foredraft::cuda
