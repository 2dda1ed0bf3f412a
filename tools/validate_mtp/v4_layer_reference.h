#pragma once

// A DeepSeek-V4 layer of ratio 0 in double (docs/deepseek-v4.md sections 2.1, 3 and 5): an MTP module's
// layer, or a DSpark stage. The caller chooses the keys that a row attends. One thread.

#include <string>
#include <vector>

#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "tools/validate_mtp/reference_parts.h"

namespace foredraft::reference {

// The results of hyper_pre (docs/deepseek-v4.md section 2.1).
struct HyperMix {
  Vector x;     // [D]
  Vector post;  // [N]
  Vector comb;  // [N, N]
};

class V4LayerReference : private ReferenceParts {
 public:
  // module: the beginning of its tensors' names, such as "mtp.0". The weights and the configuration outlive
  // this object.
  V4LayerReference(const Weights& weights, const ModelConfig& config, std::string module);

  // hyper_pre before attention, of streams [N D]. The result's x is the normed input of attention.
  HyperMix Enter(const Vector& streams) const;
  // The key of a row whose input to attention is `x`.
  Vector Key(const Vector& x, int position) const;
  // The layer's output [N D] for a row that attends `keys`. entered: Enter(streams).
  Vector Output(const Vector& streams, const HyperMix& entered, int position,
                const std::vector<std::span<const double>>& keys);
  // The experts that the last Output chose.
  const ExpertChoice& choice() const { return choice_; }

  // The logits, [V], of streams, by the module's own hc_head and norm. Only for modules that have them.
  Vector Logits(const Vector& streams) const;

 private:
  std::string Name(const std::string& name) const { return module_ + "." + name; }
  Vector Mix(const Vector& streams, const std::string& name) const;
  Vector Collapse(const Vector& streams, const Vector& pre) const;
  HyperMix Pre(const Vector& streams, const std::string& name) const;
  void DivideBySums(Vector& comb, bool over_rows) const;
  Vector Post(const Vector& y, const Vector& streams, const HyperMix& mix) const;
  Vector Rotated(Vector head, int position, double sign) const;
  Vector Attention(const Vector& x, int position, const std::vector<std::span<const double>>& keys) const;
  Vector Grouped(const Vector& heads) const;
  Vector Experts(const Vector& x);
  Vector Expert(const std::string& name, const Vector& x) const;

  const std::string module_;
  const DeepseekV4Shape& shape_;
  const int count_;  // of streams, N
  const int width_;  // D
  const Vector frequencies_;
  ExpertChoice choice_;
};

// Stream i of [N D].
inline std::span<const double> StreamOf(const Vector& streams, int i, int width) {
  return {streams.data() + static_cast<size_t>(i) * width, static_cast<size_t>(width)};
}

}  // namespace foredraft::reference
