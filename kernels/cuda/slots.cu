// The step's own bookkeeping: kernels/slot_logic.h, a thread per place.

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/per_place.h"
#include "kernels/cuda/ptx.h"
#include "kernels/slot_logic.h"

namespace foredraft::cuda {
namespace {

__global__ void DecodeRowsKernel(const __grid_constant__ DecodeRowsParams p) {
  AfterPrevious();
  if (PlaceOfThread() < p.bucket) FillDecodeRows(p, PlaceOfThread());
}

__global__ void VerifyDraftsKernel(const __grid_constant__ VerifyDraftsParams p) {
  AfterPrevious();
  // A slot that runs at its length limit: the stream fails, and with it the daemon; no token is made up.
  if (PlaceOfThread() < p.bucket && !VerifyPlace(p, PlaceOfThread())) __trap();
}

__global__ void AcceptFirstTokenKernel(const __grid_constant__ AcceptFirstTokenParams p) {
  AfterPrevious();
  if (PlaceOfThread() < p.count) AcceptFirst(p, PlaceOfThread());
}

__global__ void EagleRowsKernel(const __grid_constant__ EagleRowsParams p) {
  AfterPrevious();
  if (PlaceOfThread() < p.bucket) FillEagleRows(p, PlaceOfThread());
}

__global__ void NextDraftRowsKernel(const __grid_constant__ NextDraftRowsParams p) {
  AfterPrevious();
  if (PlaceOfThread() < p.bucket) FillNextDraftRow(p, PlaceOfThread());
}

__global__ void StoreDraftsKernel(const __grid_constant__ StoreDraftsParams p) {
  AfterPrevious();
  if (PlaceOfThread() < p.bucket) StoreDraft(p, PlaceOfThread());
}

}  // namespace

void DecodeRows(Stream& stream, const DecodeRowsParams& p) {
  Launch(stream, DecodeRowsKernel, ThreadPerPlace(p.bucket), p);
}

void VerifyDrafts(Stream& stream, const VerifyDraftsParams& p) {
  Launch(stream, VerifyDraftsKernel, ThreadPerPlace(p.bucket), p);
}

void AcceptFirstToken(Stream& stream, const AcceptFirstTokenParams& p) {
  Launch(stream, AcceptFirstTokenKernel, ThreadPerPlace(p.count), p);
}

void EagleRows(Stream& stream, const EagleRowsParams& p) {
  Launch(stream, EagleRowsKernel, ThreadPerPlace(p.bucket), p);
}

void NextDraftRows(Stream& stream, const NextDraftRowsParams& p) {
  Launch(stream, NextDraftRowsKernel, ThreadPerPlace(p.bucket), p);
}

void StoreDrafts(Stream& stream, const StoreDraftsParams& p) {
  Launch(stream, StoreDraftsKernel, ThreadPerPlace(p.bucket), p);
}

}  // namespace foredraft::cuda
