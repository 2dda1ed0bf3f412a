#ifndef FOREDRAFT_TESTS_CUDA_ON_HOST_CUDA_RUNTIME_H_
#define FOREDRAFT_TESTS_CUDA_ON_HOST_CUDA_RUNTIME_H_

// The part of CUDA's runtime header that kernels/cuda uses, for building and running kernels on the host.
// tests/cuda_on_host/README.md lists what this can and cannot test.

#include "cuda_on_host/device_math.h"
#include "cuda_on_host/device_thread.h"
#include "cuda_on_host/runtime_api.h"
#include "cuda_on_host/vector_types.h"
#include "cuda_on_host/warp.h"

#endif  // FOREDRAFT_TESTS_CUDA_ON_HOST_CUDA_RUNTIME_H_
