#pragma once

// How a tensor lies in the files of a checkpoint. Each format, in each spelling of its names, is a row
// (list.inc), which the loader, the check, random weights, `synth` and `quantize` ask. This folder has a file
// per format (plain, fp8, int4, mxfp4, nvfp4) and one for the code that compressed-tensors' formats share
// (packed).

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/formats/host_tensor.h"
#include "engine/checkpoint/formats/rounding.h"
#include "engine/checkpoint/model_description.h"
#include "kernels/cpu/device/thread_pool.h"
#include "kernels/weight_format.h"

namespace foredraft {

// One tensor of a file. A quantised tensor of the model becomes several.
struct StoredTensor {
  enum class Part { kCodes, kScales, kTensorScale, kConstant };

  std::string name;
  std::string dtype;           // safetensors' spelling
  std::vector<int64_t> shape;  // row-major
  Part part = Part::kCodes;
  std::string constant;  // kConstant: its bytes, which do not depend on the weights
  float value = 0;       // kTensorScale: its value for random weights

  int64_t bytes() const;
};

// Rows of floats that become codes: [rows, k], beginning at the first row of a block of scales.
struct FloatBand {
  const float* values = nullptr;
  int64_t rows = 0;
  int64_t k = 0;
  float tensor_scale = 1;  // where the format has one
};

// How random weights are made. A code is the one nearest to `spread` times a random number of variance 1 and
// magnitude at most kRandomBound. Scales lie around `scale`; those in E8M0 are all 2^exponent.
struct RandomCodes {
  float spread = 0;
  float scale = 0;
  int exponent = 0;
};
inline constexpr float kRandomBound = 3.4641016f;

struct StoredFormat {
  // Whether this tensor has the format according to config.json, if it is quantised.
  bool (*is_meant)(const ModelDescription& model, const TensorSpec& spec);
  // Whether the checkpoint has the tensor in the format, given that config.json allows it.
  bool (*is_there)(const Checkpoint& checkpoint, const TensorSpec& spec);
  // The tensors of the file as this program writes them, codes first. Check and reader use the same names.
  std::vector<StoredTensor> (*tensors)(const ModelDescription& model, const TensorSpec& spec);
  // INVALID_ARGUMENT names file, tensor and reason.
  absl::Status (*check)(const Checkpoint& checkpoint, const ModelDescription& model, const TensorSpec& spec);
  // Reads a tensor that has passed the check. INVALID_ARGUMENT if an element is NaN or infinite.
  absl::StatusOr<HostTensor> (*read)(const Checkpoint& checkpoint, const ModelDescription& model,
                                     const TensorSpec& spec);
  // How to make random weights of root mean square `amplitude`. Null: not quantised.
  RandomCodes (*random)(const WeightFormat& format, float amplitude) = nullptr;
  // Rounds a band to codes and appends its scales as they are stored. Null: `quantize` does not write it.
  QuantizationError (*round)(const WeightFormat& format, const FloatBand& band, ThreadPool& pool,
                             uint8_t* codes, std::string& scales) = nullptr;
  // The tensor scale of weights whose largest magnitude is `largest`. Null: the format has none.
  float (*tensor_scale)(float largest) = nullptr;
  // The name of the scale of the weight's inputs, an FP32 scalar that may lie next to the weight. Null: the
  // format has none.
  std::string (*input_scale_name)(const TensorSpec& spec) = nullptr;
  // Reads the scale that `input_scale_name` names, as a factor of rounded inputs. INVALID_ARGUMENT names a
  // missing tensor, or a value out of range.
  absl::StatusOr<float> (*input_scale)(const Checkpoint& checkpoint, const TensorSpec& spec) = nullptr;
  // The dtype that X.weight itself may have instead of BF16 or F32, as messages show it. Null: none.
  const char* weight_dtype = nullptr;
};

#define STORED(name) extern const StoredFormat name;
#include "engine/checkpoint/formats/list.inc"

// StoredFormats: all formats, in the order of list.inc. FindStored: the format in which the checkpoint has
// the tensor; null if it lacks the tensor.
std::span<const StoredFormat* const> StoredFormats();
const StoredFormat* FindStored(const Checkpoint& checkpoint, const ModelDescription& model,
                               const TensorSpec& spec);

// Reads a tensor that has passed CheckTensors, with its scales if it has any. INVALID_ARGUMENT names file,
// tensor and element where a scale is NaN.
absl::StatusOr<HostTensor> ReadTensor(const Checkpoint& checkpoint, const ModelDescription& model,
                                      const TensorSpec& spec);

// Bytes of codes and scales.
int64_t StoredBytes(std::span<const StoredTensor> tensors);

// Which tensors of a model are quantised where this program chooses (quantize, synth, random weights):
//
//   FP8     all projections, kv_b included, as DeepSeek does; not router, eh_proj, norms, embedding and head.
//   others  like FP8, but without kv_b and DeepSeek-V4's wo_a, which are multiplied head by head, and without
//           weights whose columns are no multiple of the group. Tensors that are fused into one weight are
//           packed together.
//   NVFP4   like others, but only the target's MLP projections, as in NVIDIA's checkpoints of DeepSeek-V3:
//           attention and MTP modules stay BF16.
class FormatChoice {
 public:
  // The description outlives this.
  explicit FormatChoice(const ModelDescription& model);

