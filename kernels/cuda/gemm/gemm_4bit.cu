#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/row_chunk.h"
#include "kernels/cuda/gemm/gemm_4bit.h"
#include "kernels/cuda/gemm/gemm_4bit_tile.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "kernels/cuda/gemm/gemm_item_search.h"
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/gemm/split_sum.h"
#include "kernels/cuda/gemm/weight_4bit.h"

namespace foredraft::cuda {
namespace {

constexpr int kThreads = 128;

struct Gemm4BitParams {
  float* out;
  bf16* out_bf16;
  const float* bias;
  const int32_t* x_rows;
  const unsigned char* x;       // of group 0
  const unsigned char* weight;  // of group 0, weight_4bit.h
  float4* partials;             // splits > 1: [tiles, splits, accumulators of a thread / 4, kThreads]
  uint32_t* counters;           // splits > 1: [tiles], zero
  float4* waiting;              // segments > 1: [blocks] sums of segments
  int64_t out_stride;
  int64_t out_bf16_stride;
  int64_t out_group_stride;
  int64_t x_pitch;         // bytes
  int64_t x_group_stride;  // bytes
  int64_t weight_group_stride;
  int64_t weight_tile_bytes;
  int32_t whole_chunks;  // rows of x are 16-byte aligned, and so are their ends
  int32_t n;
  int32_t x_bytes;   // k inputs
  int32_t steps;     // blocks of 128 inputs
  int32_t splits;    // of the steps; each is an item of its own
  int32_t segments;  // of the steps; a split has some of them
  int32_t tensor_scale_bytes;
  GroupRowRanges ranges;
};

template <int kTileRows>
struct Shared4 {
  unsigned char x[Tile4<kTileRows>::kStages][kTileRows][kRowPitch4];
  unsigned char weight[Tile4<kTileRows>::kStages][kMaxBlock4Bytes];
  const unsigned char* x_row[kTileRows];  // null past the group's end
  int32_t tile_starts[kMaxGroups + 1];
  int32_t is_last;  // this block has counted last of the tile's blocks
};

// Loads the rows of x for a step. Rows past the group's end stay as they are: their products are not stored.
template <bool kWholeChunks, int kTileRows>
__device__ __forceinline__ void LoadRows(const Gemm4BitParams& p, int32_t step, int stage,
                                         Shared4<kTileRows>& shared) {
  constexpr int kChunks = kRowBytes4 / 16;
  const int first = static_cast<int>(threadIdx.x) % kChunks * 16;
  const int32_t byte = step * kRowBytes4 + first;
#pragma unroll(kWholeChunks ? kTileRows* kChunks / kThreads : 1)
  for (int i = 0; i < kTileRows * kChunks / kThreads; ++i) {
    const int row = static_cast<int>(threadIdx.x) / kChunks + i * (kThreads / kChunks);
    const unsigned char* const source = shared.x_row[row];
    unsigned char* const into = &shared.x[stage][row][first];
    if (source == nullptr) continue;
    if constexpr (kWholeChunks) {
      const bool inside = byte < p.x_bytes;
      CpAsync16(into, source + (inside ? byte : 0), inside);
    } else {
      LoadChunk(into, source, byte, p.x_bytes, /*vector_loads=*/false);
    }
  }
}

// Loads step `step` of a tile of outputs into its stage.
template <class Format, int kTileRows>
__device__ __forceinline__ void LoadStep(const Gemm4BitParams& p, const unsigned char* weight_tile,
                                         int32_t step, int stage, Shared4<kTileRows>& shared) {
  const unsigned char* const block = weight_tile + int64_t{step} * Format::kBlockBytes;
  const int own = static_cast<int>(threadIdx.x) * 16;
#pragma unroll
  for (int first = 0; first < Format::kBlockBytes; first += kThreads * 16) {
    if (first + own < Format::kBlockBytes) CpAsync16(&shared.weight[stage][first + own], block + first + own);
  }
  p.whole_chunks != 0 ? LoadRows<true>(p, step, stage, shared) : LoadRows<false>(p, step, stage, shared);
}

__device__ __forceinline__ void StoreOutput(const Gemm4BitParams& p, int64_t row, int64_t column,
                                            int32_t output, float sum) {
  if (output >= p.n) return;
  const float value = p.bias != nullptr ? sum + p.bias[output] : sum;
  if (p.out != nullptr) p.out[row * p.out_stride + column] = value;
  if (p.out_bf16 != nullptr) p.out_bf16[row * p.out_bf16_stride + column] = ToBf16(value);
}

template <int kTileRows>
__device__ __forceinline__ void StoreTile(const Gemm4BitParams& p, const GemmItem& item,
                                          const WarpPlace<kTileRows>& place,
                                          const Accumulators4<kTileRows>& accumulators) {
  using Tile = Tile4<kTileRows>;
#pragma unroll
  for (int i = 0; i < Tile::kRowParts; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = item.first_row + place.row + i * 16 + half * 8 + place.lane / 4;
      if (row >= item.end_row) continue;
#pragma unroll
      for (int j = 0; j < Tile::kOutputParts; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int32_t output = item.tile_n * kTile4Outputs + place.output + j * 8 + place.lane % 4 * 2 + e;
          StoreOutput(p, row, item.group * p.out_group_stride + output, output,
                      accumulators[i][j][half * 2 + e]);
        }
      }
    }
  }
}

