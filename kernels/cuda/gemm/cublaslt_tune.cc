#include "kernels/cuda/gemm/cublaslt_tune.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/cuda_probe.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/gemm/cublaslt_gemm.h"

namespace foredraft {
namespace {

constexpr int kTimedRuns = 9;  // replays of the captured calls
constexpr int kMaxCopies = 32;

// How many copies of a weight it takes so that none is still in L2 when its turn comes again.
int ColdCopies(const GemmShape& shape) {
  int l2_bytes = 0;
  CheckCuda(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, 0), "size of L2");
  const int64_t bytes = int64_t{shape.n} * shape.k * static_cast<int64_t>(DTypeBytes(shape.weight));
  return static_cast<int>(std::clamp<int64_t>(4 * int64_t{l2_bytes} / bytes + 1, 2, kMaxCopies));
}

// One GEMM on the device with random operands, to run with any algorithm and row count.
class Trial {
 public:
  static absl::StatusOr<std::unique_ptr<Trial>> Create(Device& device, const GemmToTune& gemm) {
    auto trial = std::unique_ptr<Trial>(new Trial(device, gemm));
    const GemmShape& s = gemm.shape;
    const WeightFormat& format = s.weight == DType::kF8E4M3 ? kFp8Format : kBf16Format;
    for (int copy = 0; copy < ColdCopies(s); ++copy) {
      ASSIGN_OR_RETURN(const PackedWeights weights,
                       device.MakeRandomWeights(1, DenseRandomWeight(s.n, s.k, format, 0.02f, 1)));
      trial->weights_.push_back(weights.first);
    }
    ASSIGN_OR_RETURN(
        const PackedWeights inputs,
        device.MakeRandomWeights(1, DenseRandomWeight(trial->max_rows_, s.k, kBf16Format, 1.0f, 2)));
    trial->x_ = Dense(static_cast<const bf16*>(inputs.first.data), trial->max_rows_, s.k);
    ASSIGN_OR_RETURN(bf16* const copies,
                     device.AllocateArray<bf16>(static_cast<size_t>(trial->max_rows_) * s.k));
    std::vector<bf16> row(s.k);
    device.CopyToHost(*trial->stream_, row.data(), trial->x_.data, row.size() * sizeof(bf16));
    trial->stream_->Synchronize();
    for (int32_t r = 0; r < trial->max_rows_; ++r) {
      device.CopyToDevice(*trial->stream_, copies + int64_t{r} * s.k, row.data(), row.size() * sizeof(bf16));
    }
    trial->equal_rows_ = Dense<const bf16>(copies, trial->max_rows_, s.k);
    ASSIGN_OR_RETURN(trial->out_, device.Allocate(static_cast<size_t>(trial->max_rows_) * trial->RowBytes()));
    return trial;
  }

  // Runs rows [first, first + rows) of x; with our own kernel if `tuned` is null. The copies of the weight
  // are equal.
  void Run(TunedGemms* tuned, Matrix<const bf16> x, int32_t first, int32_t rows, size_t copy = 0) {
    GemmParams p = {
        .x = x.row_range(first, rows), .weight = weights_[copy], .bias = nullptr, .form = shape_.form};
    if (shape_.out == DType::kF32) {
      p.out = Dense(static_cast<float*>(out_), rows, shape_.n);
    } else {
      p.out_bf16 = Dense(static_cast<bf16*>(out_), rows, shape_.n);
    }
    if (tuned != nullptr) {
      CHECK(tuned->Supports(p));
      tuned->Run(static_cast<CudaStream&>(*stream_), p);
    } else {
      cuda::Gemm(*stream_, p);
    }
  }

