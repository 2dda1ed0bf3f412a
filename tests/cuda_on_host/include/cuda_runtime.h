#ifndef FOREDRAFT_TESTS_CUDA_ON_HOST_CUDA_RUNTIME_H_
#define FOREDRAFT_TESTS_CUDA_ON_HOST_CUDA_RUNTIME_H_

// CUDA's runtime header for kernels that are built and run on the host: as much of it as kernels/cuda uses.
// What it proves and what it cannot: tests/cuda_on_host/README.md.

#include "cuda_on_host/device_math.h"
#include "cuda_on_host/device_thread.h"
#include "cuda_on_host/runtime_api.h"
#include "cuda_on_host/vector_types.h"
#include "cuda_on_host/warp.h"

#endif  // FOREDRAFT_TESTS_CUDA_ON_HOST_CUDA_RUNTIME_H_
