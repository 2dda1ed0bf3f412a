#include "tests/bench/op_launches.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/attention/mla_decode_load.h"
#include "kernels/cuda/common/row_blocks.h"
#include "kernels/cuda/gemm/gemm_plan.h"

namespace foredraft {
namespace {

constexpr double kHopperStart = 0.4e-6;  // barriers and tensor maps, before the first load
constexpr double kStoreTail = 0.4e-6;

double CeilDivide(double value, double unit) { return std::ceil(value / unit); }

// Activations are mostly in L2.
double L2Latency(const GpuModel& gpu) { return gpu.memory_latency / 2; }

}  // namespace

KernelLaunch StreamingLaunch(const char* kernel, double blocks, int threads, double bytes, double round_trips,
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

namespace {

// ---- GEMMs ----

// The device on which the kernels choose (RatesOf of kernels/cuda/gemm/gemm_hopper.cu), and the one that is
// predicted.
cuda::GemmRates ChoiceRates(const GpuModel& gpu) { return {.multiprocessors = gpu.multiprocessors}; }
cuda::GemmRates RatesOf(const GpuModel& gpu) {
  return {.memory_bytes_per_us = gpu.memory_rate * 1e-6,
          .sm_bytes_per_us = gpu.multiprocessor_rate * 1e-6,
          .cycles_per_us = gpu.clock * 1e-6,
          .multiprocessors = gpu.multiprocessors};
}

cuda::GemmSize SizeOf(const PackedWeight& weight, double rows, int groups = 1) {
  return {.n = weight.n,
          .k = weight.k,
          .element_bytes = static_cast<int32_t>(DTypeBytes(weight.format.code)),
          .rows = std::max(1, static_cast<int32_t>(std::lround(rows))),
          .groups = groups,
          .format = weight.format,
          .segments = std::max(weight.segments, 1)};
}

// kernels/cuda/gemm/weight_kind.cu
int32_t SplitsOf(const GemmParams& p, const cuda::GemmSize& size, const GpuModel& gpu) {
  const PackedWeight& w = p.weight;
  if (p.form != GemmForm::kDecode) return 1;
  if (w.segments > 0) return cuda::SegmentShares(size, ChoiceRates(gpu));
  return Is4Bit(w.format) ? cuda::Splits4Bit(w.plan_n(), w.plan_k(), w.format)
                          : cuda::GemmSplits(w.plan_n(), w.plan_k(), size.element_bytes);
}

// A launch with `choice`'s tile and splits for the rows of `size`. gemm_plan.h predicts its time, which is
// spread evenly over its waves; the other inputs and outputs may only make it longer.
KernelLaunch GemmLaunch(const char* kernel, const cuda::GemmSize& size, const cuda::GemmPlan& choice,
                        const OpCost& cost, const GpuModel& gpu) {
  const cuda::GemmPlan plan = cuda::PredictGemm(size, choice.tile, choice.splits, RatesOf(gpu));
  const double k_bytes = double(size.k) * size.element_bytes / plan.splits;
  KernelLaunch launch = {.kernel = kernel,
                         .items = plan.items,
                         .memory_bytes = cost.bytes,
                         .item_bytes = k_bytes * (plan.tile.rows + plan.tile.outputs),
                         .in_flight = static_cast<double>(plan.bytes_in_flight),
                         .item_bf16_flops = cost.bf16_flops / plan.items,
                         .item_fp8_flops = cost.fp8_flops / plan.items};
  launch.chain_seconds = plan.microseconds * 1e-6 / std::ceil(Waves(launch, gpu));
  return launch;
}

// kernels/cuda/gemm/gemm_4bit.cu, with the tile that it chooses for `expected` rows.
KernelLaunch Gemm4BitLaunch(const cuda::GemmSize& expected, const cuda::GemmSize& size, int32_t splits,
                            const OpCost& cost, const GpuModel& gpu) {
  const int32_t tile_rows = cuda::Plan4Bit(expected, splits, ChoiceRates(gpu)).tile.rows;
  const cuda::GemmPlan plan = cuda::Predict4Bit(size, tile_rows, splits, RatesOf(gpu));
  KernelLaunch launch = {.kernel = "Gemm4Bit",
                         .items = plan.items,
                         .blocks_per_multiprocessor = cuda::Resident4Bit(tile_rows),
                         .memory_bytes = cost.bytes,
                         .item_bf16_flops = cost.bf16_flops / plan.items};
  launch.chain_seconds = plan.microseconds * 1e-6 / std::ceil(Waves(launch, gpu));
  return launch;
}

// kernels/cuda/dense/quantize.cu
KernelLaunch QuantizeLaunch(double rows, int cols, const GpuModel& gpu) {
  const double blocks_per_row = CeilDivide(CeilDivide(cols, kQuantGroup), 8);
  return StreamingLaunch("QuantizeKernel", rows * blocks_per_row, 256, rows * cols * 3.0, 1, gpu);
}

KernelLaunch SiluMulLaunch(double rows, double cols, double bytes, const GpuModel& gpu) {
  return StreamingLaunch("SiluMul", rows * CeilDivide(cols, 1024), 256, bytes, 1, gpu);
}

// How many rows meet as many of `experts` experts, by random choices, as the slowest rank meets.
double RowsThatMeet(double pairs, int32_t experts, const CostContext& shape) {
  const double met = MetExperts(pairs, experts, shape);
  if (shape.slowest == nullptr || met >= experts) return pairs;
  return std::max(pairs, -experts * std::log1p(-met / experts));
}

// kernels/cuda/gemm/gemm.cu. `cost`: of the op that has the product.
KernelLaunches GemmLaunches(const GemmParams& p, const OpCost& cost, const GpuModel& gpu) {
  KernelLaunches launches;
  const PackedWeight& w = p.weight;
  if (w.format.code == DType::kF8E4M3 && !p.x_f8) launches.push_back(QuantizeLaunch(p.x.rows, w.k, gpu));
  const cuda::GemmSize size = SizeOf(w, p.x.rows);
  const int32_t splits = SplitsOf(p, size, gpu);
  if (Is4Bit(w.format)) return {Gemm4BitLaunch(size, size, splits, cost, gpu)};
  launches.push_back(
      GemmLaunch("HopperGemm", size, cuda::PlanGemm(size, splits, ChoiceRates(gpu)), cost, gpu));
  return launches;
}

}  // namespace

double OpSeconds(const KernelLaunches& launches, const GpuModel& gpu) {
  double seconds = 0;
  for (const KernelLaunch& launch : launches) seconds += gpu.follow_seconds + LaunchSeconds(launch, gpu);
  return seconds;
}

KernelLaunches LaunchesOf(const GemmParams& p, const CostContext& shape, const GpuModel& gpu) {
  return GemmLaunches(p, CostOf(p, shape), gpu);
}

// kernels/cuda/gemm/gemm.cu: HopperGemm rotates what it stores; 4-bit weights take a launch more.
KernelLaunches LaunchesOf(const QueryGemmParams& p, const CostContext& shape, const GpuModel& gpu) {
  if (!Is4Bit(p.gemm.weight.format)) return GemmLaunches(p.gemm, CostOf(p, shape), gpu);
  KernelLaunches launches = LaunchesOf(p.gemm, shape, gpu);
  for (KernelLaunch& launch : LaunchesOf(p.rope, shape, gpu)) launches.push_back(std::move(launch));
  return launches;
}

KernelLaunches LaunchesOf(const HeadGemmParams& p, const CostContext& shape, const GpuModel& gpu) {
  const cuda::GemmSize size = SizeOf(p.heads.first, p.x.rows, p.heads.count);
  const PackedWeight& head = p.heads.first;
  if (Is4Bit(head.format)) return {Gemm4BitLaunch(size, size, 1, CostOf(p, shape), gpu)};
  const bool quantizes = p.out_f8 && head.format.code == DType::kBF16 && head.n == kQuantGroup;
  const cuda::GemmPlan plan = cuda::PlanGemm(size, 1, ChoiceRates(gpu), quantizes ? kQuantGroup : 0);
  KernelLaunches launches = {GemmLaunch("HopperGemm", size, plan, CostOf(p, shape), gpu)};
  if (p.out_f8 && !quantizes) launches.push_back(QuantizeLaunch(p.out.rows, p.out_f8.cols, gpu));
  return launches;
}

// kernels/cuda/gemm/grouped_gemm.cu: rows gathered and quantised, then GateUpGemm, or HopperGemm and with few
// rows silu_mul. Gemm4Bit gathers rows itself.
KernelLaunches LaunchesOf(const GroupedGemmParams& p, const CostContext& shape, const GpuModel& gpu) {
  constexpr double kMostSums = 8 << 20;  // bytes between HopperGemm and silu_mul
  const PackedWeight& expert = p.experts.first;
  const double prepared = p.silu_f8 ? p.silu_f8.rows : p.out.rows;
  if (p.experts.count == 0 || prepared == 0) return {};
  if (shape.part > 0) {
    const KernelLaunch empty = StreamingLaunch("of empty parts", 1, 256, 0, 1, gpu);
    return p.x_rows != nullptr ? KernelLaunches{empty, empty} : KernelLaunches{empty};
  }
  const double pairs = OwnPairs(p, shape);
  const bool f8 = expert.format.code == DType::kF8E4M3;
  KernelLaunches launches;
  if (f8 && p.x_f8 && p.x_rows != nullptr) {
    launches.push_back(StreamingLaunch("CopyQuantizedKernel", pairs, 256, pairs * expert.k * 2.0, 2, gpu));
  } else if (f8 && !p.x_f8) {
    launches.push_back(QuantizeLaunch(pairs, expert.k, gpu));
  } else if (!f8 && !Is4Bit(expert.format) && p.x_rows != nullptr) {
    launches.push_back(StreamingLaunch("GatherKernel", pairs * CeilDivide(expert.k, 2048), 256,
                                       pairs * expert.k * 4.0, 2, gpu));
  }
  cuda::GemmSize expected = SizeOf(expert, p.expected_rows > 0 ? p.expected_rows : prepared, p.experts.count);
  expected.ragged = true;
  cuda::GemmSize size = SizeOf(expert, RowsThatMeet(pairs, p.experts.count, shape), p.experts.count);
  size.ragged = true;
  if (shape.met_experts > 0) size = SizeOf(expert, std::ceil(pairs / shape.met_experts), shape.met_experts);

  const OpCost cost = CostOf(p, shape);
  if (Is4Bit(expert.format)) return {Gemm4BitLaunch(expected, size, 1, cost, gpu)};
  const cuda::GemmRates rates = ChoiceRates(gpu);
  const bool in_parts =
      p.silu_f8 && prepared * expert.n * sizeof(float) <= kMostSums && !cuda::GateUpIsFaster(expected, rates);
  if (p.silu_f8 && !in_parts) {
    launches.push_back(GemmLaunch("GateUpKernel", size, cuda::PlanGateUp(expected, rates), cost, gpu));
    return launches;
  }
  launches.push_back(GemmLaunch("HopperGemm", size, cuda::PlanGemm(expected, 1, rates), cost, gpu));
  if (in_parts) launches.push_back(SiluMulLaunch(pairs, expert.n / 2.0, pairs * expert.n * 4.5, gpu));
  return launches;
}

// ---- attention ----

// kernels/cuda/attention/mla_decode_hopper.cu or mla_decode_fp8.cu, then CombineSplits. All rows attend as
// many positions; a list's are taken as if they lay together. The terms are those of DecodeSeconds
// (kernels/cuda/attention/mla_decode_load.h): the busiest block's products or the keys' bytes, then the
// merge.
KernelLaunches LaunchesOf(const MlaDecodeParams& p, const CostContext& shape, const GpuModel& gpu) {
  constexpr double kHeads = 64;
  // Both were measured on an H200 with blocks alone. Pairs of blocks are not measured (docs/predictions.md).
  constexpr double kMatrixShare = 0.515;  // for 128 rows: 407 TFLOPS
  constexpr double kF8TileCycles = 7500;  // a warpgroup widens the keys of a tile
  // FP8 products, blocks alone, with the end of a split: tests/bench/mla_decode_tiles.py. Nothing was
  // measured.
  constexpr double kF8ProductsTileCycles = 2750 + 990;
  const int32_t rows = p.index.rows;
  if (rows == 0) return {};
  const double width = p.layer.row_width(), latent = p.layer.latent_dim;
  const int32_t head_tiles = static_cast<int32_t>(CeilDivide(p.head_count, kHeads));
  const int32_t max_splits = cuda::MaxSplits(int64_t{p.layer.table_stride} * p.layer.tokens_per_block);
  const std::vector<int32_t> positions(rows, AttendedPositions(p, shape) - 1);
  const cuda::DecodeLoad load =
      cuda::LoadOf(positions, p.first_position, head_tiles, max_splits, gpu.multiprocessors);

  const double products =
      2 * kHeads * cuda::kKeyTile * (width + latent) * gpu.multiprocessors / gpu.bf16_flops / kMatrixShare;
  const bool f8_products = p.layer.fp8_products;
  const double tile = f8_products       ? kF8ProductsTileCycles / gpu.clock
                      : p.layer.coded() ? std::max(products, kF8TileCycles / gpu.clock)
                                        : products;
  const double split_bytes = kHeads * (width * 2 + latent * 4);  // its query and its sums
  const double tile_bytes = double(cuda::kKeyTile) * p.layer.row_bytes();
  KernelLaunches launches = {
      {.kernel = f8_products ? "MlaDecodeFp8" : "MlaDecodeHopper",
       .items = static_cast<double>(load.busy_blocks),
       .memory_bytes = CostOf(p, shape).bytes,
       .item_bytes = load.busiest_tiles * tile_bytes,
       .in_flight = static_cast<double>(f8_products ? cuda::kFp8DecodeBytesInFlight
                                                    : cuda::kHopperDecodeBytesInFlight),
       .chain_seconds =
           load.busiest_tiles * tile + load.busiest_splits * split_bytes / gpu.multiprocessor_rate,
       .fixed_seconds = kHopperStart + 3 * L2Latency(gpu) + gpu.memory_latency + kStoreTail}};
  if (max_splits < 2 || load.blocks == head_tiles) return launches;
  const double partial_bytes = double(load.partials) * p.head_count * latent * sizeof(float);
  launches.push_back(StreamingLaunch("CombineSplits", rows * CeilDivide(p.head_count, 8), 256, partial_bytes,
                                     1 + CeilDivide(load.row_partials, cuda::kCombineAhead), gpu));
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
  return {
      StreamingLaunch("Embed", Blocks(p.out.rows, p.out.cols, 1024), 256, CostOf(p, shape).bytes, 2, gpu)};
}

KernelLaunches LaunchesOf(const RmsNormParams& p, const CostContext& shape, const GpuModel& gpu) {
  const int threads = std::clamp(static_cast<int>(CeilDivide(p.x.cols, 512)) * 32, 32, 1024);
  KernelLaunch launch = StreamingLaunch("RmsNorm", p.x.rows, threads, CostOf(p, shape).bytes, 2.5, gpu);
  launch.in_flight *= 2;  // a thread loads four vectors at once
  return {launch};
}

KernelLaunches LaunchesOf(const AddParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("Add", Blocks(p.out.rows, p.out.cols, 1024), 256, CostOf(p, shape).bytes, 1, gpu)};
}

KernelLaunches LaunchesOf(const SiluMulParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {SiluMulLaunch(p.gate_up.rows, p.gate_up.cols / 2.0, CostOf(p, shape).bytes, gpu)};
}

KernelLaunches LaunchesOf(const CopyRowsParams& p, const CostContext& shape, const GpuModel& gpu) {
  if (p.rows == 0) return {};
  return {StreamingLaunch("CopyRows", Blocks(p.rows, p.out.cols, 1024), 256, CostOf(p, shape).bytes, 2, gpu)};
}

KernelLaunches LaunchesOf(const ToBf16RowsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {
      StreamingLaunch("ToBf16", Blocks(p.out.rows, p.out.cols, 1024), 256, CostOf(p, shape).bytes, 1, gpu)};
}

KernelLaunches LaunchesOf(const CopyQuantizedParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("CopyQuantized", p.out.rows, 256, CostOf(p, shape).bytes, 2, gpu)};
}