// Split k: every block stores its accumulators in memory, and the last one to do so adds up those of all
// splits, ascending or by the tree of segments, in `accumulators`. Returns false in the other blocks.
template <int kTileRows, bool kSegmented>
__device__ bool AddSplits(const Gemm4BitParams& p, const GemmItem& item, int32_t& is_last,
                          Accumulators4<kTileRows>& accumulators) {
  constexpr int kVectors = Tile4<kTileRows>::kAccumulators / 4;
  const int thread = static_cast<int>(threadIdx.x);
  float(&flat)[kVectors][4] = reinterpret_cast<float(&)[kVectors][4]>(accumulators);
  float4* const parts = p.partials + int64_t{item.tile} * p.splits * kVectors * kThreads + thread;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    __stcg(parts + (item.split * kVectors + i) * kThreads,
           make_float4(flat[i][0], flat[i][1], flat[i][2], flat[i][3]));
  }
  __syncthreads();
  if (thread == 0) is_last = CountSplit(p.counters + item.tile, p.splits) ? 1 : 0;
  __syncthreads();
  if (is_last == 0) return false;
  SumSplits<kVectors, kSegmented ? 4 : 8, kSegmented>(parts, kThreads, p.splits,
                                                      FlatAccumulators<kTileRows>(accumulators));
  return true;
}

template <int kTileRows>
__device__ __forceinline__ void FindRows(const Gemm4BitParams& p, const GemmItem& item,
                                         const unsigned char* (&x_row)[kTileRows]) {
  const int row = static_cast<int>(threadIdx.x);
  if (row >= kTileRows) return;
  const int32_t problem_row = item.first_row + row;
  const unsigned char* source = nullptr;
  if (problem_row < item.end_row) {
    const int64_t index = p.x_rows != nullptr ? p.x_rows[problem_row] : problem_row;
    source = p.x + index * p.x_pitch + item.group * p.x_group_stride;
  }
  x_row[row] = source;
}

// Multiplies the accumulators by the tensor scales of the tile's outputs.
template <int kTileRows>
__device__ __forceinline__ void ScaleTile(const float* tensor_scales, const WarpPlace<kTileRows>& place,
                                          Accumulators4<kTileRows>& accumulators) {
  using Tile = Tile4<kTileRows>;
#pragma unroll
  for (int j = 0; j < Tile::kOutputParts; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float scale = tensor_scales[place.output + j * 8 + place.lane % 4 * 2 + e];
#pragma unroll
      for (int i = 0; i < Tile::kRowParts; ++i) {
        accumulators[i][j][e] *= scale;
        accumulators[i][j][2 + e] *= scale;
      }
    }
  }
}

// Ends a chain of k: NVFP4's tensor scales multiply it.
template <class Format, int kTileRows>
__device__ __forceinline__ void EndChain(const unsigned char* tile, const WarpPlace<kTileRows>& place,
                                         Accumulators4<kTileRows>& accumulators) {
  if constexpr (Format::kCodes == Codes4::kNvfp4) {
    ScaleTile<kTileRows>(reinterpret_cast<const float*>(tile), place, accumulators);
  }
}