  // Microseconds of a run as in a decode step: captured, each with a weight that is not in a cache. The
  // median of kTimedRuns replays.
  double Time(TunedGemms* tuned, int32_t rows) {
    Run(tuned, x_, 0, rows);  // loads the kernel and allocates its workspace
    stream_->Synchronize();
    const auto graph = device_.Capture(*stream_, [&] {
      for (size_t copy = 0; copy < weights_.size(); ++copy) Run(tuned, x_, 0, rows, copy);
    });
    graph->Replay(*stream_);
    std::vector<double> times;
    const auto begin = device_.CreateEvent(), end = device_.CreateEvent();
    for (int i = 0; i < kTimedRuns; ++i) {
      begin->Record(*stream_);
      graph->Replay(*stream_);
      end->Record(*stream_);
      stream_->Synchronize();
      times.push_back(end->SecondsSince(*begin) * 1e6 / static_cast<double>(weights_.size()));
    }
    std::nth_element(times.begin(), times.begin() + kTimedRuns / 2, times.end());
    return times[kTimedRuns / 2];
  }

  // Whether a row has the same bits at every row index, with every row count, and beside any other rows.
  bool IsRowInvariant(TunedGemms& tuned) {
    const std::vector<unsigned char> all = Output(tuned, x_, 0, max_rows_);
    const std::vector<unsigned char> alone = Output(tuned, x_, 0, 1);
    for (const int32_t rows : rows_) {
      const size_t bytes = static_cast<size_t>(rows) * RowBytes();
      if (std::memcmp(Output(tuned, x_, 0, rows).data(), all.data(), bytes) != 0) return false;
      const int32_t last = max_rows_ - rows;  // the last rows, computed as the first
      const unsigned char* const expected = all.data() + last * RowBytes();
      if (std::memcmp(Output(tuned, x_, last, rows).data(), expected, bytes) != 0) return false;
      const std::vector<unsigned char> equal = Output(tuned, equal_rows_, 0, rows);
      for (int32_t r = 0; r < rows; ++r) {
        if (std::memcmp(equal.data() + r * RowBytes(), alone.data(), RowBytes()) != 0) return false;
      }
    }
    return true;
  }

  // The product for cuBLASLt's heuristic, which reads sizes and alignments but no data.
  CublasLtProduct Product(int32_t rows) const {
    const bool f8 = shape_.weight == DType::kF8E4M3;
    return {.shape = shape_,
            .rows = f8 ? (rows + 3) / 4 * 4 : rows,
            .out = out_,
            .out_stride = shape_.n,
            .x = x_.data,
            .x_stride = shape_.k,
            .x_scales = f8 ? static_cast<const float*>(out_) : nullptr,
            .weight = weights_[0].data,
            .weight_scales = weights_[0].scales};
  }

  int32_t max_rows() const { return max_rows_; }
  const std::vector<int32_t>& rows() const { return rows_; }

 private:
  Trial(Device& device, const GemmToTune& gemm)
      : device_(device),
        stream_(device.CreateStream()),
        shape_(gemm.shape),
        rows_(gemm.rows),
        max_rows_(*std::max_element(gemm.rows.begin(), gemm.rows.end())) {}

  int64_t RowBytes() const { return shape_.n * static_cast<int64_t>(DTypeBytes(shape_.out)); }

  std::vector<unsigned char> Output(TunedGemms& tuned, Matrix<const bf16> x, int32_t first, int32_t rows) {
    Run(&tuned, x, first, rows);
    std::vector<unsigned char> bytes(static_cast<size_t>(rows) * RowBytes());
    device_.CopyToHost(*stream_, bytes.data(), out_, bytes.size());
    stream_->Synchronize();
    return bytes;
  }

