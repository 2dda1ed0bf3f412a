#include "tests/engine/v4_checkpoint.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {

V4CheckpointReader::V4CheckpointReader(Device& device, const ModelConfig& config, const std::string& dir)
    : device_(device), config_(config) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir);
  CHECK(checkpoint.ok()) << checkpoint.status();
  checkpoint_ = *std::move(checkpoint);
}

const TensorEntry& V4CheckpointReader::Entry(const std::string& name) const {
  const TensorLocation found = checkpoint_.Find(name);
  CHECK(found.entry != nullptr) << name;
  return *found.entry;
}

const std::string& V4CheckpointReader::Bytes(const std::string& name) {
  std::string& bytes = bytes_[name];
  if (bytes.empty()) {
    const TensorLocation found = checkpoint_.Find(name);
    CHECK(found.entry != nullptr) << name;
    bytes.resize(found.entry->bytes);
    const absl::Status status = found.file->Read(*found.entry, 0, found.entry->bytes, bytes.data());
    CHECK(status.ok()) << status;
  }
  return bytes;
}

template <class T>
const T* V4CheckpointReader::Upload(const std::vector<T>& values) {
  T* const memory = *device_.AllocateArray<T>(values.size());
  const auto stream = device_.CreateStream();
  device_.CopyToDevice(*stream, memory, values.data(), values.size() * sizeof(T));
  stream->Synchronize();
  return memory;
}

