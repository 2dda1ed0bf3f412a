#pragma once

#include <cuda_runtime.h>

#include "kernels/device.h"

namespace foredraft {

class CudaEvent : public Event {
 public:
  CudaEvent();
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void Record(Stream& stream) override;
  // Polls, because CUDA's own wait has no deadline. The polling delay does not idle the device: the next step
  // is already submitted.
  bool Wait(std::chrono::steady_clock::time_point deadline) const override;
  double SecondsSince(const Event& earlier) const override;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace foredraft
