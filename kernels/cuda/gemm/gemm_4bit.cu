#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/ptx_bf16x2.h"
#include "kernels/cuda/common/row_chunk.h"
#include "kernels/cuda/gemm/gemm_4bit.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "kernels/cuda/gemm/gemm_item_search.h"
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/gemm/split_sum.h"
#include "kernels/cuda/gemm/weight_4bit.h"

namespace foredraft::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRowBytes = kBlock4Inputs * static_cast<int>(sizeof(bf16));  // of a row of x per step
constexpr int kRowPitch = kRowBytes + 16;  // in shared memory: avoids bank conflicts of ldmatrix

enum class Codes4 { kInt4, kMxfp4, kNvfp4 };

struct Gemm4BitParams {
  float* out;
  bf16* out_bf16;
  const float* bias;
  const int32_t* x_rows;
  const unsigned char* x;       // of group 0
  const unsigned char* weight;  // of group 0, weight_4bit.h
  float4* partials;             // splits > 1: [tiles, splits, sums of a thread / 4, kThreads]
  uint32_t* counters;           // splits > 1: [tiles], zero
  int64_t out_stride;
  int64_t out_bf16_stride;
  int64_t out_group_stride;
  int64_t x_pitch;         // bytes
  int64_t x_group_stride;  // bytes
  int64_t weight_group_stride;
  int64_t weight_tile_bytes;
  int32_t x_vector_loads;
  int32_t n;
  int32_t x_bytes;  // k inputs
  int32_t steps;    // blocks of 128 inputs
  int32_t splits;   // of the steps; each is an item of its own
  int32_t block_bytes;
  int32_t tensor_scale_bytes;
  int32_t group_quarters;  // of a group of inputs: 1, 2 or 4
  GroupRowRanges ranges;
};

// The part of a tile that a warp computes. Warps side by side widen every code once; with 64 rows, 2 x 2
// warps read shared memory less often.
template <int kTileRows>
struct Tile4 {
  static constexpr int kStages = Stages4Bit(kTileRows);
  static constexpr int kWarpsN = kTileRows == 64 ? 2 : 4;
  static constexpr int kRows = kTileRows == 64 ? 32 : kTileRows;
  static constexpr int kOutputs = kTile4Outputs / kWarpsN;
  static constexpr int kRowParts = kRows / 16;       // of an mma
  static constexpr int kOutputParts = kOutputs / 8;  // of an mma
  static constexpr int kSums = kRowParts * kOutputParts * 4;
};

template <int kTileRows>
struct Shared4 {
  unsigned char x[Tile4<kTileRows>::kStages][kTileRows][kRowPitch];
  unsigned char weight[Tile4<kTileRows>::kStages][kMaxBlock4Bytes];
  const unsigned char* x_row[kTileRows];  // null past the group's end
  int32_t tile_starts[kMaxGroups + 1];
  int32_t is_last;  // of a tile's blocks, this one has counted last
};

// The sums of a thread, in the order of mma's fragments.
template <int kTileRows>
using Sums = float[Tile4<kTileRows>::kRowParts][Tile4<kTileRows>::kOutputParts][4];

template <int kTileRows>
__device__ __forceinline__ void Clear(Sums<kTileRows>& sums) {
#pragma unroll
  for (auto& row : sums) {
#pragma unroll
    for (auto& part : row) {
#pragma unroll
      for (float& value : part) value = 0.0f;
    }
  }
}

// The values of the codes in nibble q of a word's halves, as two BF16. Both kinds are exact, and take fewer
// instructions than a table of 16 values: a GPU looks up bytes, and eight at a time.
template <Codes4 kCodes>
__device__ __forceinline__ uint32_t ValuesOf(uint32_t word, int q) {
  if constexpr (kCodes == Codes4::kInt4) {
    // 128 + code has the code in its last mantissa bits; 136 is 128 and the codes' offset.
    return SubBf16x2((word >> (4 * q) & 0x000f000fu) | 0x43004300u, 0x43084308u);
  } else {
    // E2M1 in the place of BF16's sign, last exponent bits and first mantissa bit is the value times 2^-126,
    // subnormal or not.
    const uint32_t magnitude = q < 2 ? word << (6 - 4 * q) : word >> (4 * q - 6);
    const uint32_t sign = word << (12 - 4 * q);
    return MulBf16x2((magnitude & 0x01c001c0u) | (sign & 0x80008000u), 0x7e807e80u);
  }
}

