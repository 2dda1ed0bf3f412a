#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/row_chunk.h"
#include "kernels/cuda/gemm/gemm_item_search.h"
#include "kernels/cuda/gemm/gemm_tile.h"
#include "kernels/cuda/gemm/packed_weight.h"
#include "kernels/cuda/gemm/segment_sums.h"

namespace foredraft::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTileN = 64;
constexpr int kStages = 4;
constexpr int kStepBytes = 128;          // of each row per stage: 64 BF16 or 128 FP8 inputs
constexpr int kPitch = kStepBytes + 16;  // in shared memory: avoids bank conflicts of ldmatrix
constexpr int kBlocksPerMultiprocessor = 3;

struct Operand {
  const unsigned char* data;  // of group 0
  int64_t pitch;              // bytes from row to row
  int64_t group_stride;       // bytes
  int32_t vector_loads;       // rows start at multiples of 16 bytes
};

struct TileGemmParams {
  float* out;
  bf16* out_bf16;
  const float* bias;
  const float* x_scales;       // [k blocks, x_scale_pitch]
  const float* weight_scales;  // [groups][n blocks, weight_scale_pitch]
  const int32_t* x_rows;
  Operand x;
  Operand weight;
  int64_t out_stride;
  int64_t out_bf16_stride;
  int64_t out_group_stride;
  int64_t x_scale_pitch;
  int64_t weight_scale_stride;
  int32_t weight_scale_pitch;
  int32_t n;
  int32_t row_bytes;  // k inputs of either operand, or a segment of them
  int32_t segments;
  GroupRowRanges ranges;
};

template <int kTileRows>
struct TileShared {
  unsigned char x[kStages][kTileRows][kPitch];
  unsigned char weight[kStages][kTileN][kPitch];
  const unsigned char* x_row[kTileRows];  // null past the group's end
  int32_t tile_starts[kMaxGroups + 1];
};

// An E4M3 code as the bits of a float; exact, and in the upper 16 bits.
__device__ __forceinline__ uint32_t F8ToFloatBits(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const uint32_t bits = __float_as_uint(__uint_as_float((code & 0x80u) << 24 | magnitude << 20) * 0x1p120f);
  return magnitude == 0x7fu ? 0x7fc00000u : bits;
}

// Two adjacent codes as two BF16.
__device__ __forceinline__ uint32_t WidenF8Pair(const unsigned char* codes) {
  const uint32_t pair = *reinterpret_cast<const uint16_t*>(codes);
  return F8ToFloatBits(pair & 0xffu) >> 16 | (F8ToFloatBits(pair >> 8) & 0xffff0000u);
}

// The part of a tile that a warp computes: warps are 2 x 2 over a tile of 64 rows, 1 x 4 over one of 16.
template <int kTileRows>
struct WarpTile {
  static constexpr int kWarpsN = kTileRows == 16 ? 4 : 2;
  static constexpr int kRows = kTileRows == 16 ? 16 : 32;
  static constexpr int kOutputs = kTileN / kWarpsN;
  static constexpr int kRowParts = kRows / 16;       // of an mma
  static constexpr int kOutputParts = kOutputs / 8;  // of an mma
};

template <int kTileRows>
struct Accumulators {
  static constexpr int kAccumulators = WarpTile<kTileRows>::kRowParts * WarpTile<kTileRows>::kOutputParts * 4;

  float v[WarpTile<kTileRows>::kRowParts][WarpTile<kTileRows>::kOutputParts][4];

  __device__ __forceinline__ float (&flat())[kAccumulators] {
    return reinterpret_cast<float(&)[kAccumulators]>(v);
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (auto& row : v) {
#pragma unroll
      for (auto& part : row) {
#pragma unroll
        for (float& value : part) value = 0.0f;
      }
    }
  }
};

