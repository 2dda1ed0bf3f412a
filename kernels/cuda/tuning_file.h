#ifndef FOREDRAFT_KERNELS_CUDA_TUNING_FILE_H_
#define FOREDRAFT_KERNELS_CUDA_TUNING_FILE_H_

// The file of `foredraft tune`: cuBLASLt's algorithm for each GEMM, as JSON. The machine reads the
// algorithm's 64 opaque bytes, which are good for one version of the library and one kind of GPU; people read
// its attributes.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/gemm_tuning.h"

namespace foredraft {

// What the bytes are good for.
struct TunedFor {
  int64_t cublaslt = 0;  // cublasLtGetVersion
  std::string gpu;       // "NVIDIA H200"
  int32_t multiprocessors = 0;

  bool operator==(const TunedFor&) const = default;
};

struct TunedAlgorithm {
  std::array<uint8_t, 64> bytes{};            // cublasLtMatmulAlgo_t
  std::map<std::string, int64_t> attributes;  // "tile", "stages", ...
  std::string name;                           // of the weight
  double us = 0;                              // median at the largest number of rows
  double own_us = 0;                          // of the kernel it replaces

  bool operator==(const TunedAlgorithm&) const = default;
};

struct TuningFile {
  TunedFor tuned_for;
  std::map<GemmShape, TunedAlgorithm> algorithms;
};

std::string WriteTuningFile(const TuningFile& file);

// INVALID_ARGUMENT names `path`, the entry and what is wrong with it.
absl::StatusOr<TuningFile> ParseTuningFile(std::string_view text, const std::string& path);

// The algorithms of the file at `path` for this device; none, and one line in the log, where it was made for
// another one. An empty path has none.
absl::StatusOr<std::map<GemmShape, TunedAlgorithm>> LoadTunedAlgorithms(const std::string& path,
                                                                        const TunedFor& here);

// Of what may change a bit: the algorithms and what they are for.
uint32_t TuningHash(const std::map<GemmShape, TunedAlgorithm>& algorithms);

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CUDA_TUNING_FILE_H_