// An E4M3 scale, without its sign, as two equal BF16: its bits in the places of BF16's exponent and mantissa
// are the value times 2^-120, subnormal or not.
__device__ __forceinline__ uint32_t ScalePair(uint32_t bits) {
  return MulBf16x2(bits << 4 | bits << 20, 0x7b807b80u);
}

// Where a warp is in its tile.
template <int kTileRows>
struct WarpPlace {
  int row = static_cast<int>(threadIdx.x) / 32 / Tile4<kTileRows>::kWarpsN * Tile4<kTileRows>::kRows;
  int output = static_cast<int>(threadIdx.x) / 32 % Tile4<kTileRows>::kWarpsN * Tile4<kTileRows>::kOutputs;
  int lane = static_cast<int>(threadIdx.x) % 32;
};

// sums += scale * group, group = 0. `scales`: of the group, of the tile's 64 outputs.
template <int kTileRows>
__device__ __forceinline__ void Promote(const unsigned char* scales, const WarpPlace<kTileRows>& place,
                                        Sums<kTileRows>& group, Sums<kTileRows>& sums) {
  using Tile = Tile4<kTileRows>;
#pragma unroll
  for (int j = 0; j < Tile::kOutputParts; ++j) {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(
        scales + (place.output + j * 8 + place.lane % 4 * 2) * static_cast<int>(sizeof(bf16)));
    const float scale[2] = {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
#pragma unroll
    for (int i = 0; i < Tile::kRowParts; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[i][j][e] = fmaf(scale[e % 2], group[i][j][e], sums[i][j][e]);
        group[i][j][e] = 0.0f;
      }
    }
  }
}

// A block of 128 inputs. `group` holds the sums of the group in progress, zero between blocks. NVFP4's codes
// are multiplied by their scales first, which BF16 holds exactly, and have no sums of groups.
template <Codes4 kCodes, int kTileRows>
__device__ __forceinline__ void MultiplyBlock(const unsigned char (&x)[kTileRows][kRowPitch],
                                              const unsigned char (&weight)[kMaxBlock4Bytes],
                                              int32_t group_quarters, const WarpPlace<kTileRows>& place,
                                              Sums<kTileRows>& group, Sums<kTileRows>& sums) {
  using Tile = Tile4<kTileRows>;
  uint4 codes[Tile::kOutputParts];
#pragma unroll
  for (int j = 0; j < Tile::kOutputParts; ++j) {
    codes[j] = *reinterpret_cast<const uint4*>(
        weight + Word4At(place.output + j * 8 + place.lane / 4, place.lane % 4, 0));
  }
#pragma unroll
  for (int quarter = 0; quarter < kBlock4Quarters; ++quarter) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // a k16 group
      uint32_t a[Tile::kRowParts][4];
#pragma unroll
      for (int i = 0; i < Tile::kRowParts; ++i) {
        LdMatrix4(a[i],
                  &x[place.row + i * 16 + place.lane % 16][(quarter * 2 + half) * 32 + place.lane / 16 * 16]);
      }
#pragma unroll
      for (int j = 0; j < Tile::kOutputParts; ++j) {
        const uint32_t words[kBlock4Quarters] = {codes[j].x, codes[j].y, codes[j].z, codes[j].w};
        uint32_t b[2] = {ValuesOf<kCodes>(words[quarter], 2 * half),
                         ValuesOf<kCodes>(words[quarter], 2 * half + 1)};
        if constexpr (kCodes == Codes4::kNvfp4) {
          const int output = place.output + j * 8 + place.lane / 4;
          const uint32_t scale = ScalePair(weight[Scale4At(output, quarter * 2 + half, /*scale_bytes=*/1)]);
          b[0] = MulBf16x2(b[0], scale);
          b[1] = MulBf16x2(b[1], scale);
        }
        Sums<kTileRows>& into = kCodes == Codes4::kNvfp4 ? sums : group;
#pragma unroll
        for (int i = 0; i < Tile::kRowParts; ++i) MmaBf16(into[i][j], a[i], b);
      }
    }
    if (kCodes != Codes4::kNvfp4 && (quarter + 1) % group_quarters == 0) {
      Promote<kTileRows>(weight + Scale4At(0, quarter / group_quarters), place, group, sums);
    }
  }
}