template <class Format, int kTileRows, bool kSegmented>
__device__ void ComputeItem(const Gemm4BitParams& p, const GemmItem& item, Shared4<kTileRows>& shared) {
  constexpr int kStages = Tile4<kTileRows>::kStages;
  const WarpPlace<kTileRows> place;
  const unsigned char* const tile =
      p.weight + item.group * p.weight_group_stride + item.tile_n * p.weight_tile_bytes;
  const unsigned char* const weight = tile + p.tensor_scale_bytes;
  __syncthreads();  // the previous item's reads are done
  FindRows<kTileRows>(p, item, shared.x_row);
  __syncthreads();

  const int32_t begin = item.split * p.steps / p.splits;
  const int32_t count = (item.split + 1) * p.steps / p.splits - begin;
  for (int32_t step = 0; step < kStages - 1; ++step) {
    if (step < count) LoadStep<Format>(p, weight, begin + step, step, shared);
    CpAsyncCommit();
  }
  Accumulators4<kTileRows> accumulators;
  ClearAccumulators<kTileRows>(accumulators);
  constexpr int kAccumulators = Tile4<kTileRows>::kAccumulators;
  constexpr int64_t kWaitingVectors = WaitingBytes(kWaitingSets, kThreads, kAccumulators) / 16;
  WaitingSums<kAccumulators, 0> waiting(nullptr, p.waiting + blockIdx.x * kWaitingVectors, kThreads);
  int32_t chain_end = kSegmented ? p.steps / p.segments : count;  // the step that a segment ends before
  int32_t segment = 0;
  for (int32_t step = 0; step < count; ++step) {
    CpAsyncWait<kStages - 2>();
    __syncthreads();  // this stage has arrived for all threads, and the stage loaded next is free
    const int32_t next = step + kStages - 1;
    if (next < count) LoadStep<Format>(p, weight, begin + next, next % kStages, shared);
    CpAsyncCommit();
    const int stage = step % kStages;
    MultiplyBlock<Format, kTileRows>(shared.x[stage], shared.weight[stage], place, accumulators);
    if constexpr (kSegmented) {
      if (step + 1 < chain_end) continue;
      EndChain<Format, kTileRows>(tile, place, accumulators);
      AddSegment(segment++, p.segments / p.splits, waiting, FlatAccumulators<kTileRows>(accumulators));
      chain_end += p.steps / p.segments;
      if (step + 1 < count) ClearAccumulators<kTileRows>(accumulators);
    }
  }
  CpAsyncWait<0>();
  if constexpr (kTileRows < 64 || !kSegmented) {
    if (p.splits > 1 && !AddSplits<kTileRows, kSegmented>(p, item, shared.is_last, accumulators)) return;
  }
  if constexpr (!kSegmented) EndChain<Format, kTileRows>(tile, place, accumulators);
  StoreTile<kTileRows>(p, item, place, accumulators);
}

template <class Format, int kTileRows, bool kSegmented>
__global__ void __launch_bounds__(kThreads, Resident4Bit(kTileRows))
    Gemm4BitKernel(const __grid_constant__ Gemm4BitParams p) {
  auto& shared = SharedStorage<Shared4<kTileRows>>();
  GridDependencySync();
  if (threadIdx.x < 32) FillTileStarts(p.ranges, kTileRows, shared.tile_starts);
  __syncthreads();
  const int32_t n_tiles = (p.n + kTile4Outputs - 1) / kTile4Outputs;
  const uint32_t items = shared.tile_starts[p.ranges.groups] * n_tiles * p.splits;
  for (uint32_t index = blockIdx.x; index < items; index += gridDim.x) {
    const GemmItem item = FindItem(p.ranges, shared.tile_starts, kTileRows, n_tiles, p.splits, index);
    ComputeItem<Format, kTileRows, kSegmented>(p, item, shared);
  }
}

Gemm4BitParams MakeParams(const GemmProblem& q) {
  const Layout4Bit layout = {q.weight.n, q.weight.k, q.weight.format.columns};
  Gemm4BitParams p = {};
  p.out = q.out.data;
  p.out_bf16 = q.out_bf16.data;
  p.bias = q.bias;
  p.x_rows = q.x_rows;
  p.x = reinterpret_cast<const unsigned char*>(q.x.data);
  p.weight = static_cast<const unsigned char*>(q.weight.data);
  p.out_stride = q.out.stride;
  p.out_bf16_stride = q.out_bf16.stride;
  p.out_group_stride = q.out_group_stride;
  p.x_pitch = q.x.stride * int64_t{sizeof(bf16)};
  p.x_group_stride = q.x_group_stride * int64_t{sizeof(bf16)};
  p.weight_group_stride = q.data_stride;
  p.weight_tile_bytes = layout.tile_bytes();
  p.n = q.weight.n;
  p.x_bytes = q.weight.k * static_cast<int32_t>(sizeof(bf16));
  p.whole_chunks = TmaCanLoad(q.x, q.x_group_stride) && p.x_bytes % 16 == 0 ? 1 : 0;
  p.steps = layout.blocks();
  p.splits = q.splits;
  p.segments = std::max(q.weight.segments, 1);
  p.tensor_scale_bytes = layout.tensor_scale_bytes();
  p.ranges = q.ranges;
  return p;
}

template <Codes4 kCodes, int kGroup, int kTileRows>
auto KernelOf(bool segmented) -> void (*)(Gemm4BitParams) {
  using Format = Format4<kCodes, kGroup>;
  return segmented ? Gemm4BitKernel<Format, kTileRows, true> : Gemm4BitKernel<Format, kTileRows, false>;
}

