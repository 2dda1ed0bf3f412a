// cuBLASLt in software. Its algorithms, by id:
//
// clang-format off
//   0  sums k in ascending order
//   1  the same with split-K, which callers must exclude
//   2  sums in descending order above 16 rows, so it is not row-independent
//   3  supports 8 rows and more
// clang-format on

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "kernels/dtype.h"
#include "tests/cuda_on_host/counts.h"

using foredraft::bf16;

struct CublasLtHandleOnHost {};
struct CublasLtPreferenceOnHost {};
struct CublasLtLayoutOnHost {
  cudaDataType_t type;
  int64_t rows, cols, ld;  // column-major
};
struct CublasLtOperationOnHost {
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  int32_t scale_mode_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int32_t scale_mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  const float* scale_a = nullptr;
  const float* scale_b = nullptr;
};

namespace {

constexpr int kAlgorithms = 4;

std::mutex weights_mutex;
std::set<const void*> weights;  // guarded by weights_mutex: seen by cublasLtMatmul

struct MatmulParams {
  CublasLtOperationOnHost operation;
  CublasLtLayoutOnHost a, b, d;
  const void* a_data;
  const void* b_data;
  void* d_data;
  bool descending;
};

size_t BytesOf(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1; }

float At(const void* data, cudaDataType_t type, int64_t index) {
  if (type == CUDA_R_16BF) return ToFloat(static_cast<const bf16*>(data)[index]);
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all;
    for (int code = 0; code < 256; ++code) all[code] = foredraft::F8E4M3ToFloat(static_cast<uint8_t>(code));
    return all;
  }();
  return values[static_cast<const uint8_t*>(data)[index]];
}

// d[i, j] = sum over k of a[k, i] b[k, j], all column-major.
float Element(const MatmulParams& p, int64_t i, int64_t j) {
  const int64_t k = p.a.rows;
  const int64_t k_blocks = (k + 127) / 128;
  float sum = 0.0f;
  for (int64_t step = 0; step < k_blocks; ++step) {
    const int64_t block = p.descending ? k_blocks - 1 - step : step;
    float block_sum = 0.0f;
    const int64_t first = block * 128, count = std::min<int64_t>(k - first, 128);
    for (int64_t i_k = 0; i_k < count; ++i_k) {
      const int64_t e = first + (p.descending ? count - 1 - i_k : i_k);
      block_sum += At(p.a_data, p.a.type, i * p.a.ld + e) * At(p.b_data, p.b.type, j * p.b.ld + e);
    }
    float scale = 1.0f;
    if (p.operation.scale_a != nullptr) {
      const int64_t pitch = (k_blocks + 3) / 4 * 4;
      scale = p.operation.scale_a[i / 128 * pitch + block] * p.operation.scale_b[block * p.b.cols + j];
    }
    sum += scale * block_sum;
  }
  return sum;
}

void MatmulKernel(MatmulParams p) {
  for (int64_t j = 0; j < p.d.cols; ++j) {
    for (int64_t i = 0; i < p.d.rows; ++i) {
      const float value = Element(p, i, j);
      if (p.d.type == CUDA_R_32F) {
        static_cast<float*>(p.d_data)[j * p.d.ld + i] = value;
      } else {
        static_cast<bf16*>(p.d_data)[j * p.d.ld + i] = foredraft::ToBf16(value);
      }
    }
  }
}

bool Aligned(const CublasLtLayoutOnHost& layout) {
  return layout.ld >= layout.rows && layout.ld * BytesOf(layout.type) % 16 == 0;
}

// The restrictions of the real library that matter here.
bool Supported(const CublasLtOperationOnHost& op, const CublasLtLayoutOnHost& a,
               const CublasLtLayoutOnHost& b, const CublasLtLayoutOnHost& d) {
  if (op.transpose_a != CUBLAS_OP_T || op.transpose_b != CUBLAS_OP_N) return false;
  if (a.rows != b.rows || a.cols != d.rows || b.cols != d.cols || a.type != b.type) return false;
  if (!Aligned(a) || !Aligned(b) || !Aligned(d)) return false;
  if (a.type != CUDA_R_8F_E4M3) return op.scale_a == nullptr && op.scale_b == nullptr;
  return op.scale_mode_a == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F &&
         op.scale_mode_b == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F && op.scale_a != nullptr &&
         op.scale_b != nullptr && a.cols % 4 == 0 && b.cols % 4 == 0;
}

bool Takes(uint64_t id, const CublasLtLayoutOnHost& d) {
  return id < kAlgorithms && (id != 3 || d.cols >= 8);
}

}  // namespace

int64_t cuda_on_host::TakeCublasLtWeights() {
  const std::lock_guard<std::mutex> lock(weights_mutex);
  return static_cast<int64_t>(std::exchange(weights, {}).size());
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new CublasLtHandleOnHost;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  *desc = new CublasLtOperationOnHost;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  const auto set = [&](auto* field) {
    if (bytes != sizeof(*field)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  int8_t fast_accum = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(&desc->transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(&desc->transpose_b);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return set(&desc->scale_mode_a);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return set(&desc->scale_mode_b);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(&desc->scale_a);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(&desc->scale_b);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: {
      const cublasStatus_t status = set(&fast_accum);
      return fast_accum != 0 ? CUBLAS_STATUS_NOT_SUPPORTED : status;
    }
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  *layout = new CublasLtLayoutOnHost{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new CublasLtPreferenceOnHost;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void*, size_t bytes) {
  const size_t expected = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4;
  return bytes == expected ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int asked_for,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  if (!Supported(*desc, *a, *b, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (uint64_t id = kAlgorithms;
       id-- > 0 &&
       *found < asked_for;) {  // in descending order, so that the heuristic's first one is not the right one
    if (Takes(id, *d)) {
      results[(*found)++] = {.algo = {{id}}, .workspaceSize = 0, .state = CUBLAS_STATUS_SUCCESS};
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const bool fits = Supported(*desc, *a, *b, *d) && Takes(algorithm->data[0], *d);
  result->algo = *algorithm;
  result->workspaceSize = 0;
  result->state = fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  return result->state;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  const bool narrow =
      attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  *written = narrow ? 2 : 4;
  if (bytes != *written) return CUBLAS_STATUS_INVALID_VALUE;
  uint32_t number = 0;
  if (attribute == CUBLASLT_ALGO_CONFIG_ID) number = static_cast<uint32_t>(algorithm->data[0]);
  if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) number = algorithm->data[0] == 1 ? 2 : 1;
  std::memcpy(value, &number, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void*, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void*,
                              size_t, cudaStream_t stream) {
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  if (*static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f || !aligned(a) ||
      !aligned(b) || !aligned(d) || !aligned(desc->scale_a) || !aligned(desc->scale_b) ||
      !Supported(*desc, *a_layout, *b_layout, *d_layout) || !Takes(algorithm->data[0], *d_layout)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  {
    const std::lock_guard<std::mutex> lock(weights_mutex);
    weights.insert(a);
  }
  const MatmulParams params = {*desc, *a_layout, *b_layout, *d_layout,
                               a,     b,         d,         algorithm->data[0] == 2 && d_layout->cols > 16};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, &MatmulKernel, params) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                           : CUBLAS_STATUS_NOT_SUPPORTED;
}
