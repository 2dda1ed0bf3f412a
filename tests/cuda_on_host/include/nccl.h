#pragma once

// The part of NCCL 2.28 that engine/comm uses, for ranks that are threads of one process (nccl.cc). Where the
// real header exists, tests/gpu/nccl_header.cc compares the values below with it.

#include <cuda_runtime.h>

#include "cuda_on_host/nccl_api.h"
