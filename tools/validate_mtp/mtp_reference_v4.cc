// The MTP module of DeepSeek-V4 (docs/deepseek-v4.md sections 2.1, 3, 5 and 6).

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "tools/validate_mtp/mtp_reference.h"
#include "tools/validate_mtp/v4_layer_reference.h"

namespace foredraft::reference {
namespace {

constexpr char kModule[] = "mtp.0";

class V4Reference : public MtpReference {
 public:
  V4Reference(const Weights& weights, const ModelConfig& config)
      : MtpReference(weights, config), layer_(weights, config, kModule) {}

  Vector Project(const MtpRow& row) const override {
    const int width = config_.hidden_size;
    Vector embedded(width);  // counts as zero at position 1
    if (row.position > 1) {
      const std::span<const double> stored = weights_.Matrix("embed").row(row.token);
      embedded.assign(stored.begin(), stored.end());
    }
    const Vector e = Linear(Name("e_proj"), Norm(embedded, Name("enorm")));
    Vector streams;
    for (int i = 0; i < config_.hc_mult; ++i) {
      const Vector u = Linear(Name("h_proj"), Norm(StreamOf(row.previous, i, width), Name("hnorm")));
      for (int c = 0; c < width; ++c) streams.push_back(u[c] + e[c]);
    }
    return streams;
  }

  Vector Layer(const MtpRow& row, const Vector& projected) override {
    const HyperMix entered = layer_.Enter(projected);
    std::map<int, Vector>& keys = keys_[row.sequence];
    keys[row.position] = layer_.Key(entered.x, row.position);
    std::vector<std::span<const double>> attended;
    for (int at = std::max(1, row.position - V4ShapeOf(config_).sliding_window + 1); at <= row.position;
         ++at) {
      attended.push_back(keys.at(at));
    }
    const Vector output = layer_.Output(projected, entered, row.position, attended);
    NoteChoice(layer_.choice());
    return output;
  }

  Vector Output(const Vector& layer_output) const override { return layer_output; }
  Vector Logits(const Vector& output) const override { return layer_.Logits(output); }

 private:
  static std::string Name(const std::string& name) { return absl::StrCat(kModule, ".", name); }

  V4LayerReference layer_;
  std::map<int, std::map<int, Vector>> keys_;  // by sequence and position
};

}  // namespace

std::unique_ptr<MtpReference> CreateV4Reference(const Weights& weights, const ModelConfig& config) {
  return std::make_unique<V4Reference>(weights, config);
}

}  // namespace foredraft::reference