// The kernel of a weight whose format Is4BitLayout accepts.
template <int kTileRows>
auto KernelOf(const PackedWeight& weight) -> void (*)(Gemm4BitParams) {
  const bool segmented = weight.segments > 1;
  if (weight.format.tensor_scale) return KernelOf<Codes4::kNvfp4, 16, kTileRows>(segmented);
  const bool int4 = weight.format.code == DType::kInt4;
  switch (weight.format.columns) {
    case 32:
      return int4 ? KernelOf<Codes4::kInt4, 32, kTileRows>(segmented)
                  : KernelOf<Codes4::kMxfp4, 32, kTileRows>(segmented);
    case 64:
      return int4 ? KernelOf<Codes4::kInt4, 64, kTileRows>(segmented)
                  : KernelOf<Codes4::kMxfp4, 64, kTileRows>(segmented);
    default:
      return int4 ? KernelOf<Codes4::kInt4, 128, kTileRows>(segmented)
                  : KernelOf<Codes4::kMxfp4, 128, kTileRows>(segmented);
  }
}

template <int kTileRows>
void LaunchTiles(Stream& stream, const GemmProblem& q) {
  auto& cuda = static_cast<CudaStream&>(stream);
  const int64_t tiles = RowTiles(q.ranges, kTileRows) * ((q.weight.n + kTile4Outputs - 1) / kTile4Outputs);
  const int64_t resident = int64_t{Resident4Bit(kTileRows)} * cuda.multiprocessor_count();
  LaunchShape shape;
  shape.grid = ItemGrid(tiles * q.splits, resident);
  shape.block = dim3(kThreads);
  shape.shared_bytes = sizeof(Shared4<kTileRows>);
  Gemm4BitParams params = MakeParams(q);
  CHECK(params.segments == 1 || q.weight.k % (params.segments * kBlock4Inputs) == 0) << q.weight.k;
  params.partials = static_cast<float4*>(q.partials);
  params.waiting = params.partials;
  if (q.splits > 1) {
    CHECK(params.segments == 1 || (params.segments % q.splits == 0 && kTileRows < 64)) << params.segments;
    CHECK(q.partials != nullptr && q.ranges.groups == 1 && q.splits <= params.steps);
    CHECK_LE(tiles, CudaStream::kZeroCounters);
    params.waiting += tiles * q.splits * kTileRows * kTile4Outputs / 4;
    params.counters = cuda.ZeroCounters();
  }
  Launch(stream, KernelOf<kTileRows>(q.weight), shape, params);
}

// The most rows that split k computes at a time, which bounds the partial sums and counters.
constexpr int32_t kSplitRowsAtOnce = 256;

int32_t TileRowsOf(Stream& stream, const GemmProblem& q) {
  GemmSize size = SizeOf(q);
  if (q.splits > 1) size.rows = std::min(size.rows, kSplitRowsAtOnce);
  return Plan4Bit(size, q.splits, RatesOf(stream)).tile.rows;
}

}  // namespace

int64_t PartialBytes4Bit(Stream& stream, const GemmProblem& q, int32_t tile_rows) {
  if (q.splits == 1 && q.weight.segments <= 1) return 0;
  if (tile_rows == 0) tile_rows = TileRowsOf(stream, q);
  const int32_t tile_values = tile_rows * kTile4Outputs;
  const int64_t blocks = int64_t{Resident4Bit(tile_rows)} * RatesOf(stream).multiprocessors;
  const int64_t waiting =
      q.weight.segments > 1 ? blocks * WaitingBytes(kWaitingSets, kThreads, tile_values / kThreads) : 0;
  if (q.splits == 1) return waiting;
  GroupRowRanges rows = q.ranges;
  rows.rows = std::min(rows.rows, kSplitRowsAtOnce);
  const int64_t tiles = RowTiles(rows, tile_rows) * ((q.weight.n + kTile4Outputs - 1) / kTile4Outputs);
  return tiles * q.splits * tile_values * static_cast<int64_t>(sizeof(float)) + waiting;
}

void Gemm4Bit(Stream& stream, const GemmProblem& problem, int32_t tile_rows) {
  CHECK_LE(problem.ranges.groups, kMaxGroups);
  CHECK(Is4BitLayout(problem.weight.format));
  const int32_t rows = problem.ranges.rows;
  if (rows == 0) return;
  if (tile_rows == 0) tile_rows = TileRowsOf(stream, problem);
  if (problem.splits > 1 && rows > kSplitRowsAtOnce) {
    for (int32_t first = 0; first < rows; first += kSplitRowsAtOnce) {
      Gemm4Bit(stream, RowRange(problem, first, std::min(kSplitRowsAtOnce, rows - first)), tile_rows);
    }
  } else if (tile_rows == 16) {
    LaunchTiles<16>(stream, problem);
  } else if (tile_rows == 32) {
    LaunchTiles<32>(stream, problem);
  } else {
    CHECK_EQ(tile_rows, 64);
    LaunchTiles<64>(stream, problem);
  }
}

}  // namespace foredraft::cuda
