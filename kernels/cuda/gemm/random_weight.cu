#include <algorithm>

#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/gemm/random_weight.h"

namespace foredraft {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kElementsPerThread = 16;

struct FillElementsParams {
  unsigned char* data;  // [items, data_stride bytes]
  RandomWeight weight;
  int64_t data_stride;
};

struct FillScalesParams {
  float* scales;  // [items * block rows, pitch]
  int32_t pitch;
  int32_t k_blocks;
  float scale;
};

// Block (x, y) fills piece x of item y.
__global__ __launch_bounds__(kThreads) void FillElements(const __grid_constant__ FillElementsParams p) {
  cuda::GridDependencySync();
  const RandomWeight& w = p.weight;
  unsigned char* const item = p.data + blockIdx.y * p.data_stride;
  const int64_t count = int64_t{w.n} * w.k;
  int64_t index = int64_t{blockIdx.x} * kThreads * kElementsPerThread + threadIdx.x;
  for (int i = 0; i < kElementsPerThread && index < count; ++i, index += kThreads) {
    const int64_t number = w.number(blockIdx.y, index / w.k, index % w.k);
    if (w.format.has_scales()) {
      item[index] = RandomCode(w, number);
    } else {
      reinterpret_cast<bf16*>(item)[index] = RandomBf16(w, number);
    }
  }
}

struct Fill4BitParams {
  unsigned char* data;  // [items, data_stride bytes], weight_4bit.h
  RandomWeight weight;
  Layout4Bit layout;
  int64_t data_stride;
  ScaleBytes scale;
  float tensor_scale;
};

// The codes of a word of a block of inputs from `first_input`.
__device__ __forceinline__ uint32_t RandomWord(const RandomWeight& w, int64_t item, int64_t output,
                                               int64_t first_input, int32_t lane, int32_t quarter) {
  uint32_t word = 0;
  for (int32_t i = 0; i < 8; ++i) {
    const int64_t input = first_input + Input4Of(lane, quarter, i / 2, i % 2);
    if (input >= w.k) continue;
    word |= static_cast<uint32_t>(RandomCode(w, w.number(item, output, input))) << (i / 2 * 4 + i % 2 * 16);
  }
  return word;
}

// Block (x, y) fills block x of 64 outputs and 128 inputs of item y.
__global__ __launch_bounds__(kThreads) void Fill4Bit(const __grid_constant__ Fill4BitParams p) {
  cuda::GridDependencySync();
  const int32_t blocks = p.layout.blocks();
  const int64_t first_output = int64_t{blockIdx.x / static_cast<uint32_t>(blocks)} * kTile4Outputs;
  const int64_t first_input = int64_t{blockIdx.x % static_cast<uint32_t>(blocks)} * kBlock4Inputs;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  unsigned char* const tile =
      p.data + blockIdx.y * p.data_stride + first_output / kTile4Outputs * p.layout.tile_bytes();
  if (p.layout.nvfp4() && first_input == 0 && thread < kTile4Outputs) {
    reinterpret_cast<float*>(tile)[thread] = first_output + thread < p.layout.n ? p.tensor_scale : 0.0f;
  }
  unsigned char* const block =
      tile + p.layout.tensor_scale_bytes() + first_input / kBlock4Inputs * p.layout.block_bytes();
  constexpr int32_t kWords = kBlock4CodeBytes / 4;
  for (int32_t i = thread; i < kWords; i += kThreads) {
    const int32_t output = i / 16, lane = i / 4 % 4, quarter = i % 4;
    const int64_t row = first_output + output;
    *reinterpret_cast<uint32_t*>(block + Word4At(output, lane, quarter)) =
        row < p.layout.n ? RandomWord(p.weight, blockIdx.y, row, first_input, lane, quarter) : 0;
  }
  for (int32_t i = thread; i < p.layout.groups_of_block() * kTile4Outputs; i += kThreads) {
    const int32_t output = i % kTile4Outputs, group = i / kTile4Outputs;
    const bool inside =
        first_output + output < p.layout.n && first_input + int64_t{group} * p.layout.group < p.layout.k;
    const int32_t bytes = p.layout.scale_bytes();
    for (int32_t byte = 0; byte < bytes; ++byte) {
      block[Scale4At(output, group, bytes) + byte] =
          inside ? static_cast<unsigned char>(p.scale.bytes[byte]) : uint8_t{0};
    }
  }
}

// Block x fills row x of the block scales.
__global__ __launch_bounds__(kThreads) void FillScales(const __grid_constant__ FillScalesParams p) {
  cuda::GridDependencySync();
  for (int32_t column = threadIdx.x; column < p.pitch; column += kThreads) {
    p.scales[int64_t{blockIdx.x} * p.pitch + column] = column < p.k_blocks ? p.scale : 0.0f;
  }
}

}  // namespace

void FillRandom4Bit(CudaStream& stream, const RandomWeight& weight, const WeightLayout& layout,
                    const PackedWeight& first, int count) {
  const Layout4Bit blocks = {layout.n, layout.k, layout.format.columns};
  const auto pieces = static_cast<unsigned>(int64_t{blocks.tiles()} * blocks.blocks());
  Launch(stream, Fill4Bit, {.grid = dim3(pieces, static_cast<unsigned>(count)), .block = dim3(kThreads)},
         Fill4BitParams{.data = static_cast<unsigned char*>(const_cast<void*>(first.data)),
                        .weight = weight,
                        .layout = blocks,
                        .data_stride = layout.data_stride(),
                        .scale = RandomScaleBytes(weight),
                        .tensor_scale = RandomTensorScale(weight)});
}

void FillRandomElements(CudaStream& stream, const RandomWeight& weight, const WeightLayout& layout,
                        const PackedWeight& first, int count) {
  constexpr int64_t kPerBlock = kThreads * kElementsPerThread;
  const int64_t pieces = (int64_t{weight.n} * weight.k + kPerBlock - 1) / kPerBlock;
  Launch(stream, FillElements,
         {.grid = dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(count)), .block = dim3(kThreads)},
         FillElementsParams{.data = static_cast<unsigned char*>(const_cast<void*>(first.data)),
                            .weight = weight,
                            .data_stride = layout.data_stride()});
  if (first.scales == nullptr) return;
  const int32_t pitch = ScalePitch(weight.k);
  const int64_t rows = layout.scale_stride() / pitch * count;
  Launch(stream, FillScales, {.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(kThreads)},
         FillScalesParams{.scales = const_cast<float*>(first.scales),
                          .pitch = pitch,
                          .k_blocks = (weight.k + kScaleBlock - 1) / kScaleBlock,
                          .scale = RandomScale(weight)});
}

}  // namespace foredraft