// Step `step` of a tile of outputs into its stage. Rows past the group's end stay as they are: their products
// are not stored.
template <int kTileRows>
__device__ __forceinline__ void LoadStep(const Gemm4BitParams& p, const unsigned char* weight_tile,
                                         int32_t step, int stage, Shared4<kTileRows>& shared) {
  const unsigned char* const block = weight_tile + int64_t{step} * p.block_bytes;
  for (int first = static_cast<int>(threadIdx.x) * 16; first < p.block_bytes; first += kThreads * 16) {
    CpAsync16(&shared.weight[stage][first], block + first);
  }
  constexpr int kChunks = kRowBytes / 16;
#pragma unroll
  for (int i = 0; i < kTileRows * kChunks / kThreads; ++i) {
    const int chunk = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = chunk / kChunks;
    const int first = chunk % kChunks * 16;
    const unsigned char* const source = shared.x_row[row];
    if (source == nullptr) continue;
    LoadChunk(&shared.x[stage][row][first], source, step * kRowBytes + first, p.x_bytes,
              p.x_vector_loads != 0);
  }
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
                                          const WarpPlace<kTileRows>& place, const Sums<kTileRows>& sums) {
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
          StoreOutput(p, row, item.group * p.out_group_stride + output, output, sums[i][j][half * 2 + e]);
        }
      }
    }
  }
}

// Split k: every block passes its sums on through memory, and the one that comes last adds those of all
// splits, ascending, into `sums`. False in the others.
template <int kTileRows>
__device__ bool AddSplits(const Gemm4BitParams& p, const GemmItem& item, int32_t& is_last,
                          Sums<kTileRows>& sums) {
  constexpr int kVectors = Tile4<kTileRows>::kSums / 4;
  const int thread = static_cast<int>(threadIdx.x);
  float(&flat)[kVectors][4] = reinterpret_cast<float(&)[kVectors][4]>(sums);
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
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float4 total = SumSplits(parts + i * kThreads, kVectors * kThreads, p.splits);
    flat[i][0] = total.x;
    flat[i][1] = total.y;
    flat[i][2] = total.z;
    flat[i][3] = total.w;
  }
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

// The sums times the tensor scales of the tile's outputs.
template <int kTileRows>
__device__ __forceinline__ void ScaleTile(const float* tensor_scales, const WarpPlace<kTileRows>& place,
                                          Sums<kTileRows>& sums) {
  using Tile = Tile4<kTileRows>;
#pragma unroll
  for (int j = 0; j < Tile::kOutputParts; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float scale = tensor_scales[place.output + j * 8 + place.lane % 4 * 2 + e];
#pragma unroll
      for (int i = 0; i < Tile::kRowParts; ++i) {
        sums[i][j][e] *= scale;
        sums[i][j][2 + e] *= scale;
      }
    }
  }
}

template <Codes4 kCodes, int kTileRows>
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
    if (step < count) LoadStep(p, weight, begin + step, step, shared);
    CpAsyncCommit();
  }
  Sums<kTileRows> sums, group;
  Clear<kTileRows>(sums);
  Clear<kTileRows>(group);
  for (int32_t step = 0; step < count; ++step) {
    CpAsyncWait<kStages - 2>();
    __syncthreads();  // this stage has arrived for all threads, and the stage loaded next is free
    const int32_t next = step + kStages - 1;
    if (next < count) LoadStep(p, weight, begin + next, next % kStages, shared);
    CpAsyncCommit();
    const int stage = step % kStages;
    MultiplyBlock<kCodes, kTileRows>(shared.x[stage], shared.weight[stage], p.group_quarters, place, group,
                                     sums);
  }
  CpAsyncWait<0>();
  if (p.splits > 1 && !AddSplits<kTileRows>(p, item, shared.is_last, sums)) return;
  if constexpr (kCodes == Codes4::kNvfp4) {
    ScaleTile<kTileRows>(reinterpret_cast<const float*>(tile), place, sums);
  }
  StoreTile<kTileRows>(p, item, place, sums);
}

