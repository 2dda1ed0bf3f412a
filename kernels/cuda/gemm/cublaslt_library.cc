// The cuBLASLt functions that the backend calls, each resolved by dlsym at its first call.
//
// They are not linked, because the library has 92 KB of thread-local storage, which is taken out of every
// thread's stack, and libraries start threads with small ones. Also, a machine without the library then only
// lacks tuned GEMMs.

#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

namespace {

template <class Function>
Function* Find(const char* name) {
  static void* const library =
      dlopen(("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)).c_str(), RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

template <class Function, class... Args>
cublasStatus_t Call(Function* function, Args... args) {
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(args...);
}

}  // namespace

size_t cublasLtGetVersion() {
  static auto* const function = Find<decltype(cublasLtGetVersion)>("cublasLtGetVersion");
  return function == nullptr ? 0 : function();
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static auto* const function = Find<decltype(cublasLtCreate)>("cublasLtCreate");
  return Call(function, handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  static auto* const function = Find<decltype(cublasLtDestroy)>("cublasLtDestroy");
  return Call(function, handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmul, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
  static auto* const function = Find<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
  return Call(function, matmul, compute_type, scale_type);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul) {
  static auto* const function = Find<decltype(cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy");
  return Call(function, matmul);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  static auto* const function =
      Find<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
  return Call(function, matmul, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  static auto* const function = Find<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
  return Call(function, layout, type, rows, columns, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  static auto* const function = Find<decltype(cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy");
  return Call(function, layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  static auto* const function =
      Find<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
  return Call(function, preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  static auto* const function =
      Find<decltype(cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy");
  return Call(function, preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  static auto* const function =
      Find<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
  return Call(function, preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                              cublasLtMatrixLayout_t a_layout,
                                              cublasLtMatrixLayout_t b_layout,
                                              cublasLtMatrixLayout_t c_layout,
                                              cublasLtMatrixLayout_t d_layout,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* result_count) {
  static auto* const function =
      Find<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
  return Call(function, handle, matmul, a_layout, b_layout, c_layout, d_layout, preference, wanted, results,
              result_count);
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                       cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                                       cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  static auto* const function = Find<decltype(cublasLtMatmulAlgoCheck)>("cublasLtMatmulAlgoCheck");
  return Call(function, handle, matmul, a_layout, b_layout, c_layout, d_layout, algo, result);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  static auto* const function =
      Find<decltype(cublasLtMatmulAlgoConfigGetAttribute)>("cublasLtMatmulAlgoConfigGetAttribute");
  return Call(function, algo, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  static auto* const function = Find<decltype(cublasLtMatmul)>("cublasLtMatmul");
  return Call(function, handle, matmul, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo,
              workspace, workspace_bytes, stream);
}
