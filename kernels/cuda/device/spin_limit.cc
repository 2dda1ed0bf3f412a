#include "kernels/cuda/device/spin_limit.h"

#include <cstring>
#include <mutex>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/cuda/device/cuda_memory.h"

namespace foredraft {
namespace {

// Constructed at first use, because the registrations run before main.
std::vector<const void*>& DeviceVariables() {
  static std::vector<const void*> variables;
  return variables;
}

SpinReport* report = nullptr;  // page-locked; lives as long as the process

}  // namespace

SpinReportPointer::SpinReportPointer(const void* device_variable) {
  DeviceVariables().push_back(device_variable);
}

void PrepareSpinReports() {
  static std::once_flag once;
  std::call_once(once, [] {
    void* memory = nullptr;
    CheckCuda(cudaMallocHost(&memory, sizeof(SpinReport)), "memory for the report of a spin limit");
    std::memset(memory, 0, sizeof(SpinReport));
    report = static_cast<SpinReport*>(memory);
    // Host memory has the same address on the device.
    for (const void* const variable : DeviceVariables()) {
      CheckCuda(cudaMemcpyToSymbol(variable, &report, sizeof(report)), "set the report of a spin limit");
    }
  });
}

std::string SpinLimitReport() {
  if (report == nullptr) return "";
  const volatile SpinReport& written = *report;
  if (written.thread_count == 0) return "";
  return absl::StrFormat(
      "; %s:%d: mbarrier \"%s\", parity %d, did not complete for seconds in block (%d, %d, %d), thread %d "
      "(%d threads gave up)",
      report->file, report->line, report->barrier, report->parity, report->block.x, report->block.y,
      report->block.z, report->thread.x, report->thread_count);
}

}  // namespace foredraft
