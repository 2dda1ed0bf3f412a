#pragma once

// Device memory and launches, for tests of the emulation itself.

#include <cuda_runtime.h>

#include <vector>

#include "gtest/gtest.h"

namespace cuda_on_host {

template <class T>
T* Device(const std::vector<T>& values) {
  T* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, values.size() * sizeof(T)), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
            cudaSuccess);
  return memory;
}
template <class T>
std::vector<T> Host(const T* memory, size_t count) {
  std::vector<T> values(count);
  EXPECT_EQ(cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  return values;
}

template <class P>
void Start(void (*kernel)(P), dim3 grid, dim3 block, size_t shared, const P& p, cudaStream_t stream = nullptr,
           bool programmatic = false) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, p), cudaSuccess);
}

}  // namespace cuda_on_host
