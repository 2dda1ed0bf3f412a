// Any bytes as config.json and generation_config.json: refused with one line, or a shape whose derived values
// are finite and positive.

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "engine/model/model_config.h"

namespace foredraft {
namespace {

void CheckOneLine(const absl::Status& status) {
  CHECK(std::string(status.message()).find('\n') == std::string::npos) << status;
}

void CheckShape(const ModelConfig& config) {
  CHECK(std::isfinite(config.AttentionScale()) && config.AttentionScale() > 0);
  CHECK(std::isfinite(config.RopeMscale()) && config.RopeMscale() > 0);
  for (const double frequency : config.RopeInverseFrequencies())
    CHECK(std::isfinite(frequency) && frequency >= 0);
  if (config.v4) {
    CHECK_EQ(config.v4->layers.size(), static_cast<size_t>(config.num_hidden_layers));
    CHECK_EQ(config.v4->hash_layers.size(), static_cast<size_t>(config.num_hidden_layers));
    for (const double frequency : config.CompressRopeInverseFrequencies())
      CHECK(std::isfinite(frequency) && frequency >= 0);
  }
  if (config.n_routed_experts > 0) {
    CHECK_EQ(config.n_routed_experts % config.n_group, 0);
    CHECK_LE(config.num_experts_per_tok, config.n_routed_experts / config.n_group * config.topk_group);
  }
  for (const int id : config.eos_token_ids) CHECK(id >= 0 && id < config.vocab_size);
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
  foredraft::CheckOneLine(foredraft::ParseGenerationConfig(text, "fuzz.json").status());
  return 0;
}
