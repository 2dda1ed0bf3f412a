// More shapes of E4M3 products (tests/gpu/fp8_probe.h): operand a in registers, as mla_decode has values, and
// such as no kernel here uses. For the GPU alone: tests/cuda_on_host does not have all these instructions.

#include "tests/gpu/fp8_probe.h"

namespace foredraft::cuda {
namespace {

// Beside the shapes below, which would hide it.
using cuda::WgmmaF8;

#define PROBE_NAMES128                                                                           \
  FOREDRAFT_NAMES64                                                                              \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

__device__ __forceinline__ void WgmmaF8(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %130, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" PROBE_NAMES128
      "}, %128, %129, add, 1, 1;\n\t}"
      : FOREDRAFT_D64(0), FOREDRAFT_D64(64)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// Operand a of a warpgroup in registers: with w = warp % 4, g = lane / 4, t = lane % 4, a[0] holds A[16 w +
// g][4 t .. 4 t + 3], a[1] the same of row 16 w + g + 8, a[2] and a[3] A[..][16 + 4 t ..] of both rows.
__device__ __forceinline__ void WgmmaF8(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %37, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" FOREDRAFT_NAMES32
      "}, {%32, %33, %34, %35}, %36, add, 1, 1;\n\t}"
      : FOREDRAFT_D32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void WgmmaF8(float (&d)[128], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %133, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" PROBE_NAMES128
      "}, {%128, %129, %130, %131}, %132, add, 1, 1;\n\t}"
      : FOREDRAFT_D64(0), FOREDRAFT_D64(64)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

struct WideProduct {
  static constexpr int n = 256;
  __device__ explicit WideProduct(ProductShared<n>& tiles)
      : a(KMajorDescriptor(tiles.a)), b(KMajorDescriptor(tiles.b)) {}
  __device__ __forceinline__ void Multiply(float (&d)[n / 2], int group) const {
    WgmmaF8(d, a + group * kDescriptor32Bytes, b + group * kDescriptor32Bytes, /*add=*/true);
  }
  uint64_t a, b;
};

template <int outputs>
struct RegisterProduct {
  static constexpr int n = outputs;
  __device__ explicit RegisterProduct(ProductShared<n>& tiles) : b(KMajorDescriptor(tiles.b)) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t first_row = static_cast<int32_t>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
    for (int group = 0; group < kProbeGroups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t row = first_row + i % 2 * 8, chunk = group * 2 + i / 2;
        a[group][i] = *reinterpret_cast<const uint32_t*>(tiles.a + row * kTileRowBytes +
                                                         (chunk ^ row % 8) * 16 + lane % 4 * 4);
      }
    }
  }
  __device__ __forceinline__ void Multiply(float (&d)[n / 2], int group) const {
    WgmmaF8(d, a[group], b + group * kDescriptor32Bytes, /*add=*/true);
  }
  uint32_t a[kProbeGroups][4];
  uint64_t b;
};

TEST(Probe, E4m3ProductsOf256Values) { ProbeProducts<WideProduct>("e4m3 m64n256k32"); }
TEST(Probe, E4m3ProductsOf32HeadsFromRegisters) {
  ProbeProducts<RegisterProduct<32>>("e4m3 m64n32k32, a in registers");
}
TEST(Probe, E4m3ProductsOf64KeysFromRegisters) {
  ProbeProducts<RegisterProduct<64>>("e4m3 m64n64k32, a in registers");
}
TEST(Probe, E4m3ProductsOf256ValuesFromRegisters) {
  ProbeProducts<RegisterProduct<256>>("e4m3 m64n256k32, a in registers");
}

}  // namespace
}  // namespace foredraft::cuda
