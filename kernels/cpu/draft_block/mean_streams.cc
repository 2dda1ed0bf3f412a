#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

FOREDRAFT_WIDE void Mean(const float* streams, int32_t stream_count, int64_t width, float* out) {
  for (int64_t d = 0; d < width; ++d) out[d] = streams[d];
  for (int32_t i = 1; i < stream_count; ++i) {
    const float* stream = streams + i * width;
    for (int64_t d = 0; d < width; ++d) out[d] += stream[d];
  }
  const float count = static_cast<float>(stream_count);
  for (int64_t d = 0; d < width; ++d) out[d] /= count;
}

}  // namespace

void MeanStreams(const CpuContext& context, const MeanStreamsParams& p) {
  const int32_t width = p.out.cols;
  context.pool.ParallelFor(p.out.rows, p.streams.cols, [&](int64_t begin, int64_t end) {
    float* const mean = ThreadScratch<float>(width);
    for (int64_t r = begin; r < end; ++r) {
      Mean(p.streams.row(r), p.stream_count, width, mean);
      RoundToBf16(mean, width, p.out.row(r));
    }
  });
}

}  // namespace foredraft::cpu
