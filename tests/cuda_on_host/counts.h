#pragma once

// Counts of CUDA calls since the process began, for tests such as "no allocation and one graph launch per
// step after the warm-up".

#include <cstddef>
#include <cstdint>

namespace cuda_on_host {

struct Counts {
  int64_t mallocs;  // cudaMalloc and cudaMallocHost
  int64_t frees;
  int64_t launches;               // of kernels, outside graphs
  int64_t programmatic_launches;  // of these
  int64_t copies;                 // cudaMemcpy*, outside graphs
  int64_t memsets;                // outside graphs
  int64_t graph_launches;
  int64_t captures;
  int64_t instantiations;
  int64_t syncs;    // calls that block the host: streams, events, the device, synchronous copies
  int64_t queries;  // cudaStreamQuery, cudaEventQuery
};

Counts CurrentCounts();

// How many different weights, by address, cublasLtMatmul was called with since the last call.
int64_t TakeCublasLtWeights();

// The order in which blocks, warps and lanes run. The same seed gives the same order when blocks run on one
// thread (SetBlockThreads(1)).
void SetSeed(uint64_t seed);
// The number of host threads that run the blocks of a grid; 2 by default.
void SetBlockThreads(int count);
// The total of cudaMemGetInfo; 1 GiB by default.
void SetDeviceMemory(size_t bytes);
// The device memory of an instantiated graph; 0 by default.
void SetGraphMemory(size_t bytes);
// How much cudaMallocHost gives in all; no limit by default. And what it has given.
void SetPinnedMemory(size_t bytes);
size_t PinnedBytes();
// How many devices there are; 1 by default. They share their memory, but not their streams: a call that waits
// for a device waits for the streams that were created while it was current.
void SetDeviceCount(int count);
// Whether the binary has code for the emulated GPU; launches fail without. It has by default.
void SetKernelImages(bool there);

}  // namespace cuda_on_host
