#pragma once

// Products of E4M3 rows on Hopper's matrix units, over and over: what mla_decode over an FP8 cache would be
// made of. The rows are random.

#include <string>
#include <vector>

#include "kernels/cuda/common/ptx_attention.h"
#include "kernels/cuda/common/ptx_hopper.h"
#include "kernels/cuda/common/tile_descriptor.h"
#include "tests/gpu/probe.h"

namespace foredraft::cuda {

inline constexpr int kProbeRows = 64;   // of operand a
inline constexpr int kProbeGroups = 4;  // k groups of 32 codes in a row of a tile
inline constexpr int kWarpgroup = 128;  // threads
inline constexpr int kCodesPerRow = kTileRowBytes;

// Row-major codes, `rows` rows of 128, to a swizzled tile. Called by the whole block.
__device__ __forceinline__ void StoreTile(uint8_t* tile, const uint8_t* codes, int32_t rows) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < rows * 8; i += static_cast<int32_t>(blockDim.x)) {
    const int32_t row = i / 8, chunk = i % 8;
    *reinterpret_cast<uint4*>(tile + row * kTileRowBytes + (chunk ^ row % 8) * 16) =
        *reinterpret_cast<const uint4*>(codes + row * kCodesPerRow + chunk * 16);
  }
}

template <int n>
struct ProductShared {
  alignas(1024) uint8_t a[kProbeRows * kTileRowBytes];
  alignas(1024) uint8_t b[n * kTileRowBytes];
};

struct ProductParams {
  const uint8_t* a;  // [64, 128]
  const uint8_t* b;  // [n, 128]
  float* sums;       // [64, n]: rounds * a b^T; written by block 0
  int32_t rounds;
};

// D of a warpgroup's product, laid out as in WgmmaF8, to [64, n].
template <int n>
__device__ __forceinline__ void StoreSums(float* sums, const float (&d)[n / 2]) {
  const int32_t row =
      static_cast<int32_t>(threadIdx.x) / 32 * 16 + static_cast<int32_t>(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    const int32_t column = i / 4 * 8 + static_cast<int32_t>(threadIdx.x) % 4 * 2 + i % 2;
    sums[(row + i / 2 % 2 * 8) * n + column] = d[i];
  }
}

// A warpgroup adds the product of the same tiles `rounds` times: the assembler leaves out products whose sums
// nobody reads. Product::Multiply(d, group) starts the product of one k group.
template <class Product>
__global__ void __launch_bounds__(kWarpgroup) Multiply(const __grid_constant__ ProductParams p) {
  constexpr int n = Product::n;
  GridDependencySync();
  auto& tiles = SharedStorage<ProductShared<n>>();
  StoreTile(tiles.a, p.a, kProbeRows);
  StoreTile(tiles.b, p.b, n);
  FenceProxyAsync();
  __syncthreads();
  Product product(tiles);
  float d[n / 2];
#pragma unroll
  for (int i = 0; i < n / 2; ++i) d[i] = 0.0f;
  for (int32_t round = 0; round < p.rounds; ++round) {
    WarpgroupArrive();
#pragma unroll
    for (int group = 0; group < kProbeGroups; ++group) product.Multiply(d, group);
    WarpgroupCommitBatch();
    WarpgroupWait<1>();
  }
  WarpgroupWaitAll(d);
  if (blockIdx.x == 0) StoreSums<n>(p.sums, d);
}

struct E4m3Rows {
  std::vector<uint8_t> codes;
  std::vector<float> values;
};
// Codes of all finite numbers up to 7.5, equally likely.
inline E4m3Rows RandomRows(Noise& noise, int count) {
  E4m3Rows rows;
  for (int i = 0; i < count * kCodesPerRow; ++i) {
    rows.codes.push_back(static_cast<uint8_t>(noise.Int(0, 0x4f) | noise.Int(0, 1) << 7));
    rows.values.push_back(F8E4M3ToFloat(rows.codes.back()));
  }
  return rows;
}

// What the sums of 128 products are off by, at most, as a share of its bound. An instruction adds 32 products
// to a sum, all of them truncated to 13 bits below the largest one's leading bit, and truncates what it gives
// to as many bits (microsoft/MMA-Sim, as tests/cuda_on_host computes them).
inline double LargestError(const E4m3Rows& a, const E4m3Rows& b, const std::vector<float>& sums) {
  constexpr int kTerms = 33;
  const int n = static_cast<int>(b.codes.size()) / kCodesPerRow;
  double largest_share = 0;
  for (int i = 0; i < kProbeRows * n; ++i) {
    const float* const x = &a.values[i / n * kCodesPerRow];
    const float* const y = &b.values[i % n * kCodesPerRow];
    double exact = 0, bound = 0;
    for (int first = 0; first < kCodesPerRow; first += 32) {
      double largest = std::abs(exact);
      for (int k = first; k < first + 32; ++k) {
        const double product = double(x[k]) * y[k];
        largest = std::max(largest, std::abs(product));
        exact += product;
      }
      bound += (kTerms * largest + std::abs(exact)) * 0x1p-13;
    }
    largest_share = std::max(largest_share, std::abs(sums[i] - exact) / bound);
  }
  return largest_share;
}

// The rate on all multiprocessors at once, and the sums beside exact ones.
template <class Product>
void ProbeProducts(const std::string& name) {
  OpRig rig({}, RunMode::kEager);
  if (!RunsHopperKernels()) GTEST_SKIP() << "this GPU has no wgmma";
  const bool emulated = IsEmulated(rig.device());
  const GpuModel& model = Model(rig.device());
  constexpr int n = Product::n;
  Noise noise(n);
  const E4m3Rows a = RandomRows(noise, kProbeRows), b = RandomRows(noise, n);
  ProductParams params = {
      .a = rig.Put(a.codes), .b = rig.Put(b.codes), .sums = rig.Poisoned<float>(kProbeRows * n), .rounds = 0};
  const int blocks = emulated ? 1 : model.multiprocessors;
  LaunchShape shape = OneBlock(kWarpgroup);
  shape.grid = dim3(static_cast<unsigned>(blocks));
  shape.shared_bytes = sizeof(ProductShared<n>);
  const double seconds = SecondsOfRound(rig, &Multiply<Product>, shape, params, emulated ? 2 : 20000);
  params.rounds = 1;
  Launch(rig.stream(), &Multiply<Product>, shape, params);
  const double flops = 2.0 * kProbeRows * n * kCodesPerRow * blocks;
  Print(name, flops / seconds * 1e-12, "TFLOPS", model.fp8_flops * 1e-12);
  const double error = LargestError(a, b, rig.Get(params.sums, kProbeRows * n));
  Print(name + ", error of sums", error, "of-its-bound", 1);
  EXPECT_LE(error, 1);
}

}  // namespace foredraft::cuda
