#pragma once

// The part of CUDA's runtime header that kernels/cuda uses, for building and running kernels on the host.
// tests/cuda_on_host/README.md lists what this can and cannot test.

#include "cuda_on_host/device_math.h"
#include "cuda_on_host/device_thread.h"
#include "cuda_on_host/runtime_api.h"
#include "cuda_on_host/vector_types.h"
#include "cuda_on_host/warp.h"
