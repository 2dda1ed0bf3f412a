#include "kernels/cuda/gemm/cublaslt_gemm.h"

#include <cstring>

#include "base/check.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/gemm/gemm_gather.h"
#include "kernels/cuda/gemm/packed_weight.h"

namespace foredraft {
namespace {

constexpr int kMaxCandidates = 32;
constexpr int32_t kF8RowUnit = 4;  // cuBLASLt requires a multiple of 4 FP8 rows

void CheckLt(cublasStatus_t status, const char* what) {
  CHECK_EQ(static_cast<int>(status), static_cast<int>(CUBLAS_STATUS_SUCCESS)) << what;
}

cudaDataType_t TypeOf(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
}

// cuBLASLt's description of one product.
class Description {
 public:
  explicit Description(const CublasLtProduct& p) {
    const GemmShape& s = p.shape;
    CheckLt(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "matmul description");
    Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    if (s.weight == DType::kF8E4M3) {
      Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
      Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
      Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.weight_scales);
      Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.x_scales);
      Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0});
    }
    CheckLt(cublasLtMatrixLayoutCreate(&a, TypeOf(s.weight), s.k, s.n, s.k), "layout of the weight");
    CheckLt(cublasLtMatrixLayoutCreate(&b, TypeOf(s.weight), s.k, p.rows, p.x_stride), "layout of x");
    CheckLt(cublasLtMatrixLayoutCreate(&d, TypeOf(s.out), s.n, p.rows, p.out_stride), "layout of the output");
  }
  ~Description() {
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatmulDescDestroy(operation_);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  cublasLtMatmulDesc_t operation() const { return operation_; }

  cublasLtMatrixLayout_t a = nullptr;
  cublasLtMatrixLayout_t b = nullptr;
  cublasLtMatrixLayout_t d = nullptr;

 private:
  template <class T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    CheckLt(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)), "matmul attribute");
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
};

// No split-K, no workspace.
class Preference {
 public:
  Preference() {
    CheckLt(cublasLtMatmulPreferenceCreate(&preference_), "matmul preference");
    Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{0});
    Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      Set(attribute, uint32_t{16});
    }
  }
  ~Preference() { cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  template <class T>
  void Set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    CheckLt(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value)),
            "matmul preference");
  }

  cublasLtMatmulPreference_t preference_ = nullptr;
};

// Most attributes are 32 bits wide; the two shape ids are 16.
int64_t AttributeOf(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  const bool narrow =
      attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  uint32_t value = 0;  // little-endian: a narrow attribute fills the lower half
  size_t written = 0;
  CheckLt(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, narrow ? 2 : 4, &written),
          "algorithm attribute");
  return value;
}

template <class T>
bool Aligned16(const Matrix<T>& m) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 &&
         m.stride * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

GemmShape ShapeOf(const GemmParams& p) {
  return {p.weight.n, p.weight.k, p.weight.format.code, p.out ? DType::kF32 : DType::kBF16, p.form};
}

}  // namespace

CublasLt::CublasLt() { CheckLt(cublasLtCreate(&handle_), "cublasLtCreate"); }
CublasLt::~CublasLt() { cublasLtDestroy(handle_); }

std::vector<cublasLtMatmulAlgo_t> CublasLt::Candidates(const CublasLtProduct& product) const {
  const Description description(product);
  const Preference preference;
  cublasLtMatmulHeuristicResult_t results[kMaxCandidates] = {};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, description.operation(), description.a, description.b, description.d, description.d,
      preference.get(), kMaxCandidates, results, &found);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  if (status != CUBLAS_STATUS_SUCCESS) return algorithms;  // no algorithm supports this product
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulAlgo_t& algorithm = results[i].algo;
    if (results[i].state != CUBLAS_STATUS_SUCCESS || results[i].workspaceSize > 0) continue;
    if (AttributeOf(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1) continue;
    if (AttributeOf(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) != CUBLASLT_REDUCTION_SCHEME_NONE) {
      continue;
    }
    algorithms.push_back(algorithm);
  }
  return algorithms;
}

bool CublasLt::Fits(const CublasLtProduct& product, const cublasLtMatmulAlgo_t& algorithm) const {
  const Description description(product);
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, description.operation(), description.a, description.b, description.d,
                              description.d, &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize == 0;
}

int64_t CublasLt::FirstRefused(CublasLtProduct product, const cublasLtMatmulAlgo_t& algorithm, int64_t above,
                               int64_t most) const {
  const int64_t unit = product.shape.weight == DType::kF8E4M3 ? kF8RowUnit : 1;
  for (product.rows = above / unit * unit + unit; product.rows <= most; product.rows += unit) {
    if (!Fits(product, algorithm)) return product.rows;
  }
  return 0;
}

void CublasLt::Run(CudaStream& stream, const CublasLtProduct& product,
                   const cublasLtMatmulAlgo_t& algorithm) const {
  if (stream.failed()) return;
  const Description description(product);
  // Zeroed before it is filled, because its padding is part of the node's bytes.
  struct Node {
    CublasLtProduct product;
    cublasLtMatmulAlgo_t algorithm;
  } node;
  std::memset(static_cast<void*>(&node), 0, sizeof(node));
  node.product = product;
  node.algorithm = algorithm;
  __builtin_clear_padding(&node);
  stream.PrepareLaunch(reinterpret_cast<const void*>(&cublasLtMatmul), {}, &node, sizeof(node));
  const float one = 1.0f, zero = 0.0f;
  CheckLt(cublasLtMatmul(handle_, description.operation(), &one, product.weight, description.a, product.x,
                         description.b, &zero, product.out, description.d, product.out, description.d,
                         &algorithm, nullptr, 0, stream.handle()),
          "cublasLtMatmul");
}