// One k16 group, with operands at byte `first` of the stage's rows.
template <int kTileRows, bool kF8>
__device__ __forceinline__ void MultiplyGroup(const unsigned char (&x)[kTileRows][kPitch],
                                              const unsigned char (&weight)[kTileN][kPitch], int first_row,
                                              int first_output, int first,
                                              Accumulators<kTileRows>& accumulators) {
  using Tile = WarpTile<kTileRows>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t a[Tile::kRowParts][4];
  uint32_t b[Tile::kOutputParts][2];
  if constexpr (kF8) {
    const int g = lane / 4;
    const int column = first + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < Tile::kRowParts; ++i) {
      const int row = first_row + i * 16 + g;
      a[i][0] = WidenF8Pair(&x[row][column]);
      a[i][1] = WidenF8Pair(&x[row + 8][column]);
      a[i][2] = WidenF8Pair(&x[row][column + 8]);
      a[i][3] = WidenF8Pair(&x[row + 8][column + 8]);
    }
#pragma unroll
    for (int j = 0; j < Tile::kOutputParts; ++j) {
      const int output = first_output + j * 8 + g;
      b[j][0] = WidenF8Pair(&weight[output][column]);
      b[j][1] = WidenF8Pair(&weight[output][column + 8]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < Tile::kRowParts; ++i) {
      LdMatrix4(a[i], &x[first_row + i * 16 + lane % 16][first + lane / 16 * 16]);
    }
#pragma unroll
    for (int j = 0; j < Tile::kOutputParts; j += 2) {
      uint32_t pair[4];
      LdMatrix4(pair, &weight[first_output + j * 8 + lane % 8 + lane / 16 * 8][first + lane / 8 % 2 * 16]);
      b[j][0] = pair[0];
      b[j][1] = pair[1];
      b[j + 1][0] = pair[2];
      b[j + 1][1] = pair[3];
    }
  }
#pragma unroll
  for (int i = 0; i < Tile::kRowParts; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kOutputParts; ++j) MmaBf16(accumulators.v[i][j], a[i], b[j]);
  }
}

template <int kTileRows>
struct TileWalk {
  const TileGemmParams& p;
  TileShared<kTileRows>& shared;
  const unsigned char* weight;  // of the item's group
  int32_t first_output;
  int32_t segment_steps;

  __device__ void FindRows(const GemmItem& item) const {
    for (int row = static_cast<int>(threadIdx.x); row < kTileRows; row += kThreads) {
      const int32_t problem_row = item.first_row + row;
      const unsigned char* source = nullptr;
      if (problem_row < item.end_row) {
        const int64_t x_row = p.x_rows != nullptr ? p.x_rows[problem_row] : problem_row;
        source = p.x.data + x_row * p.x.pitch + item.group * p.x.group_stride;
      }
      shared.x_row[row] = source;
    }
  }

  __device__ void Load(int32_t step) const {
    const int stage = step % kStages;
    const int32_t segment = p.segments > 1 ? step / segment_steps : 0, end = (segment + 1) * p.row_bytes;
    const int32_t first_byte = segment * p.row_bytes + (step - segment * segment_steps) * kStepBytes;
    for (int chunk = static_cast<int>(threadIdx.x); chunk < (kTileRows + kTileN) * 8; chunk += kThreads) {
      const int row = chunk / 8;
      const int first = chunk % 8 * 16;
      const int32_t byte = first_byte + first;
      if (row < kTileRows) {
        LoadChunk(&shared.x[stage][row][first], shared.x_row[row], byte, end, p.x.vector_loads != 0);
      } else {
        const int32_t output = first_output + row - kTileRows;
        const unsigned char* source = output < p.n ? weight + output * p.weight.pitch : nullptr;
        LoadChunk(&shared.weight[stage][row - kTileRows][first], source, byte, end,
                  p.weight.vector_loads != 0);
      }
    }
  }
};

// FP8 promotion: sum += scale of x * scale of w * block, for block `step` of 128 inputs.
template <int kTileRows>
__device__ __forceinline__ void Promote(const TileGemmParams& p, const GemmItem& item, int32_t step,
                                        int first_row, int first_output, const Accumulators<kTileRows>& block,
                                        Accumulators<kTileRows>& sum) {
  using Tile = WarpTile<kTileRows>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  // A tile of 64 outputs is inside one block of scales.
  const float weight_scale =
      p.weight_scales[item.group * p.weight_scale_stride +
                      int64_t{first_output / kScaleBlock} * p.weight_scale_pitch + step];
#pragma unroll
  for (int i = 0; i < Tile::kRowParts; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = item.first_row + first_row + i * 16 + half * 8 + lane / 4;
      const float x_scale = row < item.end_row ? p.x_scales[step * p.x_scale_pitch + row] : 0.0f;
      const float scale = __fmul_rn(x_scale, weight_scale);
#pragma unroll
      for (int j = 0; j < Tile::kOutputParts; ++j) {
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          sum.v[i][j][e] = fmaf(scale, block.v[i][j][e], sum.v[i][j][e]);
        }
      }
    }
  }
}

