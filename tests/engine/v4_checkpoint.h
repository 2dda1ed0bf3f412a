#ifndef FOREDRAFT_TESTS_ENGINE_V4_CHECKPOINT_H_
#define FOREDRAFT_TESTS_ENGINE_V4_CHECKPOINT_H_

// The weights of a DeepSeek-V4 checkpoint on a device, for tests of the recipes. Projections keep their
// format (BF16, FP8 blocks, FP4 groups); other tensors are as docs/deepseek-v4.md section 7 says. A tensor
// that is missing or malformed fails a CHECK.

#include <map>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/deepseek_v4_weights.h"
#include "kernels/device.h"

namespace foredraft {

class V4CheckpointReader {
 public:
  // `dir`: from the root of the repository.
  V4CheckpointReader(Device& device, const ModelConfig& config, const std::string& dir);

  V4Weights Read();

 private:
  // A projection with its scales, in host memory until the reader ends.
  HostWeight Part(const std::string& module);
  // Its rows [first, first + count) in BF16, because blocks of 128 rows may span groups.
  HostWeight Group(const std::string& module, int first, int count);
  std::vector<float> Floats(const std::string& name);

  PackedWeight Linear(const std::vector<std::string>& modules);
  const float* Vector(const std::string& name);
  HyperWeights Hyper(const std::string& name);
  CompressorWeights Compressor(const std::string& name);
  V4AttentionWeights Attention(const std::string& name, AttentionKind kind);
  V4MoeWeights Experts(const std::string& name, bool is_hash);
  V4LayerWeights Layer(const std::string& name, AttentionKind kind, bool is_hash);

  template <class T>
  const T* Upload(const std::vector<T>& values);
  const TensorEntry& Entry(const std::string& name) const;
  const std::string& Bytes(const std::string& name);

  Device& device_;
  const ModelConfig& config_;
  Checkpoint checkpoint_;
  std::map<std::string, std::string> bytes_;              // by tensor
  std::map<std::string, std::vector<float>> fp8_scales_;  // by tensor
  std::map<std::string, std::vector<bf16>> fp4_scales_;
  std::map<std::string, std::vector<bf16>> wide_;  // by module: BF16 values
};

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_ENGINE_V4_CHECKPOINT_H_