KernelLaunches LaunchesOf(const RoundNvfp4Params& p, const CostContext& shape, const GpuModel& gpu) {
  const int rows = p.out ? p.out.rows : p.out_codes.rows;
  return {StreamingLaunch("RoundNvfp4", Blocks(rows, p.x.cols, 2048), 128, CostOf(p, shape).bytes, 2, gpu)};
}

KernelLaunches LaunchesOf(const WidenNvfp4Params& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("WidenNvfp4", Blocks(p.out.rows, p.out.cols, 2048), 128, CostOf(p, shape).bytes, 1,
                          gpu)};
}

KernelLaunches LaunchesOf(const TreeSumParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {
      StreamingLaunch("TreeSum", Blocks(p.out.rows, p.out.cols, 1024), 256, CostOf(p, shape).bytes, 1, gpu)};
}

KernelLaunches LaunchesOf(const MergeColumnsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("MergeColumns", Blocks(p.out.rows, p.out.cols, 256), 256, CostOf(p, shape).bytes, 1,
                          gpu)};
}

KernelLaunches LaunchesOf(const TakeColumnsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("TakeColumns", Blocks(p.out.rows, p.out.cols, 256), 256, CostOf(p, shape).bytes, 1,
                          gpu)};
}

KernelLaunches LaunchesOf(const RopeQueryParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("RopeQuery", Blocks(p.index.rows, double(p.head_count) * p.head_dim, 1024), 256,
                          CostOf(p, shape).bytes, 2, gpu)};
}

