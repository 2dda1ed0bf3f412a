#include "tests/bench/paper_communicator.h"

#include <algorithm>

#include "kernels/cuda/exchange/push_exchange.h"
#include "tests/bench/paper_device.h"

namespace foredraft {

// One kernel: NCCL's, whose parts are a group, or that of the windows. Every rank receives at once.
void PaperCommunicator::Exchange(Stream& stream, const char* kernel, int64_t bytes, int ranks) const {
  if (bytes == 0) return;
  const double received = static_cast<double>(bytes) * (ranks - 1);
  const bool pushed = windows_ && bytes <= kPushSlotBytes;
  const double fixed = pushed ? gpu_.window_seconds : gpu_.exchange_seconds;
  PaperDevice::SubmitKernel(stream, {.kernel = kernel,
                                     .items = 0,
                                     .fixed_seconds = fixed + received / gpu_.link_rate,
                                     .programmatic = pushed});
}

void PaperCommunicator::AllGather(Stream& stream, const AllGatherParams& params) {
  int64_t bytes = 0;
  for (const GatherPart& part : params.parts) bytes += params.rows[0] * part.row_bytes;
  Exchange(stream, "AllGather", bytes, std::min(params.set.count, size()));
}

void PaperCommunicator::AllToAll(Stream& stream, const AllToAllParams& params) {
  Exchange(stream, "AllToAll", params.rows[0] * params.row_bytes, size());
}

}  // namespace foredraft
