#ifndef FOREDRAFT_KERNELS_CUDA_CUBLASLT_TUNE_H_
#define FOREDRAFT_KERNELS_CUDA_CUBLASLT_TUNE_H_

// The search behind `foredraft tune`: times cuBLASLt's algorithms for a GEMM, keeps those that give a row the
// same bits whatever its company and place, and takes the fastest if it beats our own kernel.

#include <functional>
#include <span>
#include <string>

#include "kernels/cuda/tuning_file.h"

namespace foredraft {

// UNAVAILABLE in the words of the probe where there is no GPU.
absl::StatusOr<TuningFile> TuneCublasLt(std::span<const GemmToTune> gemms,
                                        const std::function<void(const std::string&)>& report);

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CUDA_CUBLASLT_TUNE_H_
