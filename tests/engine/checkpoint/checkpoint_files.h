#pragma once

// Checkpoints that tests write: well-formed safetensors files from a list of tensors, and raw bytes for
// invalid files.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/model_config.h"

namespace foredraft {

struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A fresh empty directory under the test's temporary directory.
std::string MakeTestDir(const std::string& name);

void WriteFile(const std::string& path, const std::string& bytes);

// Header length, header and data, unchanged and unchecked.
std::string SafetensorsBytes(const std::string& header, const std::string& data);

void WriteSafetensors(const std::string& path, const std::vector<RawTensor>& tensors);

// A small model with everything: q_lora, a dense layer, experts in groups, a shared expert, two MTP modules.
ModelConfig TinyConfig();

// All tensors of `config` in F32, element i of tensor t having the value t + i / 1024: exact, and unlike any
// other.
std::vector<RawTensor> TensorsFor(const ModelConfig& config);
float TestValue(size_t tensor_index, int64_t element_index);

// A fault in the tensors of a checkpoint, and what its refusal says after the tensor's module.
struct BrokenTensors {
  const char* name;
  std::function<void(std::vector<RawTensor>&)> breaks;
  const char* error;
};

// Breaks `tensors`, which are whole, in one way after the other. `load` has to refuse them with
// INVALID_ARGUMENT and one line that names file, tensor and reason.
void ExpectRefused(std::span<const BrokenTensors> cases, std::vector<RawTensor>& tensors,
                   const std::function<absl::Status()>& load);

// The tensor of this name; fails the test if there is none.
RawTensor& Named(std::vector<RawTensor>& tensors, const std::string& name);

}  // namespace foredraft