  bool Quantises(const TensorSpec& spec) const { return quantised_.contains(&spec); }
  bool Quantises(const WeightSpec& weight) const;
  // How the tensor is written: kPlainStored unless it is quantised.
  const StoredFormat& Of(const TensorSpec& spec) const;

 private:
  const ModelDescription& model_;
  absl::flat_hash_set<const TensorSpec*> quantised_;
};

// ---- for the rows ----

// Returns INVALID_ARGUMENT, naming file and tensor.
absl::Status RefuseTensor(const TensorLocation& tensor, const std::string& what);
absl::Status CheckStoredDType(const TensorLocation& tensor, const std::string& allowed);
// `why` names what makes the tensor's shape `shape`.
absl::Status CheckStoredShape(const TensorLocation& tensor, const std::vector<int64_t>& shape,
                              const std::string& why = "config.json");
// The shape of a weight's grid of scales: [rows, columns].
std::vector<int64_t> ScaleShape(const WeightFormat& format, const std::vector<int64_t>& weight_shape);
// Reads a tensor's bytes.
absl::StatusOr<std::vector<char>> ReadStored(const TensorLocation& tensor);
// Reads codes, and scales of the type that `format` has; the HostTensor has E8M0 scales in the wider form
// (WithWideScales).
absl::StatusOr<HostTensor> ReadCodesAndScales(const TensorLocation& codes, const TensorLocation& scales,
                                              const WeightFormat& format, const TensorSpec& spec);
// Rounds a band whose groups lie along rows, row by row, calling round(group, &scale), and appends the
// scales.
template <class Scale, class RoundGroup>
QuantizationError RoundGroups(const WeightFormat& format, const FloatBand& band, ThreadPool& pool,
                              std::string& scales, const RoundGroup& round) {
  const int64_t groups = band.k / format.columns;  // of a row
  std::vector<Scale> factors(band.rows * groups);
  const QuantizationError error = SumErrors(pool, band.rows, band.k * 64, [&](int64_t row) {
    QuantizationError sum;
    for (int64_t i = row * groups; i < (row + 1) * groups; ++i) sum += round(i, &factors[i]);
    return sum;
  });
  scales.append(reinterpret_cast<const char*>(factors.data()), factors.size() * sizeof(Scale));
  return error;
}
// The exponent of the smallest power of two that, as the scale of codes up to `largest`, reaches the bound of
// random weights.
int RandomExponent(float amplitude, float largest);

}  // namespace foredraft