KernelLaunches LaunchesOf(const RopeIndexQueryParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("RopeIndexQuery", p.index.rows * Blocks(1, p.head_count, 8), 256,
                          CostOf(p, shape).bytes, 2, gpu)};
}

// A row is read, summed, and normed and rotated from shared memory.
KernelLaunches LaunchesOf(const IndexKeyWriteParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("IndexKeyWrite", Blocks(1, p.index.rows, 8), 256, CostOf(p, shape).bytes, 4, gpu)};
}

KernelLaunches LaunchesOf(const KvWriteParams& p, const CostContext& shape, const GpuModel& gpu) {
  const double blocks_per_row = p.q_norm.x ? 2 : 1;  // the second one norms the queries
  return {StreamingLaunch("KvWrite", p.index.rows * blocks_per_row, 128, CostOf(p, shape).bytes, 4, gpu)};
}

KernelLaunches LaunchesOf(const GatherKvParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("GatherKv", Blocks(p.latent.rows, p.layer.row_width(), 2048), 256,
                          CostOf(p, shape).bytes, 2, gpu)};
}

// ---- experts ----

// A block per row; the eight choices follow each other.
KernelLaunches LaunchesOf(const RouteExpertsParams& p, const CostContext& shape, const GpuModel& gpu) {
  KernelLaunch launch = StreamingLaunch("RouteExperts", p.index.rows, 128, CostOf(p, shape).bytes, 2, gpu);
  launch.chain_seconds += (1000 + p.top_k * 75) / gpu.clock;
  return {launch};
}

