// mla_decode's tiles of heads in clusters of two that share their keys, and the same ones apart, on the same
// card: the same bits, and the time of each as a line "probe: NAME: VALUE us, model VALUE", which
// tests/gpu/run puts into its table.

#include <cstdio>
#include <vector>

#include "kernels/cuda/attention/mla_decode.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "tests/bench/device_timer.h"
#include "tests/ops/kv_fixture.h"

namespace foredraft::cuda {
namespace {

constexpr int kHeads = 128, kLatent = 512, kRope = 64, kNope = 128;  // R1's
constexpr int kPageRows = 64;
constexpr int kSequences = 4;  // with values of their own; others have copies of them

struct Case {
  const char* name;
  KvFormat format;
  int rows;
  double apart_us;  // as an H200 measured it (tests/bench/RESULTS.md); FP8 products: predicted, too
  double pairs_us;  // as tests/bench/mla_decode_tiles.py predicts it
};
constexpr Case kCases[] = {{"mla_decode, 1 rows", DType::kBF16, 1, 35.5, 35.5},
                           {"mla_decode, 128 rows", DType::kBF16, 128, 411.0, 312},
                           {"mla_decode, FP8 cache, 4 rows", DType::kF8E4M3, 4, 48.9, 48.9},
                           {"mla_decode, FP8 cache, 128 rows", DType::kF8E4M3, 128, 615.4, 402},
                           {"mla_decode, FP8 products, 1 rows", {DType::kF8E4M3, true}, 1, 27, 27},
                           {"mla_decode, FP8 products, 128 rows", {DType::kF8E4M3, true}, 128, 294, 267}};

// A cache of `rows` sequences, each in memory of its own, so that none is found in L2.
KvLayer CacheOf(OpRig& rig, const KvFixture& kv, KvFormat format, int rows) {
  KvLayer layer = kv.Put(rig, format);
  const size_t bytes = size_t(layer.block_count) * kPageRows * layer.row_bytes();
  const int copies = (rows + kSequences - 1) / kSequences;
  const std::vector<uint8_t> values = rig.Get(layer.data, bytes);
  const std::vector<int32_t> table = rig.Get(layer.block_tables, size_t(kSequences) * layer.table_stride);
  layer.data = *rig.device().AllocateArray<uint8_t>(bytes * copies);
  std::vector<int32_t> tables;
  for (int copy = 0; copy < copies; ++copy) {
    rig.device().CopyToDevice(rig.stream(), layer.data + bytes * copy, values.data(), bytes);
    for (const int32_t block : table) tables.push_back(copy * layer.block_count + block);
  }
  layer.block_tables = rig.Put(tables);
  layer.block_count *= copies;
  return layer;
}

TEST(MlaDecodePairs, GiveTheSameBitsAndAreTimed) {
  for (const Case& c : kCases) {
    OpRig rig({}, RunMode::kEager);
    const bool emulated = rig.device().name().find("NVIDIA") == std::string::npos;
    const int rows = emulated ? 1 : c.rows, positions = emulated ? 20 : 4096;
    Noise noise(61);
    const KvFixture kv(noise, kSequences, positions, kPageRows, kLatent, kRope, c.format.dtype);
    std::vector<int32_t> slots(rows), last(rows, positions - 1);
    for (int row = 0; row < rows; ++row) slots[row] = row;
    constexpr int kHeadDim = kNope + kRope;
    const int width = kHeads * kLatent, q_width = kHeads * kHeadDim;
    bf16* const out = rig.Poisoned<bf16>(size_t(rows) * width);
    const MlaDecodeParams params = {
        .out = Dense(out, rows, width),
        .q_lat = Dense<const bf16>(rig.Put(noise.Bf16s(size_t(rows) * width, 0.1f)), rows, width),
        .q = Dense<const bf16>(rig.Put(noise.Bf16s(size_t(rows) * q_width)), rows, q_width),
        .layer = CacheOf(rig, kv, c.format, rows),
        .index = {rig.Put(slots), rig.Put(last), rows},
        .head_count = kHeads,
        .head_dim = kHeadDim,
        .scale = 0.07f};
    const int64_t blocks = static_cast<CudaStream&>(rig.stream()).multiprocessor_count();
    std::vector<bf16> bits[2];
    for (const bool pairs : {false, true}) {
      const auto run = [&](int) { MlaDecodeBy({.blocks = blocks, .pairs = pairs}, rig.stream(), params); };
      const double us =
          1e6 * MedianSeconds(rig.device(), rig.stream(), run, {.max_calls = emulated ? 1 : 200});
      std::printf("probe: %s, %s: %.4f us, model %.4f\n", c.name, pairs ? "pairs" : "apart", us,
                  pairs ? c.pairs_us : c.apart_us);
      EXPECT_GT(us, 0);
      bits[pairs] = rig.Get(out, size_t(rows) * width);
    }
    EXPECT_EQ(BytesOf(bits[0].data(), bits[0].size()), BytesOf(bits[1].data(), bits[1].size())) << c.name;
  }
}

}  // namespace
}  // namespace foredraft::cuda