template <int kTileRows>
__device__ __forceinline__ void StoreTile(const TileGemmParams& p, const GemmItem& item, int first_row,
                                          int32_t first_output, const Accumulators<kTileRows>& sum) {
  using Tile = WarpTile<kTileRows>;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < Tile::kRowParts; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kOutputParts; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int32_t row = item.first_row + first_row + i * 16 + e / 2 * 8 + lane / 4;
        const int32_t output = first_output + j * 8 + lane % 4 * 2 + e % 2;
        if (row >= item.end_row || output >= p.n) continue;
        const float value = p.bias != nullptr ? sum.v[i][j][e] + p.bias[output] : sum.v[i][j][e];
        const int64_t column = item.group * p.out_group_stride + output;
        if (p.out != nullptr) p.out[row * p.out_stride + column] = value;
        if (p.out_bf16 != nullptr) p.out_bf16[row * p.out_bf16_stride + column] = ToBf16(value);
      }
    }
  }
}

template <int kTileRows, bool kF8, bool kSegmented>
__device__ void ComputeItem(const TileGemmParams& p, const GemmItem& item, TileShared<kTileRows>& shared) {
  using Tile = WarpTile<kTileRows>;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int first_row = warp / Tile::kWarpsN * Tile::kRows;
  const int first_output = warp % Tile::kWarpsN * Tile::kOutputs;
  const int32_t segment_steps = (p.row_bytes + kStepBytes - 1) / kStepBytes;
  const TileWalk<kTileRows> walk = {p, shared, p.weight.data + item.group * p.weight.group_stride,
                                    item.tile_n * kTileN, segment_steps};

  __syncthreads();  // the previous item's reads are done
  walk.FindRows(item);
  __syncthreads();

  const int32_t steps = kSegmented ? segment_steps * p.segments : segment_steps;
  for (int32_t step = 0; step < kStages - 1; ++step) {
    if (step < steps) walk.Load(step);
    CpAsyncCommit();
  }
  Accumulators<kTileRows> sum;
  sum.Clear();
  [[maybe_unused]] SumsInRegisters<Accumulators<kTileRows>::kAccumulators> waiting;
  for (int32_t step = 0; step < steps; ++step) {
    CpAsyncWait<kStages - 2>();
    __syncthreads();  // this stage has arrived for all threads, and the stage loaded next is free
    if (step + kStages - 1 < steps) walk.Load(step + kStages - 1);
    CpAsyncCommit();
    const int stage = step % kStages;
    constexpr int kGroupBytes = kF8 ? 16 : 32;
    if constexpr (kF8) {
      Accumulators<kTileRows> block;
      block.Clear();
#pragma unroll
      for (int first = 0; first < kStepBytes; first += kGroupBytes) {
        MultiplyGroup<kTileRows, kF8>(shared.x[stage], shared.weight[stage], first_row, first_output, first,
                                      block);
      }
      Promote(p, item, step, first_row, walk.first_output, block, sum);
    } else {
#pragma unroll
      for (int first = 0; first < kStepBytes; first += kGroupBytes) {
        MultiplyGroup<kTileRows, kF8>(shared.x[stage], shared.weight[stage], first_row, first_output, first,
                                      sum);
      }
    }
    if constexpr (kSegmented) {
      if ((step + 1) % segment_steps != 0) continue;
      AddSegment(step / segment_steps, p.segments, waiting, sum.flat());
      if (step + 1 < steps) sum.Clear();
    }
  }
  CpAsyncWait<0>();
  StoreTile(p, item, first_row, walk.first_output + first_output, sum);
}