// A block of four warps, an expert each, loads a window of pairs into shared memory; each warp walks it
// twice, 128 pairs at once. Several windows are loaded for each walk (kernels/cuda/moe/group_rows.cu).
KernelLaunches LaunchesOf(const GroupRowsParams& p, const CostContext& shape, const GpuModel& gpu) {
  constexpr double kWindow = 8192, kPairsInFlight = 128 * 8 * 4;
  constexpr double kWalkCycles = 60;  // an estimate, of both walks over 128 pairs
  const double pairs = shape.part > 0 ? 0 : double(p.rows) * p.top_k;
  const double loads = CeilDivide(pairs, kPairsInFlight) * (pairs > kWindow ? 2 : 1);
  KernelLaunch launch = StreamingLaunch("GroupRows", CeilDivide(p.expert_count + 1, 4), 128,
                                        CostOf(p, shape).bytes, loads, gpu);
  launch.chain_seconds += CeilDivide(pairs, 128) * kWalkCycles / gpu.clock;
  return {launch};
}

// One block, whose 32 warps read 32 pairs at once each, eight loads in flight.
KernelLaunches LaunchesOf(const PartRowsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("PartRows", 1, 1024, CostOf(p, shape).bytes,
                          CeilDivide(double(p.rows) * p.top_k, 1024 * 8), gpu)};
}

