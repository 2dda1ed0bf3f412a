#pragma once

// GEMMs with cuBLASLt, each with one algorithm for all row counts.
//
// Row-major out[R, n] = x[R, k] w[n, k]^T is column-major out[n, R] = w[k, n]^T x[k, R]: cuBLASLt's A is the
// weight, transposed, its B is x. FP8: A has scales per 128 x 128, B per 128 inputs. No workspace, no split
// of k, no reduction in place.

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <vector>

#include "kernels/cuda/dense/quantize.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/gemm/tuning_file.h"
#include "kernels/ops.h"

namespace foredraft {

// One product; pointers 16-byte aligned, strides multiples of 16 bytes. FP8: rows % 4 == 0.
struct CublasLtProduct {
  GemmShape shape;
  int64_t rows = 0;
  void* out = nullptr;
  int64_t out_stride = 0;           // elements
  const void* x = nullptr;          // BF16, or E4M3 codes
  int64_t x_stride = 0;             // elements
  const float* x_scales = nullptr;  // FP8: [k / 128, rows]
  const void* weight = nullptr;
  const float* weight_scales = nullptr;
};

// Owner: the device. Thread-safe.
class CublasLt {
 public:
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Algorithms that support the product without split-K, in the heuristic's order, best first.
  std::vector<cublasLtMatmulAlgo_t> Candidates(const CublasLtProduct& product) const;
  // The first row count in (above, most] that the algorithm does not support for the product, whose own row
  // count is ignored; 0 where it supports all.
  int64_t FirstRefused(CublasLtProduct product, const cublasLtMatmulAlgo_t& algorithm, int64_t above,
                       int64_t most) const;
  void Run(CudaStream& stream, const CublasLtProduct& product, const cublasLtMatmulAlgo_t& algorithm) const;

 private:
  bool Fits(const CublasLtProduct& product, const cublasLtMatmulAlgo_t& algorithm) const;

  cublasLtHandle_t handle_ = nullptr;
};

// Row counts that the first run of a shape checks, which is before service. Larger forwards are checked when
// they come.
inline constexpr int64_t kCheckedRows = 16'384;

// The algorithm's attributes, for display.
std::map<std::string, int64_t> AttributesOf(const cublasLtMatmulAlgo_t& algorithm);

// The GEMMs of the tuning file. Owner: the device; its streams point to it. Thread-safe.
class TunedGemms {
 public:
  explicit TunedGemms(const std::map<GemmShape, TunedAlgorithm>& algorithms);

  // Whether `gemm` uses the tuned algorithm. Depends on the weight, the form, and the operands' types and
  // alignment, never on the row count.
  bool Supports(const GemmParams& p) const;
  void Run(CudaStream& stream, const GemmParams& p);

 private:
  void RunChecked(CudaStream& stream, const CublasLtProduct& product);
  void RunF8(CudaStream& stream, const GemmParams& p, CublasLtProduct product);

  const CublasLt library_;
  std::map<GemmShape, cublasLtMatmulAlgo_t> algorithms_;  // constant after construction

  std::mutex mutex_;
  std::map<GemmShape, int64_t> checked_;  // guarded by mutex_: all row counts up to here
};

}  // namespace foredraft
