#include "tools/synth/synth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/fnv.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "engine/checkpoint/formats/stored_format.h"
#include "engine/checkpoint/model_description.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_config.h"
#include "engine/model/model_kind.h"
#include "engine/model/quantization_config.h"
#include "engine/spec/eagle3/eagle3_config.h"
#include "engine/spec/eagle3/eagle3_description.h"
#include "engine/spec/eagle3/eagle3_tokens.h"
#include "kernels/random_weight.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kNormalCount = 1 << 16;
constexpr size_t kBufferBytes = size_t{4} << 20;

uint64_t Mix(uint64_t x) { return RandomBits(x, 1); }

// 65,536 nearly normal values of variance 1 (sums of four uniforms). 16 random bits choose one.
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

// Rounds to nearest; halfway cases to the smaller magnitude. |x| <= 448.
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

// How a tensor's bytes are made.
enum class Content {
  kElements,   // mean + spread * normal, rounded to `dtype`
  kCodes,      // 4-bit codes of spread * normal, two to a byte
  kExponents,  // E8M0 `constant`
  kConstant,   // the bytes of `out`
  kIds,        // RandomIds
};

struct RandomTensor {
  StoredTensor out;
  Content content = Content::kElements;
  DType dtype = DType::kBF16;
  float mean = 0;
  float spread = 0;
  uint8_t constant = 0;
  const TensorSpec* spec = nullptr;  // kIds

  int64_t element_count() const { return out.bytes() / SafetensorsElementBytes(out.dtype); }
};

// Rounds 65,536 normals once, and elements are copies of these: rounding each element would be slower than
// the disk.
template <class T, class Round>
std::vector<T> Palette(const RandomTensor& tensor, Round round) {
  std::vector<T> palette(kNormalCount);
  for (int i = 0; i < kNormalCount; ++i) palette[i] = round(tensor.mean + tensor.spread * Normals()[i]);
  return palette;
}

