#pragma once

// The search behind `foredraft tune`: times cuBLASLt's algorithms for a GEMM as a decode step runs it
// (captured, weights from memory), drops those whose bits for a row depend on the other rows or on the row's
// index, and takes the fastest of the rest if it beats our own kernel.

#include <functional>
#include <span>
#include <string>

#include "kernels/cuda/gemm/tuning_file.h"

namespace foredraft {

// UNAVAILABLE, with ProbeCudaDevice's message, if there is no GPU.
absl::StatusOr<TuningFile> TuneCublasLt(std::span<const GemmToTune> gemms,
                                        const std::function<void(const std::string&)>& report);

}  // namespace foredraft
