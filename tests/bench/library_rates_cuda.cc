#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <vector>

#include "base/check.h"
#include "tests/bench/library_rates.h"
#include "tests/bench/ops_rates.h"

namespace foredraft {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr size_t kColdBytes = size_t{256} << 20;  // of weight copies, so that none is in L2
constexpr int kSamples = 15;

void Check(cudaError_t error) { CHECK(error == cudaSuccess) << cudaGetErrorString(error); }
void Check(cublasStatus_t status) { CHECK(status == CUBLAS_STATUS_SUCCESS) << static_cast<int>(status); }

// Device memory for a measurement, filled with random BF16 in (-2, 2).
class Memory {
 public:
  explicit Memory(size_t bytes) {
    Check(cudaMalloc(&data_, bytes));
    static const std::vector<uint16_t> random = RandomBf16s(size_t{1} << 23);
    for (size_t begin = 0; begin < bytes; begin += random.size() * 2) {
      Check(cudaMemcpy(data() + begin, random.data(), std::min(bytes - begin, random.size() * 2),
                       cudaMemcpyHostToDevice));
    }
  }
  ~Memory() { Check(cudaFree(data_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  static std::vector<uint16_t> RandomBf16s(size_t count) {
    std::vector<uint16_t> values(count);
    uint32_t state = 1;
    for (uint16_t& value : values) {
      state = state * 1664525 + 1013904223;
      value = static_cast<uint16_t>((state >> 16 & 0x80ff) | 0x3f00);  // a sign, [0.5, 2)
    }
    return values;
  }

  void* data_ = nullptr;
};

// The median over samples of a captured sequence of `calls` submissions, by events.
template <class Submit>
double Median(cudaStream_t stream, int calls, const Submit& submit) {
  submit(0);  // loads the kernel
  Check(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) submit(i);
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t start, end;
  Check(cudaEventCreate(&start));
  Check(cudaEventCreate(&end));
  std::vector<float> samples;
  for (int sample = -1; sample < kSamples; ++sample) {  // the first warms up
    Check(cudaEventRecord(start, stream));
    Check(cudaGraphLaunch(executable, stream));
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, start, end));
    if (sample >= 0) samples.push_back(milliseconds);
  }
  Check(cudaEventDestroy(start));
  Check(cudaEventDestroy(end));
  Check(cudaGraphExecDestroy(executable));
  Check(cudaGraphDestroy(graph));
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2] * 1e-3 / calls;
}

// None if the library is not installed.
std::optional<double> GemmSeconds(int rows, int n, int k) {
  // Row-major out = x w^T is column-major out^T [n, rows] = w x^T.
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t matmul;
  cublasLtMatrixLayout_t weight_layout, x_layout, out_layout;
  cublasLtMatmulPreference_t preference;
  if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
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

DeviceRates MeasureRates(Device& device, bool small) {
  const size_t bytes = size_t{1} << (small ? 26 : 30);
  double copy_seconds = 0;
  {
    const Memory from(bytes), to(bytes);
    cudaStream_t stream;
    Check(cudaStreamCreate(&stream));
    copy_seconds = Median(stream, 4, [&](int) {
      Check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream));
    });
    Check(cudaStreamDestroy(stream));
  }
  const int edge = small ? 1024 : 8192;
  const std::optional<double> seconds = GemmSeconds(edge, edge, edge);
  if (!seconds.has_value()) std::cout << "cuBLASLt is not installed: BF16 by the backend's gemm\n";
  const double rate = seconds.has_value() ? 2.0 * edge * edge * edge / *seconds : Bf16RateOfOps(device, edge);
  // In a graph a memcpy goes through a copy engine, which is slower than the memory (2.8 of 4.3 TB/s, H200).
  const double bandwidth =
      std::max(2.0 * double(bytes) / copy_seconds, CopyRateOfOps(device, small ? 4096 : 16384));
  return {.bytes_per_second = bandwidth, .bf16_flops = rate, .fp8_flops = 2 * rate};
}

std::optional<double> LibraryGemmSeconds(int rows, int n, int k) { return GemmSeconds(rows, n, k); }

}  // namespace foredraft