template <class T>
void WriteElements(const std::vector<T>& palette, int64_t count, uint64_t key, std::ostream& file) {
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

// The code whose value is nearest to x; in a tie, the lower code.
int NearestCode(DType dtype, float x) {
  int nearest = 0;
  for (int code = 1; code < 16; ++code) {
    const float distance = std::fabs(Code4ToFloat(dtype, code) - x);
    if (distance < std::fabs(Code4ToFloat(dtype, nearest) - x)) nearest = code;
  }
  return nearest;
}

// 65,536 pairs of codes of independent normals.
std::vector<uint8_t> CodePalette(const RandomTensor& tensor) {
  std::vector<uint8_t> codes(kNormalCount);
  for (int i = 0; i < kNormalCount; ++i) {
    codes[i] = static_cast<uint8_t>(NearestCode(tensor.dtype, tensor.spread * Normals()[i]));
  }
  std::vector<uint8_t> pairs(kNormalCount);
  for (int i = 0; i < kNormalCount; ++i) {
    pairs[i] = static_cast<uint8_t>(codes[i] | codes[Mix(i) >> 48] << 4);
  }
  return pairs;
}

void WriteTensor(const RandomTensor& tensor, const ModelDescription& model, uint64_t seed,
                 std::ostream& file) {
  const uint64_t key = Mix(seed ^ Fnv1a(tensor.out.name));
  const int64_t count = tensor.element_count();
  if (tensor.content == Content::kCodes) {
    WriteElements(CodePalette(tensor), tensor.out.bytes(), key, file);
  } else if (tensor.content == Content::kExponents) {
    const std::string row(tensor.out.shape[1], static_cast<char>(tensor.constant));
    for (int64_t i = 0; i < tensor.out.shape[0]; ++i) file << row;
  } else if (tensor.content == Content::kConstant) {
    file << tensor.out.constant;
  } else if (tensor.content == Content::kIds) {
    const std::vector<int32_t> ids = RandomIds(*tensor.spec, model, key);
    const std::vector<int64_t> stored(ids.begin(), ids.end());
    file.write(reinterpret_cast<const char*>(stored.data()), tensor.out.bytes());
  } else if (tensor.dtype == DType::kF8E4M3) {
    WriteElements(Palette<uint8_t>(tensor, ToF8E4M3), count, key, file);
  } else if (tensor.dtype == DType::kBF16) {
    WriteElements(Palette<bf16>(tensor, [](float x) { return ToBf16(x); }), count, key, file);
  } else {
    WriteElements(Palette<float>(tensor, [](float x) { return x; }), count, key, file);
  }
}

RandomTensor Elements(const std::string& name, std::vector<int64_t> shape, DType dtype, float mean,
                      float spread) {
  return {.out = {name, DTypeName(dtype), std::move(shape)}, .dtype = dtype, .mean = mean, .spread = spread};
}

RandomTensor Describe(const TensorSpec& spec, const ModelDescription& model) {
  const DType dtype = spec.kept_f32 ? DType::kF32 : DType::kBF16;
  if (spec.kind == TensorKind::kIds) {
    return {.out = {spec.name, "I64", spec.shape}, .content = Content::kIds, .spec = &spec};
  }
  if (spec.kind == TensorKind::kNorm) return Elements(spec.name, spec.shape, dtype, 1.0f, 0.1f);
  if (spec.kind == TensorKind::kBias) return Elements(spec.name, spec.shape, DType::kF32, 0, 0.02f);
  return Elements(spec.name, spec.shape, dtype, 0, RandomAmplitude(spec, model));
}

// Appends codes and scales. Scales differ a little from block to block unless they are powers of two.
void AppendQuantised(const TensorSpec& spec, const ModelDescription& model, const StoredFormat& stored,
                     std::vector<RandomTensor>& tensors) {
  const WeightFormat& format = spec.format;
  const RandomCodes random = stored.random(format, RandomAmplitude(spec, model));
  for (StoredTensor& out : stored.tensors(model, spec)) {
    RandomTensor tensor = {.out = std::move(out), .dtype = format.code, .spread = random.spread};
    if (tensor.out.part == StoredTensor::Part::kTensorScale) {
      tensor.out.constant.assign(reinterpret_cast<const char*>(&tensor.out.value), sizeof(float));
      tensor.content = Content::kConstant;
    } else if (tensor.out.part == StoredTensor::Part::kConstant) {
      tensor.content = Content::kConstant;
    } else if (tensor.out.part == StoredTensor::Part::kCodes) {
      if (Is4Bit(format)) tensor.content = Content::kCodes;
    } else if (format.scale == DType::kE8M0) {
      tensor.content = Content::kExponents;
      tensor.constant = static_cast<uint8_t>(127 + random.exponent);
    } else {
      tensor.dtype = format.scale;
      tensor.mean = random.scale;
      tensor.spread = random.scale / 16;
    }
    tensors.push_back(std::move(tensor));
  }
  if (stored.input_scale_name == nullptr) return;
  RandomTensor inputs = {.out = {stored.input_scale_name(spec), "F32", {}}, .content = Content::kConstant};
  inputs.out.constant.assign(reinterpret_cast<const char*>(&kRandomInputScale), sizeof(float));
  tensors.push_back(std::move(inputs));
}

std::vector<RandomTensor> ListTensors(const ModelDescription& description) {
  const FormatChoice choice(description);
  std::vector<RandomTensor> tensors;
  for (const TensorSpec& spec : description.tensors) {
    if (spec.kind == TensorKind::kUnread) continue;
    if (choice.Quantises(spec)) {
      AppendQuantised(spec, description, choice.Of(spec), tensors);
    } else {
      tensors.push_back(Describe(spec, description));
    }
  }
  return tensors;
}

absl::Status WriteConfig(const std::string& text, const ModelConfig& config,
                         const ModelDescription& description, const std::string& dir) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  json["torch_dtype"] = "bfloat16";
  SetQuantization(config, description, json);
  return WriteJsonFile(json, dir + "/config.json");
}

