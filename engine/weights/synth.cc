#include "engine/weights/synth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/fnv.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "config/model_config.h"
#include "engine/weights/model_description.h"
#include "kernels/random_weight.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kNormalCount = 1 << 16;
constexpr size_t kBufferBytes = size_t{4} << 20;

uint64_t Mix(uint64_t x) { return RandomBits(x, 1); }

// 65,536 nearly normal values of variance 1 (sums of four uniforms). 16 random bits choose one.
constexpr float kNormalBound = 3.4641016f;
const std::vector<float>& Normals() {
  static const std::vector<float> normals = [] {
    std::vector<float> values(kNormalCount);
    for (int i = 0; i < kNormalCount; ++i) {
      const uint64_t bits = Mix(i);
      float sum = 0;
      for (int part = 0; part < 4; ++part) {
        sum += static_cast<float>(bits >> (16 * part) & 0xffff) / 65536 - 0.5f;
      }
      values[i] = sum * 1.7320508f;
    }
    return values;
  }();
  return normals;
}

// To nearest; halfway cases to the smaller magnitude. |x| <= 448.
uint8_t ToF8E4M3(float x) {
  static const std::array<float, 127> magnitudes = [] {
    std::array<float, 127> values{};
    for (int code = 0; code < 127; ++code) values[code] = F8E4M3ToFloat(static_cast<uint8_t>(code));
    return values;
  }();
  const float magnitude = std::fabs(x);
  const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), magnitude);
  size_t code = std::min<size_t>(above - magnitudes.begin(), magnitudes.size() - 1);
  if (code > 0 && magnitude - magnitudes[code - 1] <= magnitudes[code] - magnitude) --code;
  return static_cast<uint8_t>(code | (x < 0 ? 0x80u : 0u));
}

// A tensor to write: elements are mean + spread * normal.
struct RandomTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kBF16;
  float mean = 0;
  float spread = 0;

  int64_t element_count() const {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return count;
  }
  int64_t bytes() const { return element_count() * static_cast<int64_t>(DTypeBytes(dtype)); }
};

// Rounds 65,536 normals once; elements are copies of them. Rounding each would be slower than the disk.
template <class T, class Round>
std::vector<T> Palette(const RandomTensor& tensor, Round round) {
  std::vector<T> palette(kNormalCount);
  for (int i = 0; i < kNormalCount; ++i) palette[i] = round(tensor.mean + tensor.spread * Normals()[i]);
  return palette;
}

template <class T>
void WriteElements(const std::vector<T>& palette, int64_t count, uint64_t key, std::ofstream& file) {
  std::vector<T> buffer(std::min<size_t>(kBufferBytes / sizeof(T), static_cast<size_t>(count)));
  uint64_t word = 0;
  for (int64_t done = 0; done < count;) {
    const int64_t length = std::min<int64_t>(static_cast<int64_t>(buffer.size()), count - done);
    for (int64_t i = 0; i < length; ++i, word >>= 16) {
      if ((done + i) % 4 == 0) word = Mix(key + static_cast<uint64_t>((done + i) / 4));
      buffer[i] = palette[word & 0xffff];
    }
    file.write(reinterpret_cast<const char*>(buffer.data()),
               static_cast<std::streamsize>(length * sizeof(T)));
    done += length;
  }
}

void WriteTensor(const RandomTensor& tensor, uint64_t seed, std::ofstream& file) {
  const uint64_t key = Mix(seed ^ Fnv1a(tensor.name));
  const int64_t count = tensor.element_count();
  if (tensor.dtype == DType::kF8E4M3) {
    WriteElements(Palette<uint8_t>(tensor, ToF8E4M3), count, key, file);
  } else if (tensor.dtype == DType::kBF16) {
    WriteElements(Palette<bf16>(tensor, [](float x) { return ToBf16(x); }), count, key, file);
  } else {
    WriteElements(Palette<float>(tensor, [](float x) { return x; }), count, key, file);
  }
}

RandomTensor Describe(const TensorSpec& spec, const ModelConfig& config) {
  RandomTensor tensor{.name = spec.name, .shape = spec.shape};
  if (spec.kind == TensorKind::kNorm) {
    tensor.mean = 1.0f;
    tensor.spread = 0.1f;
  } else if (spec.kind == TensorKind::kBias) {
    tensor.dtype = DType::kF32;
    tensor.spread = 0.02f;
  } else {
    tensor.spread = RandomAmplitude(spec, config);
  }
  return tensor;
}

