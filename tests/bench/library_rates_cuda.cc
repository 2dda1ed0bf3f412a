#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "tests/bench/library_rates.h"

namespace foredraft {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr size_t kColdBytes = size_t{256} << 20;  // of weight copies, so that none is in L2
constexpr int kSamples = 15;

void Check(cudaError_t error) { CHECK(error == cudaSuccess) << cudaGetErrorString(error); }
void Check(cublasStatus_t status) { CHECK(status == CUBLAS_STATUS_SUCCESS) << static_cast<int>(status); }

// Device memory for a measurement.
class Memory {
 public:
  explicit Memory(size_t bytes) {
    Check(cudaMalloc(&data_, bytes));
    Check(cudaMemset(data_, 0, bytes));
  }
  ~Memory() { Check(cudaFree(data_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

// The median over samples of `calls` submissions each, by events.
template <class Submit>
double Median(cudaStream_t stream, int calls, const Submit& submit) {
  cudaEvent_t start, end;
  Check(cudaEventCreate(&start));
  Check(cudaEventCreate(&end));
  std::vector<float> samples;
  for (int sample = -1; sample < kSamples; ++sample) {  // the first warms up
    Check(cudaEventRecord(start, stream));
    for (int i = 0; i < calls; ++i) submit(i);
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, start, end));
    if (sample >= 0) samples.push_back(milliseconds);
  }
  Check(cudaEventDestroy(start));
  Check(cudaEventDestroy(end));
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2] * 1e-3 / calls;
}

double GemmSeconds(int rows, int n, int k) {
  // Row-major out = x w^T is column-major out^T [n, rows] = w x^T.
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t matmul;
  cublasLtMatrixLayout_t weight_layout, x_layout, out_layout;
  cublasLtMatmulPreference_t preference;
  Check(cublasLtCreate(&handle));
  Check(cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  Check(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
  Check(cublasLtMatrixLayoutCreate(&weight_layout, CUDA_R_16BF, k, n, k));
  Check(cublasLtMatrixLayoutCreate(&x_layout, CUDA_R_16BF, k, rows, k));
  Check(cublasLtMatrixLayoutCreate(&out_layout, CUDA_R_32F, n, rows, n));
  Check(cublasLtMatmulPreferenceCreate(&preference));
  Check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &kWorkspaceBytes, sizeof(kWorkspaceBytes)));
  cublasLtMatmulHeuristicResult_t choice;
  int found = 0;
  Check(cublasLtMatmulAlgoGetHeuristic(handle, matmul, weight_layout, x_layout, out_layout, out_layout,
                                       preference, 1, &choice, &found));
  CHECK_EQ(found, 1);

  const size_t weight_bytes = size_t(n) * k * 2;
  const int weights = static_cast<int>(std::clamp<size_t>(kColdBytes / weight_bytes, 1, 64));
  const Memory weight(weights * weight_bytes), x(size_t(rows) * k * 2), out(size_t(rows) * n * 4);
  const Memory workspace(kWorkspaceBytes);
  const float one = 1, zero = 0;
  cudaStream_t stream;
  Check(cudaStreamCreate(&stream));
  const double seconds = Median(stream, std::max(weights, 8), [&](int i) {
    Check(cublasLtMatmul(handle, matmul, &one, weight.data() + i % weights * weight_bytes, weight_layout,
                         x.data(), x_layout, &zero, out.data(), out_layout, out.data(), out_layout,
                         &choice.algo, workspace.data(), kWorkspaceBytes, stream));
  });
  Check(cudaStreamDestroy(stream));
  Check(cublasLtMatmulPreferenceDestroy(preference));
  for (const auto layout : {weight_layout, x_layout, out_layout}) Check(cublasLtMatrixLayoutDestroy(layout));
  Check(cublasLtMatmulDescDestroy(matmul));
  Check(cublasLtDestroy(handle));
  return seconds;
}

}  // namespace

DeviceRates MeasureRates(Device&, bool small) {
  const size_t bytes = size_t{1} << (small ? 26 : 30);
  const Memory from(bytes), to(bytes);
  const double copy_seconds = Median(nullptr, 4, [&](int) {
    Check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, nullptr));
  });
  const int edge = small ? 1024 : 8192;
  const double rate = 2.0 * edge * edge * edge / GemmSeconds(edge, edge, edge);
  return {.bytes_per_second = 2.0 * double(bytes) / copy_seconds, .bf16_flops = rate, .fp8_flops = 2 * rate};
}

std::optional<double> LibraryGemmSeconds(int rows, int n, int k) { return GemmSeconds(rows, n, k); }

}  // namespace foredraft
