#pragma once

#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/ops/attention.h"

namespace foredraft::cuda {

// Execution choice of WindowAttention; it changes no bit.
struct WindowAttentionChoice {
  // A block has 64 heads of a row instead of 16: its keys are read once instead of four times, but few rows
  // leave most of the device idle. Used where the rows are supported: 512 wide, aligned, on a GPU with
  // 227 KB of shared memory a block.
  bool many_heads;
};
void WindowAttentionBy(const WindowAttentionChoice& choice, Stream& stream, const WindowAttentionParams& p);

}  // namespace foredraft::cuda