std::vector<float> V4CheckpointReader::Floats(const std::string& name) {
  const std::string& bytes = Bytes(name);
  if (Entry(name).dtype == "F32") {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  CHECK_EQ(Entry(name).dtype, "BF16");
  std::vector<float> values(bytes.size() / sizeof(bf16));
  const bf16* const elements = reinterpret_cast<const bf16*>(bytes.data());
  for (size_t i = 0; i < values.size(); ++i) values[i] = ToFloat(elements[i]);
  return values;
}

const float* V4CheckpointReader::Vector(const std::string& name) { return Upload(Floats(name)); }

HostWeight V4CheckpointReader::Part(const std::string& module) {
  const std::string name = module + ".weight", scale = module + ".scale";
  const TensorEntry& entry = Entry(name);
  const int stored = static_cast<int>(entry.shape[1]);
  HostWeight part{.n = static_cast<int32_t>(entry.shape[0]),
                  .k = entry.dtype == "I8" ? 2 * stored : stored,
                  .data = Bytes(name).data()};
  const auto power = [](char byte) { return std::ldexp(1.0f, static_cast<uint8_t>(byte) - 127); };
  if (entry.dtype == "I8") {
    std::vector<bf16>& scales = fp4_scales_[name];
    if (scales.empty()) {
      for (const char byte : Bytes(scale)) scales.push_back(ToBf16(power(byte)));
    }
    part.dtype = DType::kF4E2M1;
    part.group = 32;
    part.group_scales = scales.data();
  } else if (entry.dtype == "F8_E4M3") {
    std::vector<float>& scales = fp8_scales_[name];
    if (scales.empty()) {
      for (const char byte : Bytes(scale)) scales.push_back(power(byte));
    }
    part.dtype = DType::kF8E4M3;
    part.scale_inv = scales.data();
  } else {
    CHECK(entry.dtype == "BF16" || entry.dtype == "F32") << name << ": " << entry.dtype;
    part.dtype = entry.dtype == "BF16" ? DType::kBF16 : DType::kF32;
  }
  return part;
}

HostWeight V4CheckpointReader::Group(const std::string& module, int first, int count) {
  const HostWeight whole = Part(module);
  std::vector<bf16>& values = wide_[module];
  const int64_t blocks = (whole.k + 127) / 128;
  for (int64_t i = values.size(); i < int64_t{whole.n} * whole.k; ++i) {
    float value = 0;
    if (whole.dtype == DType::kF8E4M3) {
      value = F8E4M3ToFloat(static_cast<const uint8_t*>(whole.data)[i]) *
              whole.scale_inv[i / whole.k / 128 * blocks + i % whole.k / 128];
    } else if (whole.dtype == DType::kBF16) {
      value = ToFloat(static_cast<const bf16*>(whole.data)[i]);
    } else {
      value = static_cast<const float*>(whole.data)[i];
    }
    values.push_back(ToBf16(value));
  }
  return {.dtype = DType::kBF16, .n = count, .k = whole.k, .data = values.data() + int64_t{first} * whole.k};
}

PackedWeight V4CheckpointReader::Linear(const std::vector<std::string>& modules) {
  std::vector<HostWeight> parts;
  for (const std::string& module : modules) parts.push_back(Part(module));
  const absl::StatusOr<PackedWeight> packed = device_.PackWeight(parts);
  CHECK(packed.ok()) << modules[0] << ": " << packed.status();
  return *packed;
}

HyperWeights V4CheckpointReader::Hyper(const std::string& name) {
  return {.fn = Vector(name + "_fn"), .scale = Vector(name + "_scale"), .base = Vector(name + "_base")};
}

CompressorWeights V4CheckpointReader::Compressor(const std::string& name) {
  return {.wkv = Linear({name + ".wkv"}),
          .wgate = Linear({name + ".wgate"}),
          .ape = Vector(name + ".ape"),
          .norm = Vector(name + ".norm.weight")};
}

V4AttentionWeights V4CheckpointReader::Attention(const std::string& name, AttentionKind kind) {
  const int groups = config_.v4->o_groups, outputs = config_.v4->o_lora_rank;
  const absl::StatusOr<PackedWeights> wo_a = device_.PackWeights(groups, [&](int group) {
    return absl::StatusOr<std::vector<HostWeight>>({Group(name + ".wo_a", group * outputs, outputs)});
  });
  CHECK(wo_a.ok()) << wo_a.status();
  V4AttentionWeights w = {.wq_a = Linear({name + ".wq_a"}),
                          .q_norm = Vector(name + ".q_norm.weight"),
                          .wq_b = Linear({name + ".wq_b"}),
                          .wkv = Linear({name + ".wkv"}),
                          .kv_norm = Vector(name + ".kv_norm.weight"),
                          .wo_a = *wo_a,
                          .wo_b = Linear({name + ".wo_b"}),
                          .attn_sink = Vector(name + ".attn_sink")};
  if (kind != AttentionKind::kWindow) w.compressor = Compressor(name + ".compressor");
  if (kind == AttentionKind::kCompressedSparse) {
    w.indexer = {.wq_b = Linear({name + ".indexer.wq_b"}),
                 .weights_proj = Linear({name + ".indexer.weights_proj"}),
                 .compressor = Compressor(name + ".indexer.compressor")};
  }
  return w;
}

V4MoeWeights V4CheckpointReader::Experts(const std::string& name, bool is_hash) {
  V4MoeWeights w = {.router = Linear({name + ".gate"})};
  if (is_hash) {
    std::vector<int32_t> ids;
    const std::string& bytes = Bytes(name + ".gate.tid2eid");
    for (size_t i = 0; i < bytes.size(); i += sizeof(int64_t)) {
      int64_t id = 0;
      std::memcpy(&id, &bytes[i], sizeof(id));
      ids.push_back(static_cast<int32_t>(id));
    }
    w.tid2eid = Upload(ids);
  } else {
    w.bias = Vector(name + ".gate.bias");
  }
  const auto pack = [&](const std::vector<std::string>& parts) {
    const absl::StatusOr<PackedWeights> packed =
        device_.PackWeights(config_.n_routed_experts, [&](int expert) {
          std::vector<HostWeight> weights;
          for (const std::string& part : parts)
            weights.push_back(Part(absl::StrCat(name, ".experts.", expert, part)));
          return absl::StatusOr<std::vector<HostWeight>>(weights);
        });
    CHECK(packed.ok()) << packed.status();
    return *packed;
  };
  w.expert_gate_up = pack({".w1", ".w3"});
  w.expert_down = pack({".w2"});
  w.shared.gate_up = Linear({name + ".shared_experts.w1", name + ".shared_experts.w3"});
  w.shared.down = Linear({name + ".shared_experts.w2"});
  return w;
}

V4LayerWeights V4CheckpointReader::Layer(const std::string& name, AttentionKind kind, bool is_hash) {
  return {.hc_attn = Hyper(name + ".hc_attn"),
          .hc_ffn = Hyper(name + ".hc_ffn"),
          .attn_norm = Vector(name + ".attn_norm.weight"),
          .ffn_norm = Vector(name + ".ffn_norm.weight"),
          .attn = Attention(name + ".attn", kind),
          .ffn = Experts(name + ".ffn", is_hash)};
}

V4Weights V4CheckpointReader::Read() {
  V4Weights w;
  std::vector<bf16> embed;
  for (const float value : Floats("embed.weight")) embed.push_back(ToBf16(value));
  w.embed = Upload(embed);
  for (int i = 0; i < config_.num_hidden_layers; ++i) {
    w.layers.push_back(Layer(absl::StrCat("layers.", i), config_.v4->Kind(i), config_.v4->IsHash(i)));
  }
  w.hc_head = Hyper("hc_head");
  w.norm = Vector("norm.weight");
  w.head = Linear({"head"});
  for (int i = 0; i < config_.num_nextn_predict_layers; ++i) {
    const std::string name = absl::StrCat("mtp.", i);
    w.modules.push_back({.enorm = Vector(name + ".enorm.weight"),
                         .hnorm = Vector(name + ".hnorm.weight"),
                         .e_proj = Linear({name + ".e_proj"}),
                         .h_proj = Linear({name + ".h_proj"}),
                         .layer = Layer(name, AttentionKind::kWindow, false),
                         .hc_head = Hyper(name + ".hc_head"),
                         .norm = Vector(name + ".norm.weight")});
  }
  return w;
}

}  // namespace foredraft
