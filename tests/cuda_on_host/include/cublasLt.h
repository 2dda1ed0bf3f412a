#ifndef FOREDRAFT_TESTS_CUDA_ON_HOST_CUBLASLT_H_
#define FOREDRAFT_TESTS_CUDA_ON_HOST_CUBLASLT_H_

// The part of cuBLASLt that kernels/cuda calls.

#include <cuda_runtime.h>

#include <cstddef>

inline size_t cublasLtGetVersion() { return 130100; }

#endif  // FOREDRAFT_TESTS_CUDA_ON_HOST_CUBLASLT_H_
