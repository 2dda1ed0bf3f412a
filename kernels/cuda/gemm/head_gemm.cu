#include "base/check.h"
#include "kernels/cuda/dense/quantize.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "kernels/cuda/gemm/weight_kind.h"

namespace foredraft::cuda {
namespace {

// FP8: each head quantises its own columns. The heads run one after another, because no large model keeps
// these weights in FP8.
void HeadByHead(Stream& stream, const HeadGemmParams& p) {
  const PackedWeight& first = p.heads.first;
  const QuantizedShape shape(p.x.rows, first.k);
  const QuantizedRows x_f8 = shape.View(static_cast<CudaStream&>(stream).Scratch(shape.bytes));
  for (int32_t head = 0; head < p.heads.count; ++head) {
    const Matrix<const bf16> x = p.x.columns(head * p.x_head_stride, first.k);
    QuantizeRows(stream, x_f8, x, nullptr, nullptr, x.rows);
    PackedWeight weight = first;
    weight.data = static_cast<const unsigned char*>(first.data) + head * p.heads.data_stride;
    weight.scales = first.scales + head * p.heads.scale_stride;
    TileGemm(stream, {.out_bf16 = p.out.columns(head * p.out_head_stride, first.n),
                      .x_f8 = x_f8,
                      .weight = weight,
                      .ranges = {.offsets = nullptr, .rows = p.x.rows, .groups = 1}});
  }
}

// The heads are groups with the same rows, each with its own columns of x and of the output.
GemmProblem AllHeads(const HeadGemmParams& p) {
  return {.out_bf16 = p.out,
          .x = p.x.columns(0, p.heads.first.k),
          .weight = p.heads.first,
          .data_stride = p.heads.data_stride,
          .scale_stride = p.heads.scale_stride,
          .x_group_stride = p.x_head_stride,
          .out_group_stride = p.out_head_stride,
          .ranges = {.offsets = nullptr, .rows = p.x.rows, .groups = p.heads.count}};
}

// Whether HopperGemm can quantise what it stores: a head's outputs are one scale group.
bool StoresQuantized(const HeadGemmParams& p) {
  const PackedWeight& head = p.heads.first;
  return p.out_f8 && head.format.code == DType::kBF16 && head.n == kQuantGroup && HopperSupports(head) &&
         TmaCanLoad(p.x, p.x_head_stride);
}

}  // namespace

void HeadGemm(Stream& stream, const HeadGemmParams& p) {
  if (p.heads.count == 0) return;
  CHECK(!p.out_f8 || p.out_head_stride == p.heads.first.n);
  if (StoresQuantized(p)) {
    GemmProblem problem = AllHeads(p);
    problem.out_f8 = p.out_f8;
    return HopperGemm(stream, problem);
  }
  if (IsF8(p.heads.first.format)) {
    HeadByHead(stream, p);
  } else {
    KindOf(p.heads.first.format).product(stream, AllHeads(p));
  }
  if (p.out_f8) QuantizeRows(stream, p.out_f8, p.out, nullptr, nullptr, p.out.rows);
}

}  // namespace foredraft::cuda
