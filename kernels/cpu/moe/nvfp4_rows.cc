// round_nvfp4, widen_nvfp4. No instruction set has a path of its own: the experts' products take far longer.

#include "kernels/rules/nvfp4_rows.h"

#include <algorithm>

#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

constexpr int64_t kCostOfColumn = 16;

// A group of codes, and their scale.
struct Group {
  uint8_t scale;
  uint8_t codes[kNvfp4Group];

  Group(const bf16* x, float input_scale) {
    uint32_t magnitude = 0;
    for (int i = 0; i < kNvfp4Group; ++i) magnitude = std::max(magnitude, x[i].bits & 0x7fffu);
    scale = Nvfp4Scale(magnitude, input_scale);
    const float product = Nvfp4Product(scale, input_scale);
    for (int i = 0; i < kNvfp4Group; ++i) codes[i] = Nvfp4Code(x[i], product);
  }
};

// The scale of the expert that a grouped row belongs to.
float ScaleOf(const RoundNvfp4Params& p, int64_t row) {
  if (p.expert_offsets == nullptr) return p.input_scales[0];
  const int32_t* const ends = p.expert_offsets + 1;
  return p.input_scales[std::upper_bound(ends, ends + p.expert_count, row) - ends];
}

}  // namespace

void RoundNvfp4(const CpuContext& context, const RoundNvfp4Params& p) {
  const int32_t all = p.out ? p.out.rows : p.out_codes.rows;
  const int64_t rows = p.expert_offsets == nullptr ? all : std::min(all, p.expert_offsets[p.expert_count]);
  context.pool.ParallelFor(rows, kCostOfColumn * p.x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const bf16* const x = p.x.row(p.x_rows != nullptr ? p.x_rows[r] : r);
      const float input_scale = ScaleOf(p, r);
      for (int32_t first = 0; first < p.x.cols; first += kNvfp4Group) {
        const Group group(x + first, input_scale);
        if (p.out) {
          for (int i = 0; i < kNvfp4Group; ++i) {
            p.out.row(r)[first + i] = Nvfp4Value(group.codes[i], group.scale);
          }
          continue;
        }
        p.out_codes.scales(r)[first / kNvfp4Group] = group.scale;
        for (int i = 0; i < kNvfp4Group; i += 2) {
          p.out_codes.codes(r)[(first + i) / 2] =
              static_cast<uint8_t>(group.codes[i] | group.codes[i + 1] << 4);
        }
      }
    }
  });
}

void WidenNvfp4(const CpuContext& context, const WidenNvfp4Params& p) {
  context.pool.ParallelFor(p.out.rows, kCostOfColumn * p.out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const uint8_t* const codes = p.x.codes(r);
      for (int32_t i = 0; i < p.out.cols; ++i) {
        p.out.row(r)[i] = Nvfp4Value(codes[i / 2] >> (i % 2 * 4) & 15, p.x.scales(r)[i / kNvfp4Group]);
      }
    }
  });
}

}  // namespace foredraft::cpu