template <Codes4 kCodes, int kTileRows>
__global__ void __launch_bounds__(kThreads, Resident4Bit(kTileRows))
    Gemm4BitKernel(const __grid_constant__ Gemm4BitParams p) {
  auto& shared = SharedStorage<Shared4<kTileRows>>();
  GridDependencySync();
  if (threadIdx.x < 32) FillTileStarts(p.ranges, kTileRows, shared.tile_starts);
  __syncthreads();
  const int32_t n_tiles = (p.n + kTile4Outputs - 1) / kTile4Outputs;
  const int64_t items = int64_t{shared.tile_starts[p.ranges.groups]} * n_tiles * p.splits;
  for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
    GemmItem item = FindItem(p.ranges, shared.tile_starts, kTileRows, n_tiles, index / p.splits);
    item.split = static_cast<int32_t>(index % p.splits);
    ComputeItem<kCodes, kTileRows>(p, item, shared);
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
  p.x_vector_loads = TmaCanLoad(q.x, q.x_group_stride) ? 1 : 0;
  p.n = q.weight.n;
  p.x_bytes = q.weight.k * static_cast<int32_t>(sizeof(bf16));
  p.steps = layout.blocks();
  p.splits = q.splits;
  p.block_bytes = layout.block_bytes();
  p.tensor_scale_bytes = layout.tensor_scale_bytes();
  p.group_quarters = layout.nvfp4() ? 1 : kBlock4Quarters / layout.groups_of_block();
  p.ranges = q.ranges;
  return p;
}

template <int kTileRows>
void LaunchTiles(Stream& stream, const GemmProblem& q) {
  auto& cuda = static_cast<CudaStream&>(stream);
  const int64_t tiles = RowTiles(q.ranges, kTileRows) * ((q.weight.n + kTile4Outputs - 1) / kTile4Outputs);
  const int64_t resident = int64_t{Resident4Bit(kTileRows)} * cuda.multiprocessor_count();
  LaunchShape shape;
  shape.grid = dim3(static_cast<uint32_t>(std::min(tiles * q.splits, resident)));
  shape.block = dim3(kThreads);
  shape.shared_bytes = sizeof(Shared4<kTileRows>);
  Gemm4BitParams params = MakeParams(q);
  if (q.splits > 1) {
    CHECK(q.partials != nullptr && q.ranges.groups == 1 && q.splits <= params.steps);
    CHECK_LE(tiles, CudaStream::kZeroCounters);
    params.partials = static_cast<float4*>(q.partials);
    params.counters = cuda.ZeroCounters();
  }
  if (q.weight.format.code == DType::kInt4) {
    Launch(stream, &Gemm4BitKernel<Codes4::kInt4, kTileRows>, shape, params);
  } else if (q.weight.format.tensor_scale) {
    Launch(stream, &Gemm4BitKernel<Codes4::kNvfp4, kTileRows>, shape, params);
  } else {
    Launch(stream, &Gemm4BitKernel<Codes4::kMxfp4, kTileRows>, shape, params);
  }
}

// Split k is computed for so many rows at a time, which bounds the partial sums and counters.
constexpr int32_t kSplitRowsAtOnce = 256;

int32_t TileRowsOf(Stream& stream, const GemmProblem& q) {
  GemmSize size = SizeOf(q);
  if (q.splits > 1) size.rows = std::min(size.rows, kSplitRowsAtOnce);
  return Plan4Bit(size, q.splits, RatesOf(stream)).tile.rows;
}

}  // namespace

int64_t PartialBytes4Bit(Stream& stream, const GemmProblem& q, int32_t tile_rows) {
  if (q.splits == 1) return 0;
  if (tile_rows == 0) tile_rows = TileRowsOf(stream, q);
  GroupRowRanges rows = q.ranges;
  rows.rows = std::min(rows.rows, kSplitRowsAtOnce);
  const int64_t tiles = RowTiles(rows, tile_rows) * ((q.weight.n + kTile4Outputs - 1) / kTile4Outputs);
  return tiles * q.splits * tile_rows * kTile4Outputs * static_cast<int64_t>(sizeof(float));
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
