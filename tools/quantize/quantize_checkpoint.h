#pragma once

// Rewrites a BF16 checkpoint with quantised projections (quantization_config.h says which), MTP modules
// included.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/quantization_config.h"
#include "engine/checkpoint/weight_source.h"
#include "kernels/dtype.h"
#include "tools/quantize/checkpoint_writer.h"
#include "tools/quantize/quantizer.h"

namespace foredraft {

inline constexpr int kPackGroups[] = {32, 64, 128};  // that kernels have

struct QuantizeOptions {
  std::string in_dir;
  std::string out_dir;         // made if missing; must be empty
  DType dtype = DType::kInt4;  // or kF8E4M3
  int group = kPackGroup;      // of kInt4: one of kPackGroups
  int threads = 1;
  int64_t max_shard_bytes = 5'000'000'000;
};

struct QuantizedTensor {
  std::string name;
  QuantizationError error;
};

struct QuantizeReport {
  WrittenCheckpoint written;
  int64_t bytes_read = 0;
  std::vector<QuantizedTensor> tensors;  // in the checkpoint's order
};

// The file in out_dir with a line per quantised tensor: name, elements, root mean square of the weights,
// relative error, largest error.
inline constexpr char kQuantizationReportFile[] = "quantization_report.tsv";

// Writes config.json with a quantization_config, the tensors, the report, and copies of the other files
// (tokenizer, generation_config.json). Holds a band of rows and one tensor's scales at a time.
// INVALID_ARGUMENT names the tensor or field: a checkpoint that is quantised already, a weight that is NaN or
// infinite, experts that kInt4 could pack in part only.
absl::StatusOr<QuantizeReport> QuantizeCheckpoint(const QuantizeOptions& options,
                                                  const LoadProgress& progress);

}  // namespace foredraft
