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
#include "config/decode_buckets.h"
#include "engine/checkpoint/model_description.h"
#include "engine/kinds/drafter_kinds.h"
#include "engine/model/draft_head.h"
#include "engine/model/model_kind.h"
#include "kernels/gemm_tuning.h"
#include "ranks/engine_setup.h"
#include "server/cli/commands.h"
#include "server/daemon.h"

namespace foredraft {
namespace {

// Two FP8 weights are fused as FP8 only if no block spans both; otherwise the backend makes them BF16.
DType PackedAs(const WeightSpec& weight, const ModelConfig& model) {
  if (!IsF8(model.projections) || !weight.is_quantised()) return DType::kBF16;
  for (const TensorSpec* part : weight.parts().first(weight.parts().size() - 1)) {
    if (part->shape[0] % model.projections.rows != 0) return DType::kBF16;
  }
  return DType::kF8E4M3;
}

// The GEMMs of a model's forward, each shape once. Routed experts, the heads of kv_b, and weights with
// segments, which no library sums, have kernels of their own that need no tuning.
class GemmList {
 public:
  GemmList(const Config& config, const ModelConfig& model) {
    std::set<int32_t> decode, prefill;
    for (const int bucket : StepSizes(config)) {
      for (int draft_len = 0; draft_len <= MaxDraftLen(config); ++draft_len) {
        decode.insert(bucket * (draft_len + 1));
      }
    }
    const int32_t most = config.max_num_tokens;
    for (const int32_t rows : {1, 15, 16, 127, 1000, most}) prefill.insert(std::min(rows, most));
    decode_.assign(decode.begin(), decode.end());
    prefill_.assign(prefill.begin(), prefill.end());
    const ModelDescription description = DescribeModel(model, model.num_nextn_predict_layers);
    for (const WeightSpec& weight : description.weights) AddGemms(weight, model);
    const DrafterKind* const drafter = SelectedDrafter(config);
    if (drafter == nullptr || drafter->describe == nullptr) return;
    const ModelDescription of_head = drafter->describe(model);
    for (const WeightSpec& weight : of_head.weights) AddGemms(weight, model.draft_head->layer);
  }

  std::vector<GemmToTune> Take() { return std::move(gemms_); }

 private:
  void AddGemms(const WeightSpec& weight, const ModelConfig& model) {
    if (std::holds_alternative<KvBMember>(weight.member)) {
      Add(weight, {.weight = DType::kBF16, .out = DType::kBF16, .form = GemmForm::kPrefill});
    } else if (std::holds_alternative<MatrixMember>(weight.member) && weight.segments == 0) {
      const DType dtype = PackedAs(weight, model);
      Add(weight, {.weight = dtype, .out = DType::kF32, .form = GemmForm::kDecode});
      // The head, which may be the embedding, has the decode form alone.
      const TensorKind kind = weight.tensors[0]->kind;
      if (kind == TensorKind::kHead || kind == TensorKind::kEmbedding) return;
      Add(weight, {.weight = dtype, .out = DType::kF32, .form = GemmForm::kPrefill});
    }
  }

  void Add(const WeightSpec& weight, GemmShape shape) {
    shape.n = weight.rows();
    shape.k = weight.columns();
    if (!seen_.insert(shape).second) return;
    const bool decode = shape.form == GemmForm::kDecode;
    gemms_.push_back({weight.name + (decode ? ", decode" : ", prefill"), shape, decode ? decode_ : prefill_});
  }

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
  printf("%s: searched algorithms for %d GEMMs; set cublaslt.tuning_file to this file\n", out.c_str(),
         static_cast<int>(gemms.size()));
  return absl::OkStatus();
}

}  // namespace

void AddTune(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "tune",
      "Find the fastest GEMM algorithms that compute rows independently, for cublaslt.tuning_file (cuda)");
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