KernelLaunches LaunchesOf(const CombineExpertsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("CombineExperts", Blocks(p.hidden.rows, p.hidden.cols, 512), 128,
                          CostOf(p, shape).bytes, 3, gpu)};
}

KernelLaunches LaunchesOf(const ExpertPartialsParams& p, const CostContext& shape, const GpuModel& gpu) {
  const double rows = p.out ? p.out.rows : p.out_bf16.rows, cols = p.out ? p.out.cols : p.out_bf16.cols;
  if (shape.part > 0) return {StreamingLaunch("of empty parts", 1, 128, 0, 1, gpu)};
  return {StreamingLaunch("ExpertPartials", Blocks(rows, cols, 512), 128, CostOf(p, shape).bytes, 3, gpu)};
}

KernelLaunches LaunchesOf(const AddPartialsParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {StreamingLaunch("AddPartials", Blocks(p.hidden.rows, p.hidden.cols, 512), 128,
                          CostOf(p, shape).bytes, 2, gpu)};
}

// A block per row. A thread has the partial values of its columns in flight at once, then what it adds them
// to.
KernelLaunches LaunchesOf(const AddPartialsNormParams& p, const CostContext& shape, const GpuModel& gpu) {
  const AddPartialsParams& add = p.partials;
  KernelLaunch launch = LaunchesOf(p.norm, shape, gpu)[0];
  launch.kernel = "AddPartialsNorm";
  launch.blocks_per_multiprocessor = 1;
  launch.in_flight *= add.partials_bf16 ? add.rank_count / 2.0 : add.rank_count;
  launch.memory_bytes = CostOf(p, shape).bytes;
  launch.item_bytes = launch.memory_bytes / launch.items;
  launch.chain_seconds += L2Latency(gpu);
  return {launch};
}

