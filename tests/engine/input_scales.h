#pragma once

// Scales of inputs in a checkpoint with NVFP4 weights, written as a test needs them.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "base/check.h"
#include "nlohmann/json.hpp"

namespace foredraft {

// "model.layers.1.mlp.experts.5.up_proj." of its tensors.
using InputScaleOf = std::function<float(const std::string& module)>;

// Copies a checkpoint of one file to `to`, and gives every module in modelopt's NVFP4 a scale of its inputs.
inline void CopyWithInputScales(const std::string& from, const std::string& to, const InputScaleOf& scale) {
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to);
  const std::string path = to + "/model.safetensors";
  std::stringstream read;
  read << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = read.str();
  uint64_t header_bytes = 0;
  CHECK_GT(bytes.size(), sizeof(header_bytes)) << path;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  nlohmann::json header = nlohmann::json::parse(bytes.substr(sizeof(header_bytes), header_bytes));
  std::string data = bytes.substr(sizeof(header_bytes) + header_bytes);
  const nlohmann::json tensors = header;
  const std::string ending = "weight_scale_2";
  for (const auto& [name, tensor] : tensors.items()) {
    if (!name.ends_with(ending)) continue;
    const std::string module = name.substr(0, name.size() - ending.size());
    nlohmann::json& entry = header[module + "input_scale"];
    if (entry.is_null()) {
      entry = {{"dtype", "F32"},
               {"shape", nlohmann::json::array()},
               {"data_offsets", {data.size(), data.size() + sizeof(float)}}};
      data.resize(data.size() + sizeof(float));
    }
    const float value = scale(module);
    std::memcpy(&data[entry["data_offsets"][0].get<size_t>()], &value, sizeof(value));
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t text_bytes = text.size();
  std::ofstream(path, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&text_bytes), sizeof(text_bytes)) << text << data;
}

// The same for all experts of a layer; another one for `up` than for `gate`, of which the larger counts.
inline float AlikeInputScale(const std::string& module) {
  if (module.find("down") != std::string::npos) return 0.0011f;
  return module.find("up") != std::string::npos ? 0.0031f : 0.0047f;
}
// Another one for every expert.
inline float OwnInputScale(const std::string& module) {
  const size_t at = module.find(".experts.");
  const int expert = at == std::string::npos ? 0 : std::stoi(module.substr(at + 9));
  return AlikeInputScale(module) * (1 + 0.37f * static_cast<float>(expert % 5));
}

}  // namespace foredraft
