// The launches of DeepSeek-V4's ops.

#include <algorithm>
#include <cmath>

#include "tests/bench/op_launches.h"

namespace foredraft {
namespace {

constexpr double kKeyTile = 64;

double CeilDivide(double value, double unit) { return std::ceil(value / unit); }

// ---- hyper-connections (kernels/cuda/dense/hyper_connections.cu) ----

// The products by chunks of 256 columns and tiles of 4 rows; then a block per row.
template <class Params>
KernelLaunches ReducingLaunches(const Params& p, double outputs, const CostContext& shape,
                                const GpuModel& gpu) {
  const double chunks = CeilDivide(p.streams.cols, 256), rows = p.streams.rows;
  const double partials = 4 * rows * chunks * (outputs + 1);
  const double stream_bytes = 4 * rows * p.streams.cols;
  const double product_bytes = CostOf(p, shape).bytes - 4 * rows * p.out.cols;
  return {
      StreamingLaunch("HyperProducts", CeilDivide(rows, 4) * chunks, 128, product_bytes, 2, gpu),
      StreamingLaunch("HyperReduce", rows, 1024, partials + stream_bytes + 4 * rows * p.out.cols, 4, gpu)};
}

// ---- window_attention ----

// Bytes that a block's warps read from shared memory for a tile of keys
// (kernels/cuda/attention/listed_attention.h): ldmatrix loads 512 bytes.
double SharedBytesOfTile(double heads, double width) {
  const double head_tiles = heads / 16, warps = heads > 16 ? 8 : 4;
  const double key_groups = kKeyTile / 16 / (warps / head_tiles);
  const double scores = width / 16 * warps * (1 + key_groups);
  const double values = kKeyTile / 16 * warps * (head_tiles + width / 16 / warps);
  return 512 * (scores + values);
}

// A block per row and tile of heads (kernels/cuda/attention/listed_attention.h). keys: of a row.
template <class Params>
KernelLaunches ListedAttentionLaunches(const char* kernel, const Params& p, double keys, const OpCost& cost,
                                       const GpuModel& gpu) {
  // As an H200 takes them: three barriers of a tile and the softmax between them; FP8 keys are widened first.
  constexpr double kBarrierCycles = 1200, kF8Cycles = 3000;
  constexpr double kSharedPerCycle = 128;  // bytes that a multiprocessor reads
  const double rows = p.index.rows, width = p.layout.width();
  const double heads = rows >= gpu.multiprocessors && p.head_count > 16 ? 64 : 16;
  const double items = rows * CeilDivide(p.head_count, heads);
  const double tiles = CeilDivide(keys, kKeyTile);
  const double tile_cycles =
      SharedBytesOfTile(heads, width) / kSharedPerCycle + kBarrierCycles + (p.layout.coded() ? kF8Cycles : 0);
  return {{.kernel = kernel,
           .items = items,
           .memory_bytes = cost.bytes,
           .item_bytes = keys * p.layout.bytes() + heads * width * (sizeof(bf16) + sizeof(float)),
           .in_flight = kKeyTile * p.layout.bytes(),
           .item_bf16_flops = cost.bf16_flops / items,
           .matrix_share = 0.57,
           .chain_seconds = 3 * gpu.memory_latency + tiles * tile_cycles / gpu.clock,
           .fixed_seconds = kRowKernelStart}};
}

}  // namespace

KernelLaunches LaunchesOf(const HyperPreParams& p, const CostContext& shape, const GpuModel& gpu) {
  constexpr double kPassCycles = 80;  // an estimate: a shuffle, four additions and a division
  KernelLaunches launches = ReducingLaunches(p, p.mix.cols, shape, gpu);
  launches.back().chain_seconds += (2 * p.sinkhorn_iters - 1) * kPassCycles / gpu.clock;
  return launches;
}

KernelLaunches LaunchesOf(const HyperHeadParams& p, const CostContext& shape, const GpuModel& gpu) {
  return ReducingLaunches(p, p.pre.cols, shape, gpu);
}

KernelLaunches LaunchesOf(const HyperPostParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("HyperPost", p.x.rows * CeilDivide(p.x.cols, 1024), 256, CostOf(p, shape).bytes, 2,
                          gpu)};
}

KernelLaunches LaunchesOf(const BroadcastStreamsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("BroadcastStreams", p.x.rows * CeilDivide(p.x.cols, 1024), 256,
                          CostOf(p, shape).bytes, 2, gpu)};
}

KernelLaunches LaunchesOf(const RotateHeadsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("RotateHeads", p.index.rows * CeilDivide(p.head_count, 8), 256,
                          CostOf(p, shape).bytes, p.norm != 0 ? 3 : 2, gpu)};
}

KernelLaunches LaunchesOf(const WriteKeysParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("WriteKeys", p.index.rows, 128, CostOf(p, shape).bytes, 4, gpu)};
}