  Device& device_;
  const std::unique_ptr<Stream> stream_;
  const GemmShape shape_;
  const std::vector<int32_t> rows_;
  const int32_t max_rows_;
  std::vector<PackedWeight> weights_;
  Matrix<const bf16> x_;           // [max_rows, k]
  Matrix<const bf16> equal_rows_;  // [max_rows, k]: each a copy of row 0 of x_
  void* out_ = nullptr;            // [max_rows, n]
};

struct Candidate {
  TunedAlgorithm algorithm;
  std::unique_ptr<TunedGemms> gemms;
  double cost = 0;  // sum over row counts of its time divided by our own kernel's
};

std::vector<Candidate> TimeCandidates(Trial& trial, const GemmToTune& gemm,
                                      const std::vector<double>& own_us) {
  const CublasLt library;
  std::vector<Candidate> candidates;
  const CublasLtProduct product = trial.Product(trial.max_rows());
  for (const cublasLtMatmulAlgo_t& algorithm : library.Candidates(product)) {
    if (library.FirstRefused(product, algorithm, 0, kCheckedRows) > 0) continue;
    Candidate candidate;
    std::memcpy(candidate.algorithm.bytes.data(), &algorithm, sizeof(algorithm));
    candidate.algorithm.attributes = AttributesOf(algorithm);
    candidate.algorithm.name = gemm.name;
    candidate.algorithm.own_us = own_us.back();
    candidate.gemms =
        std::make_unique<TunedGemms>(std::map<GemmShape, TunedAlgorithm>{{gemm.shape, candidate.algorithm}});
    for (size_t i = 0; i < trial.rows().size(); ++i) {
      const double us = trial.Time(candidate.gemms.get(), trial.rows()[i]);
      candidate.cost += us / own_us[i];
      candidate.algorithm.us = us;  // row counts ascend: keeps the largest one's
    }
    candidates.push_back(std::move(candidate));
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  return candidates;
}

struct TuneResult {
  std::optional<TunedAlgorithm> algorithm;  // none if our own kernel is the fastest row-independent one
  std::string line;                         // for the report
};

TuneResult TuneOne(Trial& trial, const GemmToTune& gemm) {
  std::vector<double> own_us;
  for (const int32_t rows : trial.rows()) own_us.push_back(trial.Time(nullptr, rows));
  int dropped = 0;
  for (Candidate& candidate : TimeCandidates(trial, gemm, own_us)) {
    if (candidate.cost >= static_cast<double>(own_us.size())) break;
    if (!trial.IsRowInvariant(*candidate.gemms)) {
      ++dropped;
      continue;
    }
    const std::string line = absl::StrFormat(
        "%-24s %6d x %-6d %d rows: cuBLASLt %.1f us, own %.1f us; %d faster ones are not row-independent",
        gemm.name, gemm.shape.n, gemm.shape.k, trial.max_rows(), candidate.algorithm.us, own_us.back(),
        dropped);
    return {std::move(candidate.algorithm), line};
  }
  return {
      std::nullopt,
      absl::StrFormat("%-24s %6d x %-6d %d rows: own kernel %.1f us; %d faster ones are not row-independent",
                      gemm.name, gemm.shape.n, gemm.shape.k, trial.max_rows(), own_us.back(), dropped)};
}

}  // namespace

absl::StatusOr<TuningFile> TuneCublasLt(std::span<const GemmToTune> gemms,
                                        const std::function<void(const std::string&)>& report) {
  ASSIGN_OR_RETURN(const CudaProbe probe, ProbeCudaDevice());
  TuningFile file;
  file.tuned_for = {.cublaslt = static_cast<int64_t>(cublasLtGetVersion()), .gpu = probe.gpu};
  for (const GemmToTune& gemm : gemms) {
    // A device per GEMM, so that its memory is freed afterwards.
    ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, CudaDevice::Create({}));
    ASSIGN_OR_RETURN(const std::unique_ptr<Trial> trial, Trial::Create(*device, gemm));
    file.tuned_for.multiprocessors = static_cast<CudaStream&>(*device->CreateStream()).multiprocessor_count();
    TuneResult result = TuneOne(*trial, gemm);
    report(result.line);
    if (result.algorithm.has_value()) file.algorithms[gemm.shape] = *std::move(result.algorithm);
  }
  return file;
}

}  // namespace foredraft
