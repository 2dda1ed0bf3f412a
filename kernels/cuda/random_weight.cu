#include <algorithm>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/random_weight.h"

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
    if (w.dtype == DType::kF8E4M3) {
      item[index] = RandomF8(w, number);
    } else {
      reinterpret_cast<bf16*>(item)[index] = RandomBf16(w, number);
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

void FillRandomWeights(CudaStream& stream, const RandomWeight& weight, const WeightLayout& layout,
                       const PackedWeight& first, int count) {
  constexpr int64_t kPerBlock = kThreads * kElementsPerThread;
  const int64_t pieces = (int64_t{weight.n} * weight.k + kPerBlock - 1) / kPerBlock;
  auto* const data = static_cast<unsigned char*>(const_cast<void*>(first.data));
  Launch(stream, FillElements,
         {.grid = dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(count)), .block = dim3(kThreads)},
         FillElementsParams{.data = data, .weight = weight, .data_stride = layout.data_stride()});
  if (first.scales == nullptr) return;
  const int32_t pitch = ScalePitch(weight.k);
  const int64_t rows = layout.scale_stride() / pitch * count;
  Launch(stream, FillScales, {.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(kThreads)},
         FillScalesParams{.scales = const_cast<float*>(first.scales),
                          .pitch = pitch,
                          .k_blocks = (weight.k + kScaleBlock - 1) / kScaleBlock,
                          .scale = RandomF8Scale(weight)});
}

}  // namespace foredraft