std::vector<RandomTensor> ListTensors(const ModelConfig& config, bool fp8) {
  std::vector<RandomTensor> tensors;
  const ModelDescription description = DescribeModel(config, config.num_nextn_predict_layers);
  for (const TensorSpec& spec : description.tensors) {
    if (spec.kind == TensorKind::kUnread) continue;
    tensors.push_back(Describe(spec, config));
    if (!fp8 || !spec.is_quantised()) continue;
    // Codes fill E4M3's range; the scales, which differ a little from block to block, undo that.
    RandomTensor& weight = tensors.back();
    const float scale = weight.spread * kNormalBound / 448;
    weight.dtype = DType::kF8E4M3;
    weight.spread = 448 / kNormalBound;
    tensors.push_back({spec.scale, ScaleShape(config, spec.shape), DType::kF32, scale, scale / 16});
  }
  return tensors;
}

using Shard = std::vector<RandomTensor>;

std::vector<Shard> CutShards(std::vector<RandomTensor> tensors, int64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  int64_t bytes = 0;
  for (RandomTensor& tensor : tensors) {
    if (!shards.back().empty() && bytes + tensor.bytes() > max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

std::string Header(const Shard& shard) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t offset = 0;
  for (const RandomTensor& tensor : shard) {
    header[tensor.name] = {{"dtype", DTypeName(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // align the data, as other writers do
  return text;
}

absl::Status CloseFile(std::ofstream& file, const std::string& path) {
  file.close();
  if (file) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat("%s: cannot be written", path));
}

absl::Status WriteShard(const Shard& shard, uint64_t seed, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  const std::string header = Header(shard);
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  file.write(length, sizeof(length));
  file << header;
  for (const RandomTensor& tensor : shard) {
    WriteTensor(tensor, seed, file);
    if (!file) break;  // CloseFile reports it
  }
  return CloseFile(file, path);
}

absl::Status WriteJson(const Json& json, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << json.dump(2) << "\n";
  return CloseFile(file, path);
}

absl::StatusOr<RandomCheckpointReport> WriteShards(const std::vector<Shard>& shards, const std::string& dir,
                                                   uint64_t seed) {
  RandomCheckpointReport report{.shard_count = static_cast<int>(shards.size())};
  Json weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1
                                 ? "model.safetensors"
                                 : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
    RETURN_IF_ERROR(WriteShard(shards[i], seed, dir + "/" + name));
    for (const RandomTensor& tensor : shards[i]) {
      weight_map[tensor.name] = name;
      report.bytes += tensor.bytes();
      ++report.tensor_count;
    }
  }
  if (shards.size() > 1) {
    RETURN_IF_ERROR(WriteJson({{"metadata", {{"total_size", report.bytes}}}, {"weight_map", weight_map}},
                              dir + "/model.safetensors.index.json"));
  }
  return report;
}

// The given config.json, with the dtype that the weights are written in.
absl::Status WriteConfig(const std::string& text, const ModelConfig& config, bool fp8,
                         const std::string& dir) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  json["torch_dtype"] = "bfloat16";
  json.erase("quantization_config");
  if (fp8) {
    json["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {config.weight_block_n, config.weight_block_k}}};
  }
  return WriteJson(json, dir + "/config.json");
}

absl::Status WriteGenerationConfig(const ModelConfig& config, const std::string& dir) {
  Json json = {{"do_sample", false}};
  if (config.bos_token_id >= 0) json["bos_token_id"] = config.bos_token_id;
  if (!config.eos_token_ids.empty()) json["eos_token_id"] = config.eos_token_ids;
  return WriteJson(json, dir + "/generation_config.json");
}

}  // namespace

absl::StatusOr<RandomCheckpointReport> WriteRandomCheckpoint(const RandomCheckpointOptions& options) {
  const bool fp8 = options.projections == DType::kF8E4M3;
  ASSIGN_OR_RETURN(const std::string text, ReadFileText(options.config_json, 16 << 20));
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(text, options.config_json));
  std::error_code error;
  std::filesystem::create_directories(options.out_dir, error);
  if (!error && !std::filesystem::is_empty(options.out_dir, error) && !error) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "%s: the directory is not empty; synth overwrites nothing, so name a new or an empty directory",
        options.out_dir));
  }
  if (error) return absl::InvalidArgumentError(absl::StrFormat("%s: %s", options.out_dir, error.message()));
  RETURN_IF_ERROR(WriteConfig(text, config, fp8, options.out_dir));
  RETURN_IF_ERROR(WriteGenerationConfig(config, options.out_dir));
  return WriteShards(CutShards(ListTensors(config, fp8), options.max_shard_bytes), options.out_dir,
                     options.seed);
}

}  // namespace foredraft
