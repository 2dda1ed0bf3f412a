#pragma once

// Rewrites a BF16 checkpoint with quantised projections (FormatChoice selects them), MTP modules included.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/formats/rounding.h"
#include "engine/checkpoint/weight_source.h"
#include "kernels/weight_format.h"
#include "tools/quantize/checkpoint_writer.h"

namespace foredraft {

struct QuantizeOptions {
  std::string in_dir;
  std::string out_dir;                // made if missing; must be empty
  WeightFormat format = kInt4Format;  // a format whose StoredFormat has `round`
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
  std::string left_out;                  // the drafter whose tensors were not written: ModelConfig::drafter
};

// The file in out_dir with a line per quantised tensor: name, elements, root mean square of the weights,
// relative error, largest error.
inline constexpr char kQuantizationReportFile[] = "quantization_report.tsv";

// Writes config.json with a quantization_config, the tensors, the report, and copies of the other files
// (tokenizer, generation_config.json). Holds a band of rows and one tensor's scales at a time.
// INVALID_ARGUMENT names the tensor or field: a checkpoint that is already quantised, a weight that is NaN or
// infinite, or experts with a projection whose columns are no multiple of the 4-bit group.
absl::StatusOr<QuantizeReport> QuantizeCheckpoint(const QuantizeOptions& options,
                                                  const LoadProgress& progress);

}  // namespace foredraft