std::map<std::string, int64_t> AttributesOf(const cublasLtMatmulAlgo_t& algorithm) {
  const std::pair<const char*, cublasLtMatmulAlgoConfigAttributes_t> names[] = {
      {"id", CUBLASLT_ALGO_CONFIG_ID},
      {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID},
      {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID},
      {"split_k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM},
      {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME},
      {"swizzling", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING},
      {"custom_option", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION},
      {"inner_shape", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID},
      {"cluster_shape", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID},
  };
  std::map<std::string, int64_t> attributes;
  for (const auto& [name, attribute] : names) attributes[name] = AttributeOf(algorithm, attribute);
  return attributes;
}

TunedGemms::TunedGemms(const std::map<GemmShape, TunedAlgorithm>& algorithms) {
  for (const auto& [shape, tuned] : algorithms) {
    static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(tuned.bytes));
    std::memcpy(&algorithms_[shape], tuned.bytes.data(), sizeof(tuned.bytes));
  }
}

bool TunedGemms::Supports(const GemmParams& p) const {
  if (p.bias != nullptr || (p.out && p.out_bf16) || p.weight.segments > 0) return false;
  if (!algorithms_.contains(ShapeOf(p))) return false;
  const bool f8 = p.weight.format.code == DType::kF8E4M3;
  return (f8 || Aligned16(p.x)) && (p.out ? Aligned16(p.out) : Aligned16(p.out_bf16));
}

void TunedGemms::Run(CudaStream& stream, const GemmParams& p) {
  if (p.x.rows == 0) return;
  CublasLtProduct product = {.shape = ShapeOf(p),
                             .rows = p.x.rows,
                             .out = p.out ? static_cast<void*>(p.out.data) : p.out_bf16.data,
                             .out_stride = p.out ? p.out.stride : p.out_bf16.stride,
                             .x = p.x.data,
                             .x_stride = p.x.stride,
                             .weight = p.weight.data,
                             .weight_scales = p.weight.scales};
  if (p.weight.format.code == DType::kF8E4M3) {
    RunF8(stream, p, product);
  } else {
    RunChecked(stream, product);
  }
}

// A multiple of four rows is written directly to the output; the remaining one to three go through four rows
// of scratch memory. The library requires dense scales, [k / 128, rows], so rows quantised with another pitch
// are copied.
void TunedGemms::RunF8(CudaStream& stream, const GemmParams& p, CublasLtProduct product) {
  const int32_t rest = p.x.rows % kF8RowUnit;
  const int32_t whole = p.x.rows - rest;
  const cuda::QuantizedShape whole_shape(whole, p.x.cols);
  const cuda::QuantizedShape rest_shape(rest, p.x.cols);
  const int64_t rest_bytes = int64_t{kF8RowUnit} * p.weight.n * static_cast<int64_t>(sizeof(float));
  const int64_t rest_begin = (whole_shape.bytes + 1023) / 1024 * 1024;
  const int64_t out_begin = rest_begin + (rest_shape.bytes + 1023) / 1024 * 1024;
  auto* const memory = static_cast<unsigned char*>(stream.Scratch(out_begin + rest_bytes));

  const auto run = [&](const QuantizedRows& x_f8, int32_t first, int32_t count, int64_t rows, void* out,
                       int64_t out_stride) {
    if (!p.x_f8) {
      cuda::QuantizeRows(stream, x_f8, p.x.row_range(first, count), nullptr, nullptr, count);
    } else if (x_f8.codes != p.x_f8.codes) {
      cuda::CopyQuantizedRows(stream, x_f8, p.x_f8.row_range(first, count), nullptr, nullptr, count);
    }
    product.rows = rows;
    product.x = x_f8.codes;
    product.x_stride = x_f8.pitch;
    product.x_scales = x_f8.scales;
    product.out = out;
    product.out_stride = out_stride;
    RunChecked(stream, product);
  };
  const bool dense = p.x_f8 && p.x_f8.scale_pitch == whole;
  if (whole > 0) {
    run(dense ? p.x_f8 : whole_shape.View(memory), 0, whole, whole, product.out, product.out_stride);
  }
  if (rest == 0) return;
  void* const rest_out = memory + out_begin;
  run(rest_shape.View(memory + rest_begin), whole, rest, kF8RowUnit, rest_out, p.weight.n);
  if (p.out) {
    cuda::CopyRows(stream, {.out = p.out.row_range(whole, rest),
                            .x = Dense<const float>(static_cast<float*>(rest_out), rest, p.weight.n),
                            .rows = rest});
  } else {
    cuda::GatherRows(stream, p.out_bf16.row_range(whole, rest),
                     Dense<const bf16>(static_cast<bf16*>(rest_out), rest, p.weight.n), nullptr, nullptr,
                     rest);
  }
}

void TunedGemms::RunChecked(CudaStream& stream, const CublasLtProduct& product) {
  const cublasLtMatmulAlgo_t& algorithm = algorithms_.at(product.shape);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t& checked = checked_[product.shape];
    const int64_t most = std::max(kCheckedRows, product.rows);
    if (checked < most) {
      // There is no fallback: another algorithm would give these rows other bits.
      const int64_t refused = library_.FirstRefused(product, algorithm, checked, most);
      CHECK_EQ(refused, 0) << "cublaslt.tuning_file: the algorithm of [" << product.shape.n << ", "
                           << product.shape.k << "] does not support " << refused
                           << " rows; run `foredraft tune` again";
      checked = most;
    }
  }
  library_.Run(stream, product, algorithm);
}

}  // namespace foredraft
