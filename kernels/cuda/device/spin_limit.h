#pragma once

// With the CMake option FOREDRAFT_SPIN_LIMIT, a wait on an mbarrier that lasts longer than any kernel (4.3 to
// 8.6 seconds) names the barrier and traps. Without it such a wait, for example after a wrong byte count,
// hangs the kernel.
//
// The name travels through page-locked host memory, which stays readable after the trap. printf would be a
// call inside the kernel, and ptxas serialises the wgmmas of a kernel that has calls.

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

namespace foredraft {

#ifdef FOREDRAFT_SPIN_LIMIT

// Written by the first thread that gives up.
struct SpinReport {
  uint32_t thread_count;  // that gave up so far
  uint32_t parity;
  uint3 block;
  uint3 thread;
  int32_t line;
  char barrier[64];
  char file[128];
};

// Without relocatable device code every translation unit has its own copy of a device variable: each
// registers its copy when the program starts, and PrepareSpinReports sets all of them.
class SpinReportPointer {
 public:
  explicit SpinReportPointer(const void* device_variable);
};

// Called once the device is known to work, before the first kernel.
void PrepareSpinReports();
// "; FILE:LINE: ..." if a wait has given up, else "". For messages about failed CUDA calls.
std::string SpinLimitReport();

#ifdef __CUDACC__
namespace {
__device__ SpinReport* spin_report = nullptr;
const SpinReportPointer registered_spin_report(&spin_report);
}  // namespace

__device__ __forceinline__ void CopyText(char* to, const char* from, int capacity) {
  int i = 0;
  for (; i < capacity - 1 && from[i] != 0; ++i) to[i] = from[i];
  to[i] = 0;
}

__device__ __forceinline__ void TrapAtBarrier(const char* name, uint32_t parity, const char* file, int line) {
  SpinReport* const report = spin_report;
  if (report != nullptr && atomicAdd_system(&report->thread_count, 1u) == 0) {
    report->parity = parity;
    report->block = blockIdx;
    report->thread = threadIdx;
    report->line = line;
    CopyText(report->barrier, name, sizeof(report->barrier));
    CopyText(report->file, file, sizeof(report->file));
    __threadfence_system();
  } else {
    __nanosleep(1000000);  // the trap ends all threads: lets the first one finish its report
  }
  __trap();
}
#endif  // __CUDACC__

#else

inline void PrepareSpinReports() {}
inline std::string SpinLimitReport() { return ""; }

#endif  // FOREDRAFT_SPIN_LIMIT

}  // namespace foredraft