absl::Status WriteGenerationConfig(const ModelConfig& config, const std::string& dir) {
  Json json = {{"do_sample", false}};
  if (config.bos_token_id >= 0) json["bos_token_id"] = config.bos_token_id;
  if (!config.eos_token_ids.empty()) json["eos_token_id"] = config.eos_token_ids;
  return WriteJsonFile(json, dir + "/generation_config.json");
}

// d2t of a head: how far each token is from the head's own id.
RandomTensor Distances(const std::vector<int32_t>& token_ids) {
  std::vector<int64_t> distances;
  for (const int32_t token : token_ids) {
    distances.push_back(token - static_cast<int64_t>(distances.size()));
  }
  RandomTensor tensor = {.out = {"d2t", "I64", {static_cast<int64_t>(distances.size())}},
                         .content = Content::kConstant};
  tensor.out.constant.assign(reinterpret_cast<const char*>(distances.data()),
                             distances.size() * sizeof(int64_t));
  return tensor;
}

absl::StatusOr<WrittenCheckpoint> WriteTensors(const RandomCheckpointOptions& options,
                                               const ModelDescription& description,
                                               const std::vector<RandomTensor>& tensors,
                                               const LoadProgress& progress) {
  std::vector<StoredTensor> outputs;
  int64_t total_bytes = 0, done_bytes = 0;
  for (const RandomTensor& tensor : tensors) {
    outputs.push_back(tensor.out);
    total_bytes += tensor.out.bytes();
  }
  return WriteCheckpoint(outputs, options.out_dir, options.max_shard_bytes,
                         [&](size_t index, std::ostream& out) -> absl::Status {
                           WriteTensor(tensors[index], description, options.seed, out);
                           done_bytes += tensors[index].out.bytes();
                           if (progress) progress(done_bytes, total_bytes);
                           return absl::OkStatus();
                         });
}

}  // namespace

absl::StatusOr<WrittenCheckpoint> WriteRandomCheckpoint(const RandomCheckpointOptions& options,
                                                        const LoadProgress& progress) {
  ASSIGN_OR_RETURN(const std::string text, ReadFileText(options.config_json, 16 << 20));
  ASSIGN_OR_RETURN(const ModelConfig shape, ParseModelConfig(text, options.config_json));
  const ModelConfig config = WithProjections(shape, options.projections);
  const ModelDescription description = DescribeModel(config, config.num_nextn_predict_layers);
  RETURN_IF_ERROR(MakeOutputDir(options.out_dir, "synth"));
  RETURN_IF_ERROR(WriteConfig(text, config, description, options.out_dir));
  RETURN_IF_ERROR(WriteGenerationConfig(config, options.out_dir));
  return WriteTensors(options, description, ListTensors(description), progress);
}

absl::StatusOr<WrittenCheckpoint> WriteRandomHead(const RandomCheckpointOptions& options,
                                                  const std::string& head_json,
                                                  const LoadProgress& progress) {
  ASSIGN_OR_RETURN(const ModelConfig target, ReadModelConfig(options.config_json));
  ASSIGN_OR_RETURN(const std::string text, ReadFileText(head_json, 16 << 20));
  ASSIGN_OR_RETURN(DraftHead head, ParseEagle3Config(text, head_json, target, /*layers=*/{}));
  head.own_lm_head = !head.layer.tie_word_embeddings;
  const ModelDescription description = DescribeEagle3(head);
  RETURN_IF_ERROR(MakeOutputDir(options.out_dir, "synth"));
  RETURN_IF_ERROR(WriteJsonFile(Json::parse(text), options.out_dir + "/config.json"));
  std::vector<RandomTensor> tensors = ListTensors(description);
  const std::vector<int32_t> token_ids = RandomDraftTokens(head.draft_vocab_size, target.vocab_size);
  if (!token_ids.empty()) tensors.push_back(Distances(token_ids));
  return WriteTensors(options, description, tensors, progress);
}

}  // namespace foredraft
