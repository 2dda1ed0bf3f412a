#include "server/cli/synth_checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/model_config.h"
#include "engine/weights/tensor_names.h"
#include "kernels/dtype.h"
#include "server/cli/synth_tokenizer.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBlock = 128;  // FP8 blocks are kBlock x kBlock

// splitmix64's finisher over a counter: any element can be made alone.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Four uniforms added: nearly normal, variance 1, bounded by 3.47.
float Normal(uint64_t bits) {
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xffff) / 65536.0f - 0.5f;
  return sum * 1.7320508f;
}
constexpr float kNormalBound = 3.47f;

uint8_t ToF8E4M3(float x) {
  static const std::array<float, 127> kMagnitudes = [] {
    std::array<float, 127> values;
    for (int i = 0; i < 127; ++i) values[i] = F8E4M3ToFloat(static_cast<uint8_t>(i));
    return values;
  }();
  const float magnitude = std::abs(x);
  const auto above = std::lower_bound(kMagnitudes.begin(), kMagnitudes.end(), magnitude);
  size_t index = std::min<size_t>(above - kMagnitudes.begin(), 126);
  if (index > 0 && magnitude - kMagnitudes[index - 1] < kMagnitudes[index] - magnitude) --index;
  return static_cast<uint8_t>(index | (x < 0 ? 0x80 : 0));
}

// One tensor of the file, and where its numbers come from.
struct SynthTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kBF16;
  float mean = 0;
  float spread = 0;
  uint64_t key = 0;

  int64_t elements() const {
    int64_t product = 1;
    for (int64_t extent : shape) product *= extent;
    return product;
  }
  int64_t bytes() const { return elements() * static_cast<int64_t>(DTypeBytes(dtype)); }
};

std::vector<SynthTensor> ListTensors(const ModelConfig& config, const SynthOptions& options) {
  std::vector<SynthTensor> tensors;
  const auto key = [&] { return Mix(options.seed ^ Mix(tensors.size())); };
  for (const TensorSpec& spec : ExpectedTensors(config, config.num_nextn_predict_layers)) {
    if (spec.kind == TensorKind::kCopy) continue;
    SynthTensor tensor{.name = spec.name, .shape = spec.shape, .key = key()};
    if (spec.kind == TensorKind::kVector) {
      const bool is_norm = spec.name.find("norm") != std::string::npos;
      tensor.mean = is_norm ? 1 : 0;
      tensor.spread = is_norm ? 0.1f : 0.01f;
      if (!is_norm) tensor.dtype = DType::kF32;  // biases
    } else {
      tensor.spread =
          1 / std::sqrt(static_cast<float>(spec.shape.back()));  // keeps the scale of what it multiplies
    }
    const bool blocks = spec.kind == TensorKind::kLinear && options.dtype == "fp8";
    // What the block's scale multiplies back: numbers fill E4M3's range.
    if (blocks) tensor = {tensor.name, tensor.shape, DType::kF8E4M3, 0, 448 / kNormalBound, tensor.key};
    tensors.push_back(std::move(tensor));
    if (!blocks) continue;
    const float scale = kNormalBound / 448 / std::sqrt(static_cast<float>(spec.shape.back()));
    tensors.push_back(
        {.name = spec.name + kScaleSuffix,
         .shape = {(spec.shape[0] + kBlock - 1) / kBlock, (spec.shape[1] + kBlock - 1) / kBlock},
         .dtype = DType::kF32,
         .mean = scale,
         .spread = scale / 8,
         .key = key()});
  }
  return tensors;
}

std::string Header(const std::vector<SynthTensor>& tensors) {
  Json header;
  int64_t offset = 0;
  for (const SynthTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", DTypeName(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts aligned, as the library's writer has it
  return text;
}

void AppendElement(const SynthTensor& tensor, int64_t index, std::string* bytes) {
  const float value = tensor.mean + tensor.spread * Normal(Mix(tensor.key ^ static_cast<uint64_t>(index)));
  if (tensor.dtype == DType::kF8E4M3) {
    bytes->push_back(static_cast<char>(ToF8E4M3(value)));
  } else if (tensor.dtype == DType::kBF16) {
    const bf16 rounded = ToBf16(value);
    bytes->append(reinterpret_cast<const char*>(&rounded), sizeof rounded);
  } else {
    bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
  }
}

absl::Status WriteWeights(const std::vector<SynthTensor>& tensors, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  const std::string header = Header(tensors);
  const uint64_t header_bytes = header.size();
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  file << header;
  std::string chunk;
  for (const SynthTensor& tensor : tensors) {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      AppendElement(tensor, i, &chunk);
      if (chunk.size() < 1 << 20) continue;
      file << chunk;
      chunk.clear();
    }
  }
  file << chunk;
  if (!file.flush()) return absl::ResourceExhaustedError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  if (!(file << text) || !file.flush())
    return absl::ResourceExhaustedError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

// The given config.json with the quantization that the weights are written in.
absl::StatusOr<std::string> ConfigText(const SynthOptions& options) {
  std::ifstream file(options.config_json);
  Json config = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    return absl::InvalidArgumentError(absl::StrCat(options.config_json, ": not a JSON object"));
  config.erase("quantization_config");
  if (options.dtype == "fp8") {
    config["quantization_config"] = {{"quant_method", "fp8"},
                                     {"fmt", "e4m3"},
                                     {"activation_scheme", "dynamic"},
                                     {"weight_block_size", {kBlock, kBlock}}};
  }
  return config.dump(2) + "\n";
}

}  // namespace

absl::StatusOr<SynthReport> SynthCheckpoint(const SynthOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(options.config_json));
  ASSIGN_OR_RETURN(const std::string config_text, ConfigText(options));
  std::error_code error;
  std::filesystem::create_directories(options.out_dir, error);
  if (error) return absl::PermissionDeniedError(absl::StrCat(options.out_dir, ": ", error.message()));
  const std::vector<SynthTensor> tensors = ListTensors(config, options);
  RETURN_IF_ERROR(WriteWeights(tensors, options.out_dir + "/model.safetensors"));
  RETURN_IF_ERROR(WriteText(options.out_dir + "/config.json", config_text));
  RETURN_IF_ERROR(WriteText(options.out_dir + "/tokenizer.json", SynthTokenizerJson(config)));
  SynthReport report;
  for (const SynthTensor& tensor : tensors) {
    ++report.tensors;
    report.bytes += tensor.bytes();
  }
  return report;
}

}  // namespace foredraft
