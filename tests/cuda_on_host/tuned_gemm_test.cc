// `foredraft tune` and its file, on the emulated cuBLASLt (cublaslt.cc): only the row-independent algorithm
// may be chosen.

#include <cuda_runtime.h>

#include <cstring>
#include <fstream>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "kernels/cuda/dense/quantize.h"
#include "kernels/cuda/device/cuda_probe.h"
#include "kernels/cuda/gemm/tuning_file.h"
#include "kernels/gemm_tuning.h"
#include "tests/cuda_on_host/counts.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

using testing::HasSubstr;
using testing::Not;

const GemmShape kF8 = {128, 256, DType::kF8E4M3, DType::kF32, GemmForm::kPrefill};
const GemmShape kF8ToBf16 = {136, 128, DType::kF8E4M3, DType::kBF16, GemmForm::kPrefill};
const GemmShape kBf16 = {64, 72, DType::kBF16, DType::kF32, GemmForm::kDecode};

// As if tuned: the same algorithm for all three.
std::string TuningText(uint64_t algorithm = 0) {
  TuningFile file;
  file.tuned_for = {.cublaslt = 130100, .gpu = ProbeCudaDevice()->gpu};
  cudaDeviceGetAttribute(&file.tuned_for.multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  for (const GemmShape& shape : {kF8, kF8ToBf16, kBf16}) {
    TunedAlgorithm& tuned = file.algorithms[shape] = {.name = "test"};
    std::memcpy(tuned.bytes.data(), &algorithm, sizeof(algorithm));
  }
  return WriteTuningFile(file);
}

std::string WriteTemporary(const std::string& text) {
  const std::string path = testing::TempDir() + "/tuned_gemm.json";
  std::ofstream(path) << text;
  return path;
}

TEST(TunedGemm, OnlyTheAlgorithmThatKeepsRowsIsTaken) {
  // FP32 outputs, because rounding few outputs to BF16 could hide the differences.
  const GemmToTune gemms[] = {{"f8", kF8, {1, 7, 16, 33}}, {"bf16", kBf16, {1, 9, 40}}};
  std::vector<std::string> lines;
  const auto text = TuneGemms("cuda", gemms, [&](const std::string& line) { lines.push_back(line); });
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(lines.size(), 2u);
  const auto file = ParseTuningFile(*text, "t.json");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->algorithms.empty());
  for (const auto& [shape, algorithm] : file->algorithms) {
    EXPECT_EQ(algorithm.attributes.at("id"), 0) << algorithm.name;
    EXPECT_EQ(algorithm.attributes.at("split_k"), 1) << algorithm.name;
  }
}

// As in a decode step: from a graph, with weights that are not in a cache.
TEST(TunedGemm, TimesAreOfCapturedColdRuns) {
  const GemmToTune gemms[] = {{"f8", kF8, {4}}};
  const cuda_on_host::Counts before = cuda_on_host::CurrentCounts();
  cuda_on_host::TakeCublasLtWeights();
  ASSERT_TRUE(TuneGemms("cuda", gemms, [](const std::string&) {}).ok());
  const cuda_on_host::Counts after = cuda_on_host::CurrentCounts();
  const int64_t captures = after.captures - before.captures;
  EXPECT_GE(captures, 2);  // our own kernel and an algorithm
  EXPECT_EQ(after.graph_launches - before.graph_launches, 10 * captures);
  EXPECT_GE(cuda_on_host::TakeCublasLtWeights(), 2);
}

TEST(TunedGemm, TheDeviceNamesItsTuning) {
  const std::string path = WriteTemporary(TuningText());
  EXPECT_THAT((*CreateDevice("cuda", {.tuning_file = path}))->name(), HasSubstr(", tuning "));
  std::string other = TuningText();
  const std::string version = "\"cublaslt\": 130100";
  other.replace(other.find(version), version.size(), "\"cublaslt\": 130200");
  EXPECT_THAT((*CreateDevice("cuda", {.tuning_file = WriteTemporary(other)}))->name(),
              Not(HasSubstr("tuning")));
  EXPECT_FALSE(CreateDevice("cuda", {.tuning_file = "/nowhere/t.json"}).ok());
}

