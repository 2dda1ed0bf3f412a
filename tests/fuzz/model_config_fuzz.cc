// Any bytes as config.json, of a model or of a draft head, and generation_config.json: refused with one line,
// or a shape whose derived values are finite and positive.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/draft_head.h"
#include "engine/model/generation_config.h"
#include "engine/model/model_config.h"
#include "engine/spec/eagle3/eagle3_config.h"

namespace foredraft {
namespace {

void CheckOneLine(const absl::Status& status) {
  CHECK(std::string(status.message()).find('\n') == std::string::npos) << status;
}

void CheckRope(const ModelConfig& config, double theta, const std::optional<RopeScaling>& scaling) {
  CHECK(std::isfinite(RopeMscale(scaling)) && RopeMscale(scaling) > 0);
  for (const double frequency : RopeFrequencies(config.qk_rope_head_dim, theta, scaling))
    CHECK(std::isfinite(frequency) && frequency >= 0);
}

void CheckShape(const ModelConfig& config) {
  const double scale =
      AttentionScale(FindV4Shape(config) != nullptr ? V4ShapeOf(config).head_dim : config.qk_head_dim(),
                     config.rope_scaling);
  CHECK(std::isfinite(scale) && scale > 0);
  CheckRope(config, config.rope_theta, config.rope_scaling);
  if (FindV4Shape(config) != nullptr) {
    CHECK_EQ(V4ShapeOf(config).layers.size(), static_cast<size_t>(config.num_hidden_layers));
    CHECK_EQ(V4ShapeOf(config).hash_layers.size(), static_cast<size_t>(config.num_hidden_layers));
    CheckRope(config, V4ShapeOf(config).compress_rope_theta, V4ShapeOf(config).compress_rope_scaling);
  }
  if (config.n_routed_experts > 0) {
    CHECK_EQ(config.n_routed_experts % config.n_group, 0);
    CHECK_LE(config.num_experts_per_tok, config.n_routed_experts / config.n_group * config.topk_group);
  }
  for (const int id : config.eos_token_ids) CHECK(id >= 0 && id < config.vocab_size);
}

void CheckHead(std::string_view text) {
  ModelConfig target;
  target.hidden_size = 128;
  target.vocab_size = 640;
  target.num_hidden_layers = 8;
  const absl::StatusOr<DraftHead> head = ParseEagle3Config(text, "fuzz.json", target, /*layers=*/{});
  if (!head.ok()) return CheckOneLine(head.status());
  CheckRope(head->layer, head->layer.rope_theta, head->layer.rope_scaling);
  CHECK(!head->taps.empty() && head->taps.front() >= 0 && head->taps.back() < target.num_hidden_layers);
  CHECK(head->draft_vocab_size >= 1 && head->draft_vocab_size <= target.vocab_size);
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = foredraft::ParseModelConfig(text, "fuzz.json");
  if (config.ok())
    foredraft::CheckShape(*config);
  else
    foredraft::CheckOneLine(config.status());
  foredraft::CheckHead(text);
  foredraft::CheckOneLine(foredraft::ParseGenerationConfig(text, "fuzz.json").status());
  return 0;
}