// Entries come every `ratio` rows: their bytes are the mean over positions.
KernelLaunches LaunchesOf(const CompressParams& p, const CostContext&, const GpuModel& gpu) {
  const double rows = p.index.rows, state_bytes = 4.0 * rows * p.state.width;
  const double entry_bytes = rows / p.ratio * p.layout.bytes();
  const double row_blocks = std::min(rows, 512.0), channels = p.values.cols;
  return {StreamingLaunch("CompressPool", row_blocks * CeilDivide(p.layout.width(), 32), 128, state_bytes, 5,
                          gpu),
          StreamingLaunch("CompressEntries", rows * (1 + CeilDivide(channels, p.layout.width())), 128,
                          2 * state_bytes + entry_bytes, 3, gpu)};
}

KernelLaunches LaunchesOf(const SelectEntriesParams& p, const CostContext& shape, const GpuModel& gpu) {
  constexpr double kPasses = 8, kScoreCycles = 40;  // over the scores, and of 256 of them: estimates
  constexpr double kTileCycles = 2500;              // of a multiprocessor for a tile, as an H200 takes it
  constexpr double kHeldKeys = 16384;
  const double rows = p.index.rows, chosen_bytes = 4 * rows * p.top_k;
  const double visible = std::floor(double(shape.context) / p.ratio);
  if (visible <= p.top_k) {
    return {StreamingLaunch("EntryScores", rows, 128, 0, 1, gpu),
            StreamingLaunch("EntryChoice", rows, 1024, chosen_bytes, 1, gpu)};
  }
  const double tiles = CeilDivide(visible, kKeyTile);
  const double blocks = std::clamp(std::floor(4.0 * gpu.multiprocessors / rows), 1.0, tiles);
  const double item_tiles = CeilDivide(tiles, blocks);
  const double tile_bytes = kKeyTile * p.entries.width * sizeof(bf16);
  const OpCost cost = CostOf(p, shape);
  KernelLaunch choice = StreamingLaunch("EntryChoice", rows, 1024, 4 * rows * visible + chosen_bytes, 4, gpu);
  choice.item_bytes = 4 * (visible + (kPasses - 1) * std::max(0.0, visible - kHeldKeys));
  choice.in_flight = 8 * 1024 * 4;  // eight scores of each thread
  choice.blocks_per_multiprocessor = 1;
  choice.chain_seconds += kPasses * std::ceil(visible / 256) * kScoreCycles / gpu.clock;
  return {{.kernel = "EntryScores",
           .items = rows * blocks,
           .blocks_per_multiprocessor = 4,
           .memory_bytes = cost.bytes + 4 * rows * visible,
           .item_bytes = item_tiles * tile_bytes,
           .in_flight = 2 * tile_bytes,
           .item_bf16_flops = cost.bf16_flops / (rows * blocks),
           .matrix_share = 0.5,
           .chain_seconds = item_tiles * kTileCycles / gpu.clock *
                            std::clamp(std::ceil(rows * blocks / gpu.multiprocessors), 1.0, 4.0),
           .fixed_seconds = kRowKernelStart + 2 * gpu.memory_latency},
          choice};
}

KernelLaunches LaunchesOf(const WindowAttentionParams& p, const CostContext& shape, const GpuModel& gpu) {
  const double visible = p.ratio > 0 ? std::floor(double(shape.context) / p.ratio) : 0;
  const double keys = std::min(shape.context, p.window_len) +
                      (p.selected != nullptr ? std::min<double>(visible, p.selected_count) : visible);
  return ListedAttentionLaunches("WindowAttention", p, keys, CostOf(p, shape), gpu);
}

KernelLaunches LaunchesOf(const MeanStreamsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("MeanStreams", p.out.rows * CeilDivide(p.out.cols, 1024), 256,
                          CostOf(p, shape).bytes, 2, gpu)};
}

KernelLaunches LaunchesOf(const BlockAttentionParams& p, const CostContext& shape, const GpuModel& gpu) {
  const double keys = std::min(shape.context, p.window_len) + p.block_rows;
  return ListedAttentionLaunches("BlockAttention", p, keys, CostOf(p, shape), gpu);
}

KernelLaunches LaunchesOf(const DraftConfidenceParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("DraftConfidence", p.bucket, 256, CostOf(p, shape).bytes, 3, gpu)};
}

KernelLaunches LaunchesOf(const RouteSoftplusParams& p, const CostContext& shape, const GpuModel& gpu) {
  KernelLaunch launch = StreamingLaunch("RouteSoftplus", p.index.rows, 128, CostOf(p, shape).bytes, 2, gpu);
  launch.chain_seconds += (800 + p.top_k * 75) / gpu.clock;
  return {launch};
}

}  // namespace foredraft