// Rows `first` .. of x through gemm; `quantized`: from an op that has quantised all of x.
std::vector<float> RunRows(OpRig& rig, const TestWeight& weight, const GemmShape& shape,
                           const std::vector<bf16>& x, int first, int rows, bool quantized = false) {
  const std::vector<bf16> inputs(x.begin() + first * shape.k, x.begin() + (first + rows) * shape.k);
  GemmParams p = {.x = Dense<const bf16>(rig.Put(inputs), rows, shape.k),
                  .weight = rig.Pack(weight.parts),
                  .bias = nullptr,
                  .form = shape.form};
  if (quantized) {
    const int all = static_cast<int>(x.size()) / shape.k;
    const cuda::QuantizedShape quantized_shape(all, shape.k);
    p.x_f8 = quantized_shape.View(rig.Poisoned<unsigned char>(quantized_shape.bytes));
    cuda::QuantizeRows(rig.stream(), p.x_f8, Dense<const bf16>(rig.Put(x), all, shape.k), nullptr, nullptr,
                       all);
    p.x_f8 = p.x_f8.row_range(first, rows);
    p.x.data = nullptr;
  }
  const int pitch = shape.n + 8;  // rows of the output need not be dense
  std::vector<float> out;
  if (shape.out == DType::kF32) {
    p.out = {rig.Poisoned<float>(rows * pitch), rows, shape.n, pitch};
    rig.Run([&] { rig.ops().gemm(rig.stream(), p); });
    out = rig.Get(p.out.data, rows * pitch);
  } else {
    p.out_bf16 = {rig.Poisoned<bf16>(rows * pitch), rows, shape.n, pitch};
    rig.Run([&] { rig.ops().gemm(rig.stream(), p); });
    for (const bf16 value : rig.Get(p.out_bf16.data, rows * pitch)) out.push_back(ToFloat(value));
  }
  std::vector<float> dense;
  for (int r = 0; r < rows; ++r) {
    dense.insert(dense.end(), out.begin() + r * pitch, out.begin() + r * pitch + shape.n);
    for (int i = shape.n; i < pitch && r + 1 < rows; ++i) EXPECT_TRUE(std::isnan(out[r * pitch + i])) << r;
  }
  return dense;
}

TEST(TunedGemm, Holds) {
  const std::string path = WriteTemporary(TuningText());
  constexpr int kRows = 23;
  for (const GemmShape& shape : {kF8, kF8ToBf16, kBf16}) {
    SCOPED_TRACE(absl::StrFormat("%d x %d", shape.n, shape.k));
    Noise noise(51);
    TestWeight weight = MakeTestWeight(noise, {shape.n}, shape.k, shape.weight, 128, 128);
    const std::vector<bf16> x = noise.Bf16s(kRows * shape.k);
    for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
      OpRig rig({.tuning_file = path}, mode);
      const std::vector<float> all = RunRows(rig, weight, shape, x, 0, kRows);
      for (int row = 0; row < kRows; ++row) {
        const std::vector<double> inputs = ReferenceInputs(weight, &x[row * shape.k], shape.k);
        for (int j = 0; j < shape.n; ++j) {
          const DotReference dot = ReferenceDot(weight, j, inputs);
          const double error = (shape.k + 4) * kF32Roundoff * dot.magnitude;
          const double rounding = shape.out == DType::kBF16 ? kBf16Roundoff * std::abs(dot.sum) : 0.0;
          ASSERT_NEAR(all[row * shape.n + j], dot.sum, 2 * error + rounding)
              << "row " << row << " output " << j;
        }
      }
      for (const auto& [first, rows] :
           {std::pair{0, 1}, {3, 2}, {5, 3}, {2, 4}, {1, 5}, {4, 18}, {0, 20}, {8, 3}}) {
        const std::vector<float> some = RunRows(rig, weight, shape, x, first, rows);
        EXPECT_EQ(BytesOf(some.data(), some.size()), BytesOf(&all[first * shape.n], some.size()))
            << rows << " rows from " << first;
        // Scales are read 16 bytes at a time.
        if (shape.weight != DType::kF8E4M3 || first % 4 != 0) continue;
        EXPECT_EQ(RunRows(rig, weight, shape, x, first, rows, /*quantized=*/true), some)
            << rows << " rows from " << first << ", quantised";
      }
      if (shape.weight == DType::kF8E4M3) {
        EXPECT_EQ(RunRows(rig, weight, shape, x, 0, kRows, /*quantized=*/true), all);
      }
    }
  }
}

// The emulation's algorithm 3 takes 8 rows and more. A first run of 16 rows, before service, is where that is
// seen, not the first request with fewer.
TEST(TunedGemm, AnAlgorithmThatRefusesARowCountIsFoundAtTheFirstRun) {
  const std::string path = WriteTemporary(TuningText(/*algorithm=*/3));
  const auto run = [&path](const GemmShape& shape) {
    Noise noise(51);
    const TestWeight weight = MakeTestWeight(noise, {shape.n}, shape.k, shape.weight, 128, 128);
    OpRig rig({.tuning_file = path}, RunMode::kEager);
    RunRows(rig, weight, shape, noise.Bf16s(16 * shape.k), 0, 16);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fork would lack the threads that run blocks
  EXPECT_DEATH(run(kBf16), "the algorithm of .64, 72. does not support 1 rows; run `foredraft tune` again");
  EXPECT_DEATH(run(kF8), "the algorithm of .128, 256. does not support 4 rows");
}

TEST(TunedGemm, TheCpuHasNothingToTune) {
  EXPECT_EQ(TuneGemms("cpu", {}, [](const std::string&) {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace foredraft
