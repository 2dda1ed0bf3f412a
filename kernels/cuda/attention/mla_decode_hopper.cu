// mla_decode_items.cu for Hopper: wgmma over tiles of 64 keys, warp-specialised.
//
// A block has two consumer warpgroups and a producer. For pages of BF16 rows the producer is two warps, which
// load them by TMA; for single rows (BF16 on a list, or FP8) it is a whole warpgroup, which copies or decodes
// them into the same tiles (mla_decode_producer.h). Two blocks with the same keys share them (BringerOf). For
// 64 heads, consumer group w computes the scores of every second tile, those in stage w, and over all tiles
// 256 of the 512 latent columns of the output. So one group's products keep the tensor cores busy during the
// other one's softmax (the "seesaw" of FlashMLA). A tile's weights take the place of its RoPE chunk, which
// only its scores need, and the running softmax goes from group to group: thread i of both groups has the
// same two heads, 16 (warp % 4) + lane / 4 and the one 8 further.
//
// Every score and every output is the same chain of k16 products as in mla_decode_items.cu; all other
// arithmetic is the same, in the same order.

#include "kernels/cuda/attention/mla_decode_consumer.h"
#include "kernels/cuda/attention/mla_decode_producer.h"

namespace foredraft::cuda {
namespace hopper_decode {
namespace {

// Arrivals at the mbarrier of a load: of the thread that starts it, or of the warps that fill the tile.
constexpr uint32_t Arrivals(KeySource source) {
  return source == KeySource::kPages  ? 1
         : source == KeySource::kRows ? RowKeyProducer::kStageWarps
                                      : kGroupWarps;
}

// kBlocks: blocks of a cluster, 1 or 2.
template <KeySource source, int kBlocks>
__global__ void __launch_bounds__(kThreads, 1) MlaDecodeHopper(const __grid_constant__ HopperDecodePlan p) {
  constexpr bool kDecodes = source == KeySource::kFp8Rows;
  auto& shared = SharedStorage<HopperDecodeShared>();
  if (threadIdx.x == 0) {
    PrefetchTensorMap(p.q_lat);
    PrefetchTensorMap(p.q);
    if (source == KeySource::kPages) PrefetchTensorMap(p.cache);
    MbarrierInit(shared.query_full, 1);
    MbarrierInit(shared.query_empty, kConsumerWarps);
    for (int stage = 0; stage < kStages; ++stage) {
      MbarrierInit(shared.weights_ready[stage], kGroupWarps);
      for (int load = 0; load < kLoads; ++load) {
        MbarrierInit(shared.full[stage][load], Arrivals(source));
        MbarrierInit(shared.empty[stage][load],
                     kBlocks * kGroupWarps * (ReadsLoad(0, load) + ReadsLoad(1, load)));
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
    WarpgroupRegDealloc<kDecodes ? 88 : 56>();
    if (source != KeySource::kPages || threadIdx.x < kConsumerThreads + kStages * kWarpLanes) {
      Produce<source, kBlocks>(p, shared);
    }
  } else {
    WarpgroupRegAlloc<kDecodes ? 208 : 224>();
    HopperItem<source, kBlocks> attention(p.plan, shared);
    while (attention.Run()) {
    }
  }
  if constexpr (kBlocks > 1)
    ClusterSync();  // the other block writes into this one's shared memory until then
}

TensorMap QueryMap(Matrix<const bf16> rows, int32_t head_count, int32_t head_width) {
  return EncodeTensorMap({.data = rows.data,
                          .element_bytes = sizeof(bf16),
                          .extent = {static_cast<uint64_t>(head_width), static_cast<uint64_t>(head_count),
                                     static_cast<uint64_t>(rows.rows)},
                          .pitch = {head_width * sizeof(bf16), rows.stride * sizeof(bf16)},
                          .box = {kChunkColumns, kHeads, 1},
                          .swizzled = true});
}

// A row's chunks are a dimension of their own, because a box has several of them.
TensorMap CacheMap(const KvLayer& layer, const HopperDecodePlan& p) {
  const uint64_t row_bytes = layer.row_width() * sizeof(bf16);
  const uint64_t rows = static_cast<uint64_t>(layer.block_count) * layer.tokens_per_block;
  return EncodeTensorMap(
      {.data = layer.data,
       .element_bytes = sizeof(bf16),
       .extent = {kChunkColumns, rows, kChunks},
       .pitch = {row_bytes, kTileRowBytes},
       .box = {kChunkColumns, static_cast<uint32_t>(p.page_rows), static_cast<uint32_t>(p.box_chunks())},
       .swizzled = true});
}

}  // namespace
}  // namespace hopper_decode

bool HopperSupportsDecode(const MlaDecodeParams& op) {
  if (!RunsHopperKernels()) return false;
  if (op.layer.fp8_products) return true;
  // The decoding of rows leaves no registers for lists.
  if (op.layer.coded())
    return op.layer.dtype == hopper_decode::Fp8RowLayout().dtype && op.selected == nullptr;
  return op.selected != nullptr || hopper_decode::LoadsPages(op.layer);
}

void LaunchDecodeHopper(Stream& stream, const DecodePlan& plan, int32_t blocks) {
  using namespace hopper_decode;
  const MlaDecodeParams& op = plan.op;
  const KeySource source = op.layer.coded()         ? KeySource::kFp8Rows
                           : op.selected != nullptr ? KeySource::kRows
                                                    : KeySource::kPages;
  HopperDecodePlan p = {.plan = plan,
                        .q_lat = QueryMap(op.q_lat, op.head_count, kLatent),
                        .q = QueryMap(op.q, op.head_count, op.head_dim),
                        .cache = {},
                        .page_rows = PageRows(op.layer)};
  if (source == KeySource::kPages) p.cache = CacheMap(op.layer, p);
  const bool pairs = plan.pairs && plan.head_tiles % 2 == 0 && source != KeySource::kRows;
  const LaunchShape shape = {.grid = dim3(blocks),
                             .block = dim3(kThreads),
                             .shared_bytes = sizeof(HopperDecodeShared),
                             .cluster = pairs ? 2u : 1u};
  const auto kernel = [&]() -> void (*)(HopperDecodePlan) {
    if (source == KeySource::kRows) return MlaDecodeHopper<KeySource::kRows, 1>;
    if (source == KeySource::kFp8Rows)
      return pairs ? MlaDecodeHopper<KeySource::kFp8Rows, 2> : MlaDecodeHopper<KeySource::kFp8Rows, 1>;
    return pairs ? MlaDecodeHopper<KeySource::kPages, 2> : MlaDecodeHopper<KeySource::kPages, 1>;
  };
  Launch(stream, kernel(), shape, p);
}

}  // namespace foredraft::cuda
