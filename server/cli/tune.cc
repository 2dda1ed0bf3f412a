#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/config_defaults.h"
#include "kernels/gemm_tuning.h"
#include "server/cli/commands.h"
#include "server/daemon.h"
#include "server/group/engine_setup.h"

namespace foredraft {
namespace {

// The GEMMs of a model's forward, as engine/weights fuses them. Experts and heads are not among them: those
// have kernels of their own.
class GemmList {
 public:
  GemmList(const Config& config, const ModelConfig& model) : fp8_(model.fp8_blocks) {
    std::set<int32_t> decode, prefill;
    for (const int bucket : DecodeBuckets(config)) {
      for (int draft_len = 0; draft_len <= MaxDraftLen(config); ++draft_len)
        decode.insert(bucket * (draft_len + 1));
    }
    const int32_t most = config.max_num_tokens;
    for (const int32_t rows : {1, 15, 16, 127, 1000, most}) prefill.insert(std::min(rows, most));
    decode_.assign(decode.begin(), decode.end());
    prefill_.assign(prefill.begin(), prefill.end());
    AddLayers(model);
  }

  std::vector<GemmToTune> Take() { return std::move(gemms_); }

 private:
  void AddLayers(const ModelConfig& m) {
    const int q_width = m.num_attention_heads * m.qk_head_dim();
    const int ckv_width = m.kv_lora_rank + m.qk_rope_head_dim;
    const int first = m.q_lora_rank > 0 ? m.q_lora_rank : q_width;
    AddBoth("qkv_a", first + ckv_width, m.hidden_size, KeepsBlocks(first));
    if (m.q_lora_rank > 0) AddBoth("q_b", q_width, m.q_lora_rank, fp8_);
    Add("kv_b", {m.num_attention_heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank, DType::kBF16,
                 DType::kBF16, GemmForm::kPrefill});
    AddBoth("o_proj", m.hidden_size, m.num_attention_heads * m.v_head_dim, fp8_);
    bool dense = false, experts = false;
    for (int layer = 0; layer < m.num_hidden_layers + m.num_nextn_predict_layers; ++layer) {
      (m.IsMoe(layer) ? experts : dense) = true;
    }
    if (dense) AddMlp("mlp", m.hidden_size, m.intermediate_size);
    if (experts) AddBoth("router", m.n_routed_experts, m.hidden_size, false);
    if (experts && m.n_shared_experts > 0) {
      AddMlp("shared", m.hidden_size, m.n_shared_experts * m.moe_intermediate_size);
    }
    if (m.num_nextn_predict_layers > 0) AddBoth("eh_proj", m.hidden_size, 2 * m.hidden_size, false);
    Add("lm_head", {m.vocab_size, m.hidden_size, DType::kBF16, DType::kF32, GemmForm::kDecode});
  }

  void AddMlp(const std::string& name, int hidden, int width) {
    AddBoth(name + ".gate_up", 2 * width, hidden, KeepsBlocks(width));
    AddBoth(name + ".down", hidden, width, fp8_);
  }

  void AddBoth(const std::string& name, int n, int k, bool fp8) {
    const DType weight = fp8 ? DType::kF8E4M3 : DType::kBF16;
    Add(name, {n, k, weight, DType::kF32, GemmForm::kDecode});
    Add(name, {n, k, weight, DType::kF32, GemmForm::kPrefill});
  }

  void Add(const std::string& name, const GemmShape& shape) {
    if (!seen_.insert(shape).second) return;
    const bool decode = shape.form == GemmForm::kDecode;
    gemms_.push_back({name + (decode ? ", decode" : ", prefill"), shape, decode ? decode_ : prefill_});
  }

  // Two FP8 weights stacked where the upper one has `rows`: they stay FP8 only if no block spans both.
  bool KeepsBlocks(int rows) const { return fp8_ && rows % 128 == 0; }

  const bool fp8_;
  std::vector<int32_t> decode_, prefill_;  // numbers of rows
  std::set<GemmShape> seen_;
  std::vector<GemmToTune> gemms_;
};

absl::Status Tune(const ConfigOptions& options, const std::string& out) {
  ASSIGN_OR_RETURN(LoadedConfig loaded, options.Read());
  ASSIGN_OR_RETURN(const ResolvedConfig resolved, ResolveConfig(std::move(loaded)));
  const Config& config = resolved.loaded.config;
  const std::vector<GemmToTune> gemms = GemmList(config, resolved.model).Take();
  ASSIGN_OR_RETURN(const std::string text,
                   TuneGemms(NameOf(config.backend), gemms,
                             [](const std::string& line) { fprintf(stderr, "%s\n", line.c_str()); }));
  std::ofstream file(out, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) return absl::UnavailableError(absl::StrCat("--out: ", out, ": cannot be written"));
  printf("%s: %d GEMMs looked at; cublaslt.tuning_file takes it\n", out.c_str(),
         static_cast<int>(gemms.size()));
  return absl::OkStatus();
}

}  // namespace

void AddTune(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "tune", "Find the fastest GEMM algorithms that keep rows, for cublaslt.tuning_file (cuda)");
  auto options = std::make_shared<ConfigOptions>();
  options->Add(*command);
  auto out = std::make_shared<std::string>();
  command->add_option("--out", *out, "File to write")->required()->type_name("FILE");
  command->callback([options, out, exit_code] {
    const absl::Status status = Tune(*options, *out);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
