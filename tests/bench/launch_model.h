#pragma once

// How long a kernel launch should take on a GPU: a model from the launch's blocks, bytes and products, to
// hold measured times against. Everything here is predicted, nothing is measured.
//
// A launch is `items` equal pieces of work. A block works on one item at a time, so the items run in waves of
// as many blocks as fit on the GPU. Of a wave, four things overlap, and the slowest decides:
//
// clang-format off
//   its share of the bytes from memory        at the memory's rate
//   the bytes of an item, from memory or L2   at a block's rate: the least of its share of what a
//                                             multiprocessor takes from L2 and, by Little's law, the bytes
//                                             that it keeps in flight / memory latency
//   the products of an item                   at its share of a multiprocessor's matrix units
//   the chain of an item                      steps that wait for each other (wait, multiply, promote)
// clang-format on
//
// Before the first wave comes the start of the kernel, after the last its tail.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace foredraft {

struct GpuModel {
  std::string name;
  int multiprocessors = 0;
  double memory_rate = 0;          // bytes per second, as a copy reaches them
  double multiprocessor_rate = 0;  // bytes per second that one multiprocessor takes from L2
  double bf16_flops = 0;           // per second, as the largest products reach them
  double fp8_flops = 0;
  double clock = 0;             // cycles per second
  double memory_latency = 0;    // seconds from a load to its data, under load
  double follow_seconds = 0;    // from the end of a kernel to the first block's work of the next one (PDL)
  double edge_seconds = 0;      // the same across a fork, a join or a copy, and at the start of a graph
  double host_seconds = 0;      // the host's time per eager launch
  double exchange_seconds = 0;  // of NCCL's kernel for a few rows, between the ranks of a machine
  double window_seconds =
      0;                 // the same through windows: a flag's way to a peer and the rows' out of its slot
  double link_rate = 0;  // bytes per second that a rank receives in a large exchange
};

// The model with what was measured instead (tests/gpu/probe_test.cc): `path` is a JSON object with some of
// follow_us, edge_us and multiprocessor_gb_per_s. Errors name the file and the key.
absl::StatusOr<GpuModel> WithMeasured(const GpuModel& model, const std::string& path);

// "h200" or "h100", or a device's name that contains one of them. Null for any other.
const GpuModel* FindGpuModel(std::string_view name);

struct KernelLaunch {
  std::string kernel;
  double items = 1;
  int blocks_per_multiprocessor = 1;
  double memory_bytes = 0;  // of all items: to and from memory, each byte once
  double item_bytes = 0;    // that one item loads and stores, from or to memory or L2
  double in_flight = 0;     // bytes that one block has requested and not yet received
  double item_bf16_flops = 0;
  double item_fp8_flops = 0;
  double matrix_share = 1;   // of the matrix units' rate, if nothing else limits the kernel
  double chain_seconds = 0;  // of an item
  double fixed_seconds = 0;  // before the first item's loads return, and after the last item
  bool programmatic = true;  // starts, and lets the next kernel start, before the end of the one before (PDL)
};

// The launch alone, without the gap before it.
double LaunchSeconds(const KernelLaunch& launch, const GpuModel& gpu);

// Blocks that run at once, and how often they all take an item.
double BlocksAtOnce(const KernelLaunch& launch, const GpuModel& gpu);
double Waves(const KernelLaunch& launch, const GpuModel& gpu);

}  // namespace foredraft
