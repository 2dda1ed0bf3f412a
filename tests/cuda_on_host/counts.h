#ifndef FOREDRAFT_TESTS_CUDA_ON_HOST_COUNTS_H_
#define FOREDRAFT_TESTS_CUDA_ON_HOST_COUNTS_H_

// What the code under test has asked of CUDA since the process began, so that a test can say "after warm-up
// no allocation, one graph launch per step".

#include <cstddef>
#include <cstdint>

namespace cuda_on_host {

struct Counts {
  int64_t mallocs;  // cudaMalloc and cudaMallocHost
  int64_t frees;
  int64_t launches;  // of kernels, outside graphs
  int64_t copies;    // cudaMemcpy*, outside graphs
  int64_t memsets;   // outside graphs
  int64_t graph_launches;
  int64_t captures;
  int64_t instantiations;
  int64_t syncs;    // the host waits: streams, events, the device, copies that are not Async
  int64_t queries;  // the host asks
};

Counts CurrentCounts();

// The order in which blocks, warps and lanes run. The same seed gives the same order when blocks run on one
// thread (SetBlockThreads(1)).
void SetSeed(uint64_t seed);
// On how many threads of the host the blocks of a grid run; 2 at first.
void SetBlockThreads(int count);
// What cudaMemGetInfo says there is in all; 1 GiB at first.
void SetDeviceMemory(size_t bytes);
// How much of it an instantiated graph takes; 0 at first.
void SetGraphMemory(size_t bytes);

}  // namespace cuda_on_host

#endif  // FOREDRAFT_TESTS_CUDA_ON_HOST_COUNTS_H_
