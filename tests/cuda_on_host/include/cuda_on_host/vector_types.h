#pragma once

// Function and variable qualifiers, dim3 and the short vectors with CUDA's alignments. Without __shared__,
// because kernels use SharedStorage<T>().

#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))

#define CUDA_ON_HOST_VECTOR2(name, type, alignment) \
  struct alignas(alignment) name {                  \
    type x, y;                                      \
  };                                                \
  inline constexpr name make_##name(type x, type y) { return {x, y}; }
#define CUDA_ON_HOST_VECTOR3(name, type) \
  struct name {                          \
    type x, y, z;                        \
  };                                     \
  inline constexpr name make_##name(type x, type y, type z) { return {x, y, z}; }
#define CUDA_ON_HOST_VECTOR4(name, type, alignment) \
  struct alignas(alignment) name {                  \
    type x, y, z, w;                                \
  };                                                \
  inline constexpr name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

CUDA_ON_HOST_VECTOR2(char2, signed char, 2)
CUDA_ON_HOST_VECTOR2(uchar2, unsigned char, 2)
CUDA_ON_HOST_VECTOR2(short2, short, 4)
CUDA_ON_HOST_VECTOR2(ushort2, unsigned short, 4)
CUDA_ON_HOST_VECTOR2(int2, int, 8)
CUDA_ON_HOST_VECTOR2(uint2, unsigned int, 8)
CUDA_ON_HOST_VECTOR2(float2, float, 8)
CUDA_ON_HOST_VECTOR2(longlong2, long long, 16)
CUDA_ON_HOST_VECTOR2(ulonglong2, unsigned long long, 16)
CUDA_ON_HOST_VECTOR2(double2, double, 16)
CUDA_ON_HOST_VECTOR3(int3, int)
CUDA_ON_HOST_VECTOR3(uint3, unsigned int)
CUDA_ON_HOST_VECTOR3(float3, float)
CUDA_ON_HOST_VECTOR4(char4, signed char, 4)
CUDA_ON_HOST_VECTOR4(uchar4, unsigned char, 4)
CUDA_ON_HOST_VECTOR4(short4, short, 8)
CUDA_ON_HOST_VECTOR4(ushort4, unsigned short, 8)
CUDA_ON_HOST_VECTOR4(int4, int, 16)
CUDA_ON_HOST_VECTOR4(uint4, unsigned int, 16)
CUDA_ON_HOST_VECTOR4(float4, float, 16)

#undef CUDA_ON_HOST_VECTOR2
#undef CUDA_ON_HOST_VECTOR3
#undef CUDA_ON_HOST_VECTOR4

struct dim3 {
  unsigned int x = 1, y = 1, z = 1;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
