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
#include "base/status_macros.h"
#include "config/json_text.h"
#include "config/model_config.h"
#include "engine/weights/tensor_names.h"
#include "kernels/dtype.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kNormalCount = 1 << 16;
constexpr size_t kBufferBytes = size_t{4} << 20;

// splitmix64's finisher: any word of a stream can be made alone, and the same on every machine.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t HashName(const std::string& name) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

// Nearly normal, variance 1: four uniforms added. 65,536 of them are drawn from by 16 random bits each.
constexpr float kNormalBound = 3.4641016f;
const std::vector<float>& Normals() {
  static const std::vector<float> normals = [] {
    std::vector<float> values(kNormalCount);
    for (int i = 0; i < kNormalCount; ++i) {
      const uint64_t bits = Mix(i);
      float sum = 0;
      for (int part = 0; part < 4; ++part)
        sum += static_cast<float>(bits >> (16 * part) & 0xffff) / 65536 - 0.5f;
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

// Rounds 65,536 normals once, then copies: the writer runs at the speed of the disk, not of rounding.
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
  const uint64_t key = Mix(seed ^ HashName(tensor.name));
  const int64_t count = tensor.element_count();
  if (tensor.dtype == DType::kF8E4M3)
    WriteElements(Palette<uint8_t>(tensor, ToF8E4M3), count, key, file);
  else if (tensor.dtype == DType::kBF16)
    WriteElements(Palette<bf16>(tensor, [](float x) { return ToBf16(x); }), count, key, file);
  else
    WriteElements(Palette<float>(tensor, [](float x) { return x; }), count, key, file);
}

// mean and spread by what the tensor does; see the header.
RandomTensor Describe(const TensorSpec& spec, const ModelConfig& config) {
  RandomTensor tensor{.name = spec.name, .shape = spec.shape};
  if (spec.kind == TensorKind::kVector) {
    const bool norm = spec.name.find("norm") != std::string::npos;
    tensor.mean = norm ? 1.0f : 0.0f;
    tensor.spread = norm ? 0.1f : 0.02f;
    if (!norm) tensor.dtype = DType::kF32;
    return tensor;
  }
  const auto inputs = static_cast<float>(spec.shape.back());
  tensor.spread = 1 / std::sqrt(inputs);
  if (spec.name == kEmbedTokens) tensor.spread = 1;
  if (spec.name == kLmHead) tensor.spread = 3 / std::sqrt(inputs);  // logits that differ
  if (spec.name.ends_with(kOProj) || spec.name.ends_with(kDownProj))
    tensor.spread /= std::sqrt(2.0f * static_cast<float>(config.num_hidden_layers));
  return tensor;
}

// Codes fill E4M3's range; the scale of each block, a little different from the next, brings them back.
void AddF8(const RandomTensor& weight, const ModelConfig& config, std::vector<RandomTensor>& tensors) {
  const float scale = weight.spread * kNormalBound / 448;
  tensors.push_back({weight.name, weight.shape, DType::kF8E4M3, 0, 448 / kNormalBound});
  tensors.push_back(
      {weight.name + kScaleSuffix, ScaleShape(config, weight.shape), DType::kF32, scale, scale / 16});
}

std::vector<RandomTensor> ListTensors(const ModelConfig& config, bool fp8) {
  std::vector<RandomTensor> tensors;
  for (const TensorSpec& spec : ExpectedTensors(config, config.num_nextn_predict_layers)) {
    if (spec.kind == TensorKind::kCopy) continue;
    const RandomTensor tensor = Describe(spec, config);
    const bool f8 = fp8 && spec.kind == TensorKind::kLinear && !spec.name.ends_with(kEhProj);
    if (f8)
      AddF8(tensor, config, tensors);
    else
      tensors.push_back(tensor);
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
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts aligned, as other writers have it
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
    if (!file) break;  // a full disk: nothing gets better
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
  if (shards.size() > 1)
    RETURN_IF_ERROR(WriteJson({{"metadata", {{"total_size", report.bytes}}}, {"weight_map", weight_map}},
                              dir + "/model.safetensors.index.json"));
  return report;
}

// The given config.json, with the dtype that the weights are written in.
absl::Status WriteConfig(const std::string& text, const ModelConfig& config, bool fp8,
                         const std::string& dir) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  json["torch_dtype"] = "bfloat16";
  json.erase("quantization_config");
  if (fp8)
    json["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {config.weight_block_n, config.weight_block_k}}};
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
  const bool fp8 = options.dtype == "fp8";
  if (!fp8 && options.dtype != "bf16")
    return absl::InvalidArgumentError(absl::StrFormat("dtype: %s, allowed bf16, fp8", options.dtype));
  ASSIGN_OR_RETURN(const std::string text, ReadFileText(options.config_json, 16 << 20));
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(text, options.config_json));
  std::error_code error;
  std::filesystem::create_directories(options.out_dir, error);
  if (!error && !std::filesystem::is_empty(options.out_dir, error) && !error)
    return absl::AlreadyExistsError(
        absl::StrFormat("%s: not empty, allowed an empty directory", options.out_dir));
  if (error) return absl::InvalidArgumentError(absl::StrFormat("%s: %s", options.out_dir, error.message()));
  RETURN_IF_ERROR(WriteConfig(text, config, fp8, options.out_dir));
  RETURN_IF_ERROR(WriteGenerationConfig(config, options.out_dir));
  return WriteShards(CutShards(ListTensors(config, fp8), options.max_shard_bytes), options.out_dir,
                     options.seed);
}

}  // namespace foredraft