template <int kTileRows, bool kF8, bool kSegmented>
__global__ void __launch_bounds__(kThreads) TileGemmKernel(const __grid_constant__ TileGemmParams p) {
  auto& shared = SharedStorage<TileShared<kTileRows>>();
  GridDependencySync();
  if (threadIdx.x < 32) FillTileStarts(p.ranges, kTileRows, shared.tile_starts);
  __syncthreads();
  const int32_t n_tiles = (p.n + kTileN - 1) / kTileN;
  const uint32_t items = shared.tile_starts[p.ranges.groups] * n_tiles;
  for (uint32_t index = blockIdx.x; index < items; index += gridDim.x) {
    const GemmItem item = FindItem(p.ranges, shared.tile_starts, kTileRows, n_tiles, /*splits=*/1, index);
    ComputeItem<kTileRows, kF8, kSegmented>(p, item, shared);
  }
}

TileGemmParams MakeParams(const GemmProblem& q) {
  const bool f8 = q.weight.format.code == DType::kF8E4M3;
  const int64_t weight_pitch = q.weight.k * static_cast<int64_t>(DTypeBytes(q.weight.format.code));
  TileGemmParams p = {};
  p.out = q.out.data;
  p.out_bf16 = q.out_bf16.data;
  p.bias = q.bias;
  p.x_scales = q.x_f8.scales;
  p.weight_scales = q.weight.scales;
  p.x_rows = f8 ? nullptr : q.x_rows;
  if (f8) {
    p.x = {q.x_f8.codes, q.x_f8.pitch, 0, 1};
  } else {
    p.x = {reinterpret_cast<const unsigned char*>(q.x.data), q.x.stride * int64_t{sizeof(bf16)},
           q.x_group_stride * int64_t{sizeof(bf16)}, 0};
    p.x.vector_loads = (reinterpret_cast<uintptr_t>(p.x.data) | static_cast<uintptr_t>(p.x.pitch) |
                        static_cast<uintptr_t>(p.x.group_stride)) %
                           16 ==
                       0;
  }
  p.weight = {static_cast<const unsigned char*>(q.weight.data), weight_pitch, q.data_stride,
              weight_pitch % 16 == 0};
  p.segments = std::max(q.weight.segments, 1);
  p.row_bytes = static_cast<int32_t>(weight_pitch / p.segments);
  CHECK(weight_pitch % p.segments == 0 && (p.segments == 1 || p.row_bytes % (f8 ? kStepBytes : 16) == 0))
      << p.segments << " segments of " << q.weight.k;
  p.out_stride = q.out.stride;
  p.out_bf16_stride = q.out_bf16.stride;
  p.out_group_stride = q.out_group_stride;
  p.x_scale_pitch = q.x_f8.scale_pitch;
  p.weight_scale_stride = q.scale_stride;
  p.weight_scale_pitch = ScalePitch(q.weight.k);
  p.n = q.weight.n;
  p.ranges = q.ranges;
  return p;
}

template <int kTileRows>
void LaunchTiles(Stream& stream, const GemmProblem& q) {
  const int64_t n_tiles = (q.weight.n + kTileN - 1) / kTileN;
  const int64_t row_tiles = RowTiles(q.ranges, kTileRows);
  const int64_t resident =
      int64_t{kBlocksPerMultiprocessor} * static_cast<CudaStream&>(stream).multiprocessor_count();
  LaunchShape shape;
  shape.grid = ItemGrid(row_tiles * n_tiles, resident);
  shape.block = dim3(kThreads);
  shape.shared_bytes = sizeof(TileShared<kTileRows>);
  const TileGemmParams params = MakeParams(q);
  const bool f8 = q.weight.format.code == DType::kF8E4M3;
  if (params.segments > 1) {
    Launch(stream, f8 ? &TileGemmKernel<kTileRows, true, true> : &TileGemmKernel<kTileRows, false, true>,
           shape, params);
  } else {
    Launch(stream, f8 ? &TileGemmKernel<kTileRows, true, false> : &TileGemmKernel<kTileRows, false, false>,
           shape, params);
  }
}

}  // namespace

void TileGemm(Stream& stream, const GemmProblem& problem, int rows_per_tile) {
  CHECK_LE(problem.ranges.groups, kMaxGroups);
  const bool few_rows = problem.ranges.offsets != nullptr
                            ? problem.ranges.rows <= int64_t{16} * problem.ranges.groups
                            : problem.ranges.rows <= 16;
  if (rows_per_tile == 16 || (rows_per_tile == 0 && few_rows)) {
    LaunchTiles<16>(stream, problem);
  } else {
    LaunchTiles<64>(stream, problem);
  }
}

}  // namespace foredraft::cuda
