// MTP Vanilla's windows: kernels/vanilla_logic.h, a thread per place.

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/per_place.h"
#include "kernels/cuda/ptx.h"
#include "kernels/vanilla_logic.h"

namespace foredraft::cuda {
namespace {

__global__ void VanillaRowsKernel(const __grid_constant__ VanillaRowsParams p) {
  AfterPrevious();
  if (PlaceOfThread() < p.bucket) FillVanillaRows(p, PlaceOfThread());
}

__global__ void VanillaLevelRowsKernel(const __grid_constant__ VanillaLevelRowsParams p) {
  AfterPrevious();
  if (PlaceOfThread() < p.bucket) FillVanillaLevelRows(p, PlaceOfThread());
}

__global__ void AppendRecentKernel(const __grid_constant__ AppendRecentParams p) {
  AfterPrevious();
  if (PlaceOfThread() < p.count) AppendToRecent(p, PlaceOfThread());
}

}  // namespace

void VanillaRows(Stream& stream, const VanillaRowsParams& p) {
  Launch(stream, VanillaRowsKernel, ThreadPerPlace(p.bucket), p);
}

void VanillaLevelRows(Stream& stream, const VanillaLevelRowsParams& p) {
  Launch(stream, VanillaLevelRowsKernel, ThreadPerPlace(p.bucket), p);
}

void AppendRecent(Stream& stream, const AppendRecentParams& p) {
  Launch(stream, AppendRecentKernel, ThreadPerPlace(p.count), p);
}

}  // namespace foredraft::cuda