// ---- sampling ----

namespace {

// A block reads its chunks one after another (kernels/cuda/common/row_blocks.h). Without bytes, its rows need
// nothing.
KernelLaunch OverChunks(const char* kernel, int32_t rows, int32_t vocab, int32_t blocks_per_multiprocessor,
                        double bytes, const GpuModel& gpu) {
  const int32_t resident = blocks_per_multiprocessor * gpu.multiprocessors;
  const int32_t chunks = cuda::ChunksPerBlock(rows, vocab, resident);
  KernelLaunch launch = StreamingLaunch(kernel, double(rows) * cuda::BlocksPerRow(rows, vocab, resident),
                                        cuda::kChunkThreads, bytes, bytes > 0 ? 2 + chunks : 1, gpu);
  launch.blocks_per_multiprocessor = blocks_per_multiprocessor;
  launch.in_flight = cuda::kChunkColumns * sizeof(float);
  return launch;
}

KernelLaunch WarpPerRow(const char* kernel, double rows, const GpuModel& gpu) {
  return StreamingLaunch(kernel, rows, 32, rows * 64, 2, gpu);
}

}  // namespace

KernelLaunches LaunchesOf(const ArgmaxParams& p, const CostContext& shape, const GpuModel& gpu) {
  return {OverChunks("LargestOfBlock", p.logits.rows, p.logits.cols, cuda::kReadBlocksPerMultiprocessor,
                     CostOf(p, shape).bytes, gpu),
          WarpPerRow("LargestOfRow", p.logits.rows, gpu)};
}

// Greedy rows need the survey and the end alone. Counting adds to shared memory atomically, and drawing
// hashes and compares, which takes longer than the loads: a multiprocessor's cycles for a chunk, as an H200
// takes them.
KernelLaunches LaunchesOf(const SampleParams& p, const CostContext& shape, const GpuModel& gpu) {
  constexpr double kCountCycles = 8800, kDrawCycles = 3000;
  const int32_t rows = p.index.rows, vocab = p.logits.cols;
  if (rows == 0) return {};
  const double bytes = CostOf(p, shape).bytes;
  const double sampled = shape.sampled ? bytes : 0, filtered = shape.sampled && shape.filtered ? bytes : 0;
  const auto over_chunks = [&](const char* kernel, double kernel_bytes) {
    return OverChunks(kernel, rows, vocab, cuda::kSelectBlocksPerMultiprocessor, kernel_bytes, gpu);
  };
  const auto computing = [&](const char* kernel, double kernel_bytes, double cycles) {
    KernelLaunch launch = over_chunks(kernel, kernel_bytes);
    if (kernel_bytes > 0) {
      launch.chain_seconds += CeilDivide(double(rows) * cuda::ChunksOf(vocab), gpu.multiprocessors) * cycles /
                              gpu.clock / std::ceil(Waves(launch, gpu));
    }
    return launch;
  };
  return {over_chunks("SurveyLogits", bytes), computing("CountLogits", filtered, kCountCycles),
          over_chunks("ListCandidates", filtered), computing("DrawTokens", sampled, kDrawCycles),
          WarpPerRow("FinishRows", rows, gpu)};
}

// Relaxed acceptance is off: no row reads its logits.
KernelLaunches LaunchesOf(const RelaxDraftsParams& p, const CostContext&, const GpuModel& gpu) {
  return {OverChunks("SumUpChunks", p.index.rows, p.logits.cols, cuda::kReadBlocksPerMultiprocessor, 0, gpu),
          WarpPerRow("DecideRows", p.index.rows, gpu)};
}

KernelLaunches SlotLaunch(const GpuModel& gpu) { return {StreamingLaunch("slots", 1, 128, 4096, 3, gpu)}; }

}  // namespace foredraft
