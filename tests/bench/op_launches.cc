#include "tests/bench/op_launches.h"

#include <algorithm>
#include <cmath>

namespace foredraft {
namespace {

constexpr double kHopperStart = 0.4e-6;  // barriers and tensor maps, before the first load
constexpr double kStoreTail = 0.4e-6;
constexpr double kRowKernelStart = 0.3e-6;
constexpr double kSharedBudget = 216 * 1024;  // kernels/cuda/gemm_hopper_tile.h
constexpr double kStepBytes = 128;            // of k, per step of a Hopper GEMM

double CeilDivide(double value, double unit) { return std::ceil(value / unit); }

// Activations are mostly in L2.
double L2Latency(const GpuModel& gpu) { return gpu.memory_latency / 2; }

// A kernel of blocks of `threads` threads that stream `bytes` in all, each thread two vectors of 16 bytes at
// once, with `round_trips` loads that wait for each other.
KernelLaunch Streaming(const char* kernel, double blocks, int threads, double bytes, double round_trips,
                       const GpuModel& gpu) {
  blocks = std::max(1.0, blocks);
  return {.kernel = kernel,
          .items = blocks,
          .blocks_per_multiprocessor = std::clamp(2048 / threads, 1, 32),
          .memory_bytes = bytes,
          .item_bytes = bytes / blocks,
          .in_flight = 32.0 * threads,
          .chain_seconds = round_trips * L2Latency(gpu),
          .fixed_seconds = kRowKernelStart};
}

// Blocks that find no row: they are launched, read the row count and exit.
KernelLaunch WithEmptyBlocks(KernelLaunch launch, double empty, const GpuModel& gpu) {
  const double at_once = double(gpu.multiprocessors) * launch.blocks_per_multiprocessor;
  launch.fixed_seconds += CeilDivide(empty, at_once) * L2Latency(gpu);
  return launch;
}

// ---- GEMMs ----

// Cycles of one k step of 128 bytes in which nothing else of the warpgroup runs (gemm_hopper_tile.h): the
// products, and with FP8 weights the load of the weight's scale beside them and the promotion after them.
double StepCycles(const GemmTiling& tiling, DType dtype) {
  constexpr double kProductCycles = 1.91;  // four wgmma of 64 rows, per output
  constexpr double kWait = 40, kProductLatency = 60, kScaleLoad = 250;
  const double products = kProductCycles * tiling.tile_outputs * tiling.consumers;
  if (dtype != DType::kF8E4M3) return std::max(products, kProductLatency) + kWait;
  const double alone =
      std::max(products / tiling.consumers + kProductLatency, kScaleLoad) + 0.5 * tiling.tile_outputs + kWait;
  return std::max(products, alone);
}

struct GemmWork {
  const char* kernel;
  int n, k;
  DType dtype;
  double row_tiles;      // of all groups
  double rows_per_tile;  // that have data, on average
  double memory_bytes;
  int out_bytes;  // of one output
  GemmTiling tiling;
  int weight_tiles = 1;  // of tile_outputs each, that a block has at once
};

KernelLaunch HopperLaunch(const GemmWork& w, const GpuModel& gpu) {
  const GemmTiling& t = w.tiling;
  const double k_bytes = double(w.k) * DTypeBytes(w.dtype) / t.splits;
  const double steps = CeilDivide(k_bytes, kStepBytes);
  const double stage_bytes = (t.tile_rows + t.tile_outputs * w.weight_tiles) * kStepBytes;
  const double flops = 2.0 * t.tile_rows * t.tile_outputs * w.weight_tiles * w.k / t.splits;
  KernelLaunch launch = {.kernel = w.kernel,
                         .items = w.row_tiles * CeilDivide(w.n, t.tile_outputs * w.weight_tiles) * t.splits,
                         .memory_bytes = w.memory_bytes,
                         .item_bytes = stage_bytes * steps + w.rows_per_tile * t.tile_outputs * w.out_bytes,
                         .in_flight = std::floor(kSharedBudget / stage_bytes) * stage_bytes,
                         .chain_seconds = steps * StepCycles(t, w.dtype) / gpu.clock,
                         .fixed_seconds = kHopperStart + gpu.memory_latency + kStoreTail};
  (w.dtype == DType::kF8E4M3 ? launch.item_fp8_flops : launch.item_bf16_flops) = flops;
  return launch;
}

KernelLaunch QuantizeLaunch(double rows, double launched_rows, int cols, const GpuModel& gpu) {
  const double groups = CeilDivide(cols, kQuantGroup), blocks_per_row = CeilDivide(groups, 8);
  return WithEmptyBlocks(Streaming("QuantizeKernel", rows * blocks_per_row, 256, rows * cols * 3.0, 1, gpu),
                         (launched_rows - rows) * blocks_per_row, gpu);
}

// The rows that this rank's experts have, of all that the launch is prepared for.
double OwnPairs(double rows, const CostContext& shape) { return rows / shape.expert_ranks; }

}  // namespace

double OpSeconds(const KernelLaunches& launches, const GpuModel& gpu) {
  double seconds = 0;
  for (const KernelLaunch& launch : launches) seconds += gpu.follow_seconds + LaunchSeconds(launch, gpu);
  return seconds;
}

// HopperGemm and TileOutputs of kernels/cuda/gemm_hopper.cu.
GemmTiling TilingOf(int n, int, DType, double rows, int groups, bool rows_on_device) {
  if (rows > 64.0 * (rows_on_device ? groups : 1)) {
    return {.tile_rows = 128, .tile_outputs = 128, .consumers = 2};
  }
  int outputs = 128;
  while (outputs > 16 && groups * CeilDivide(n, outputs) < 64) outputs /= 2;
  return {.tile_rows = 64, .tile_outputs = outputs, .consumers = 1};
}

KernelLaunches LaunchesOf(const GemmParams& p, const CostContext& shape, const GpuModel& gpu) {
  KernelLaunches launches;
  const PackedWeight& w = p.weight;
  const double rows = p.x.rows;
  if (w.dtype == DType::kF8E4M3 && !p.x_f8) launches.push_back(QuantizeLaunch(rows, rows, w.k, gpu));
  const GemmTiling tiling = TilingOf(w.n, w.k, w.dtype, rows, 1, false);
  const double tiles = CeilDivide(rows, tiling.tile_rows);
  launches.push_back(HopperLaunch({.kernel = "HopperGemm",
                                   .n = w.n,
                                   .k = w.k,
                                   .dtype = w.dtype,
                                   .row_tiles = tiles,
                                   .rows_per_tile = rows / tiles,
                                   .memory_bytes = CostOf(p, shape).bytes,
                                   .out_bytes = p.out ? 4 : 2,
                                   .tiling = tiling},
                                  gpu));
  return launches;
}

KernelLaunches LaunchesOf(const HeadGemmParams& p, const CostContext& shape, const GpuModel& gpu) {
  const PackedWeight& head = p.heads.first;
  const double rows = p.x.rows;
  const GemmTiling tiling = TilingOf(head.n, head.k, head.dtype, rows, p.heads.count, false);
  const double tiles = CeilDivide(rows, tiling.tile_rows);
  return {HopperLaunch({.kernel = "HopperGemm",
                        .n = head.n,
                        .k = head.k,
                        .dtype = head.dtype,
                        .row_tiles = tiles * p.heads.count,
                        .rows_per_tile = rows / tiles,
                        .memory_bytes = CostOf(p, shape).bytes,
                        .out_bytes = 2,
                        .tiling = tiling},
                       gpu)};
}

// kernels/cuda/grouped_gemm.cu: rows gathered and quantised, then GateUpGemm or HopperGemm.
KernelLaunches LaunchesOf(const GroupedGemmParams& p, const CostContext& shape, const GpuModel& gpu) {
  const PackedWeight& expert = p.experts.first;
  const double launched = p.silu_f8 ? p.silu_f8.rows : p.out.rows;
  if (p.experts.count == 0 || launched == 0) return {};
  const double pairs = OwnPairs(launched, shape);
  const bool f8 = expert.dtype == DType::kF8E4M3;
  KernelLaunches launches;
  if (f8 && p.x_f8 && p.x_rows != nullptr) {
    launches.push_back(WithEmptyBlocks(
        Streaming("CopyQuantizedKernel", pairs, 256, pairs * expert.k * 2.0, 2, gpu), launched - pairs, gpu));
  } else if (f8 && !p.x_f8) {
    launches.push_back(QuantizeLaunch(pairs, launched, expert.k, gpu));
  } else if (!f8 && p.x_rows != nullptr) {
    launches.push_back(WithEmptyBlocks(
        Streaming("GatherKernel", pairs * CeilDivide(expert.k, 2048), 256, pairs * expert.k * 4.0, 2, gpu),
        (launched - pairs) * CeilDivide(expert.k, 2048), gpu));
  }
  GemmTiling tiling = TilingOf(expert.n, expert.k, expert.dtype, launched, p.experts.count, true);
  if (p.silu_f8) tiling = {.tile_rows = 64, .tile_outputs = 128, .consumers = 2};
  const double met = MetExperts(pairs, p.experts.count, shape);
  const double tiles = met * CeilDivide(pairs / met, tiling.tile_rows);
  launches.push_back(HopperLaunch({.kernel = p.silu_f8 ? "GateUpKernel" : "HopperGemm",
                                   .n = expert.n,
                                   .k = expert.k,
                                   .dtype = expert.dtype,
                                   .row_tiles = tiles,
                                   .rows_per_tile = pairs / tiles,
                                   .memory_bytes = CostOf(p, shape).bytes,
                                   .out_bytes = p.silu_f8 ? 1 : 4,
                                   .tiling = tiling,
                                   .weight_tiles = p.silu_f8 ? 2 : 1},
                                  gpu));
  return launches;
}

// ---- attention ----

// kernels/cuda/mla_decode_hopper.cu, then CombineSplits. A row's last split is shorter; items are taken as
// equal. Rows past the room for partial results (mla_decode.cu) fold their own splits: one item each.
KernelLaunches LaunchesOf(const MlaDecodeParams& p, const CostContext& shape, const GpuModel& gpu) {
  constexpr double kSplitLen = 1024, kHeads = 64, kPartials = 2048;
  constexpr double kMatrixShare = 0.57;  // an estimate from the kernel's instructions: about 450 TFLOPS
  const double rows = p.index.rows, width = p.layer.row_width(), latent = p.layer.latent_dim;
  if (rows == 0) return {};
  const double head_tiles = CeilDivide(p.head_count, kHeads);
  const double splits = CeilDivide(shape.context, kSplitLen);
  const double split_rows = splits < 2 ? rows : std::min(rows, std::floor(kPartials / (splits * head_tiles)));
  const double keys = shape.context / splits;
  const OpCost cost = CostOf(p, shape);
  const auto attention = [&](double items, double item_keys, double row_count) {
    return KernelLaunch{.kernel = "MlaDecodeHopper",
                        .items = items,
                        .memory_bytes = cost.bytes * row_count / rows,
                        .item_bytes = item_keys * width * 2 + kHeads * (width * 2 + latent * 4),
                        .in_flight = 64 * width * 2,
                        .item_bf16_flops = 2 * kHeads * item_keys * (width + latent),
                        .matrix_share = kMatrixShare,
                        .fixed_seconds = kHopperStart + 3 * L2Latency(gpu) + gpu.memory_latency + kStoreTail};
  };
  KernelLaunches launches = {attention(split_rows * splits * head_tiles, keys, split_rows)};
  if (rows > split_rows) {  // after the others: the items are numbered by row
    const KernelLaunch folded = attention((rows - split_rows) * head_tiles, shape.context, rows - split_rows);
    launches[0].fixed_seconds += LaunchSeconds(folded, gpu) - folded.fixed_seconds;
  }
  if (splits < 2) return launches;
  const double partial_bytes = split_rows * p.head_count * latent * (splits * 4 + 2);
  launches.push_back(
      Streaming("CombineSplits", rows * CeilDivide(p.head_count, 8), 256, partial_bytes, splits + 1, gpu));
  return launches;
}

KernelLaunches LaunchesOf(const MlaPrefillParams& p, const CostContext& shape, const GpuModel& gpu) {
  constexpr double kMatrixShare = 0.38;  // an estimate: every warp reads all keys for 16 queries
  const double items = CeilDivide(p.q.rows, 64) * p.head_count;
  const OpCost cost = CostOf(p, shape);
  return {{.kernel = "MlaPrefill",
           .items = items,
           .blocks_per_multiprocessor = 2,
           .memory_bytes = cost.bytes,
           .item_bytes = cost.bytes / items,
           .in_flight = 40 * 1024,
           .item_bf16_flops = cost.bf16_flops / items,
           .matrix_share = kMatrixShare,
           .fixed_seconds = kRowKernelStart + gpu.memory_latency}};
}

// ---- rows ----

namespace {

// A block per row and `columns` columns.
double Blocks(double rows, double cols, double columns) { return rows * CeilDivide(cols, columns); }

}  // namespace

KernelLaunches LaunchesOf(const EmbedParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {Streaming("Embed", Blocks(p.out.rows, p.out.cols, 1024), 256, CostOf(p, shape).bytes, 2, gpu)};
}

KernelLaunches LaunchesOf(const RmsNormParams& p, const CostContext& shape, const GpuModel& gpu) {
  const int threads = std::clamp(static_cast<int>(CeilDivide(p.x.cols, 512)) * 32, 32, 1024);
  KernelLaunch launch = Streaming("RmsNorm", p.x.rows, threads, CostOf(p, shape).bytes, 2.5, gpu);
  launch.in_flight *= 2;  // a thread loads four vectors at once
  return {launch};
}

KernelLaunches LaunchesOf(const AddParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {Streaming("Add", Blocks(p.out.rows, p.out.cols, 1024), 256, CostOf(p, shape).bytes, 1, gpu)};
}

KernelLaunches LaunchesOf(const SiluMulParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {Streaming("SiluMul", Blocks(p.gate_up.rows, p.gate_up.cols / 2.0, 1024), 256,
                    CostOf(p, shape).bytes, 1, gpu)};
}

KernelLaunches LaunchesOf(const CopyRowsParams& p, const CostContext& shape, const GpuModel& gpu) {
  if (p.rows == 0) return {};
  return {Streaming("CopyRows", Blocks(p.rows, p.out.cols, 1024), 256, CostOf(p, shape).bytes, 2, gpu)};
}

KernelLaunches LaunchesOf(const ToBf16Params& p, const CostContext& shape, const GpuModel& gpu) {
  return {Streaming("ToBf16", Blocks(p.out.rows, p.out.cols, 1024), 256, CostOf(p, shape).bytes, 1, gpu)};
}

KernelLaunches LaunchesOf(const RopeQueryParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {Streaming("RopeQuery", Blocks(p.index.rows, double(p.head_count) * p.head_dim, 1024), 256,
                    CostOf(p, shape).bytes, 2, gpu)};
}

KernelLaunches LaunchesOf(const KvWriteParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {Streaming("KvWrite", p.index.rows, 128, CostOf(p, shape).bytes, 4, gpu)};
}

KernelLaunches LaunchesOf(const GatherKvParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {Streaming("GatherKv", Blocks(p.latent.rows, p.layer.row_width(), 2048), 256, CostOf(p, shape).bytes,
                    2, gpu)};
}

// ---- experts ----

// A warp per row; the eight choices follow each other.
KernelLaunches LaunchesOf(const RouteExpertsParams& p, const CostContext& shape, const GpuModel& gpu) {
  KernelLaunch launch =
      Streaming("RouteExperts", CeilDivide(p.index.rows, 4), 128, CostOf(p, shape).bytes, 2, gpu);
  launch.chain_seconds += (p.topk_group + p.top_k) * 150 / gpu.clock;
  return {launch};
}

// A warp per expert walks all pairs twice, 32 at a time, each load after the last one's use
// (kernels/cuda/group_rows.cu).
KernelLaunches LaunchesOf(const GroupRowsParams& p, const CostContext& shape, const GpuModel& gpu) {
  KernelLaunch launch =
      Streaming("GroupRows", CeilDivide(p.expert_count + 1, 4), 128, CostOf(p, shape).bytes, 1, gpu);
  launch.chain_seconds += 2 * CeilDivide(double(p.rows) * p.top_k, 32) * 85 / gpu.clock;
  return {launch};
}

KernelLaunches LaunchesOf(const CombineExpertsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {Streaming("CombineExperts", Blocks(p.hidden.rows, p.hidden.cols, 512), 128, CostOf(p, shape).bytes,
                    3, gpu)};
}

KernelLaunches LaunchesOf(const ExpertPartialsParams& p, const CostContext& shape, const GpuModel& gpu) {
  const double rows = p.out ? p.out.rows : p.out_bf16.rows, cols = p.out ? p.out.cols : p.out_bf16.cols;
  return {Streaming("ExpertPartials", Blocks(rows, cols, 512), 128, CostOf(p, shape).bytes, 3, gpu)};
}

KernelLaunches LaunchesOf(const AddPartialsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {Streaming("AddPartials", Blocks(p.hidden.rows, p.hidden.cols, 512), 128, CostOf(p, shape).bytes, 2,
                    gpu)};
}

// ---- sampling ----

namespace {

constexpr double kChunkColumns = 4096;  // kernels/cuda/logit_row.h

KernelLaunch OverChunks(const char* kernel, double rows, double vocab, double bytes, const GpuModel& gpu) {
  return Streaming(kernel, Blocks(rows, vocab, kChunkColumns), 256, bytes, 2, gpu);
}

KernelLaunch WarpPerRow(const char* kernel, double rows, const GpuModel& gpu) {
  return Streaming(kernel, rows, 32, rows * 64, 2, gpu);
}

}  // namespace

KernelLaunches LaunchesOf(const ArgmaxParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {OverChunks("LargestOfChunk", p.logits.rows, p.logits.cols, CostOf(p, shape).bytes, gpu),
          WarpPerRow("LargestOfRow", p.logits.rows, gpu)};
}

// Sampled rows also store the scaled logits and read them again; the filter walks a row with one block, and
// its atomic additions to shared memory take longer than the loads.
KernelLaunches LaunchesOf(const SampleParams& p, const CostContext& shape, const GpuModel& gpu) {
  constexpr double kPassSeconds = 16e-6;  // an estimate, of a row of 129,280 columns
  const double rows = p.index.rows, vocab = p.logits.cols;
  if (rows == 0) return {};
  const double bytes = rows * vocab * 4;
  const double sampled = shape.sampled ? 1 : 0;
  KernelLaunch filter =
      Streaming("FilterLogits", rows, 1024, sampled * bytes * std::min(1, shape.filter_passes), 1, gpu);
  filter.chain_seconds += sampled * shape.filter_passes * kPassSeconds * vocab / 129280;
  return {OverChunks("ScaleLogits", rows, vocab, bytes * (1 + sampled), gpu), filter,
          OverChunks("DrawTokens", rows, vocab, bytes * sampled, gpu), WarpPerRow("ChooseTokens", rows, gpu)};
}

KernelLaunches LaunchesOf(const RelaxDraftsParams& p, const CostContext&, const GpuModel& gpu) {
  return {Streaming("RelaxDrafts", p.index.rows, 1024, p.index.rows * 64.0, 2, gpu)};
}

KernelLaunches SlotLaunch(const GpuModel& gpu) { return {Streaming("slots", 1, 128, 4096, 3, gpu)}; }

}  // namespace foredraft
