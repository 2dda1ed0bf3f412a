#pragma once

// The file that `foredraft tune` writes: cuBLASLt's algorithm for each GEMM, as JSON. An algorithm is 64
// opaque bytes, valid for one version of the library and one GPU model; its attributes are for the human
// reader.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/gemm_tuning.h"

namespace foredraft {

// The library and GPU for which the bytes are valid.
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
  double us = 0;                              // median at the largest row count
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

// The algorithms of the file at `path`. None, with a warning in the log, if the file was made for another
// device; none for an empty path.
absl::StatusOr<std::map<GemmShape, TunedAlgorithm>> LoadTunedAlgorithms(const std::string& path,
                                                                        const TunedFor& here);

// A hash of the algorithms and their shapes: everything in the file that may change a bit.
uint32_t TuningHash(const std::map<GemmShape, TunedAlgorithm>& algorithms);

}  // namespace foredraft
