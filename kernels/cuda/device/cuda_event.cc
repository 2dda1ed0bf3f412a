#include "kernels/cuda/device/cuda_event.h"

#include <thread>

#include "base/check.h"
#include "kernels/cuda/device/cuda_stream.h"

namespace foredraft {
namespace {

constexpr std::chrono::microseconds kPollInterval(20);

}  // namespace

CudaEvent::CudaEvent() { CheckCuda(cudaEventCreateWithFlags(&event_, cudaEventDefault), "create an event"); }

CudaEvent::~CudaEvent() { CheckCuda(cudaEventDestroy(event_), "destroy an event"); }

void CudaEvent::Record(Stream& stream) {
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  CHECK(!cuda_stream.capturing()) << "record inside a capture";
  CheckCuda(cudaEventRecord(event_, cuda_stream.handle()), "record");
}

bool CudaEvent::Wait(std::chrono::steady_clock::time_point deadline) const {
  while (true) {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) CheckCuda(state, "wait for a step");
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
}

double CudaEvent::SecondsSince(const Event& earlier) const {
  float milliseconds = 0;
  CheckCuda(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).event_, event_),
            "measure");
  return milliseconds / 1e3;
}

}  // namespace foredraft
