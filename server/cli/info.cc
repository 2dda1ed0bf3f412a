#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/grouped_digits.h"
#include "base/status_macros.h"
#include "engine/cache/cache_groups.h"
#include "engine/checkpoint/checkpoint_check.h"
#include "engine/checkpoint/dummy_weights.h"
#include "engine/kinds/checkpoint_summary.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/draft_head.h"
#include "engine/model/model_kind.h"
#include "engine/spec/eagle3/eagle3_description.h"
#include "engine/spec/eagle3/eagle3_drafter.h"
#include "kernels/cpu/device/topology.h"
#include "server/cli/commands.h"
#include "server/request_setup.h"

namespace foredraft {
namespace {

void Row(const char* name, const std::string& value) { printf("%-20s %s\n", name, value.c_str()); }

std::string FormatOf(const ModelConfig& model) {
  std::string name = absl::AsciiStrToUpper(NameOf(model.projections));
  if (model.experts)
    absl::StrAppend(&name, " with ", absl::AsciiStrToUpper(NameOf(*model.experts)), " experts");
  return name;
}

// `path` is a checkpoint directory, or a config.json whose weights load_format dummy would make.
absl::StatusOr<CheckpointSummary> Summarize(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return SummarizeCheckpoint(path);
  ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(path));
  return SummarizeConfig(model);
}

// Checks what `serve` checks of a checkpoint directory and the summary has not checked, except the values of
// its weights.
absl::Status CheckServable(const std::string& dir, const ModelConfig& model) {
  Config config;
  config.model = dir;
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(config, model));
  RETURN_IF_ERROR(CheckThinkingIds(TokenizerThinkingIds(*tokenizer)));
  return LoadGenerationConfig(config).status();
}

// "DSpark in 3 stages, 10,860,000,000 bytes, loaded where it drafts".
std::string DrafterText(const CheckpointSummary& summary) {
  const int stages = summary.config.num_nextn_predict_layers;
  std::string text = summary.config.drafter;
  absl::StrAppend(&text,
                  stages > 0 ? absl::StrCat(" in ", stages, " stages") : ", of which stages are missing");
  if (summary.drafter_bytes > 0) {
    absl::StrAppend(&text, ", ", Grouped(summary.drafter_bytes), " bytes, loaded where it drafts");
  }
  return text;
}

std::string Layers(const std::vector<int>& layers) { return absl::StrJoin(layers, ", "); }

// Shows an Eagle3 head that is to draft for `model`.
absl::Status ShowHead(const std::string& dir, ModelConfig model) {
  if (model.kv_lora_rank == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--head: ", model.architecture, " gives a head no hidden states of its layers"));
  }
  std::error_code error;
  Config config;
  config.load_format = std::filesystem::is_regular_file(dir, error) ? LoadFormat::kDummy : LoadFormat::kAuto;
  config.speculative_config.emplace().speculative_model = dir;
  RETURN_IF_ERROR(kEagle3.read(config, model));
  const DraftHead& head = *model.draft_head;
  const ModelDescription description = kEagle3.describe(model);
  if (config.load_format == LoadFormat::kAuto) {
    ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenEagle3(dir));
    RETURN_IF_ERROR(CheckTensors(checkpoint, description));
  }
  int64_t parameters = 0;
  for (const TensorSpec& tensor : description.tensors) {
    if (tensor.kind != TensorKind::kUnread) parameters += tensor.element_count();
  }
  ModelConfig without = model;
  without.draft_head = nullptr;
  const auto cache_bytes = [](const ModelConfig& config, KvFormat format) {
    return HistoryBytesPerToken(CacheGroupsOf(config, 0, /*tokens_per_block=*/32, format));
  };
  Row("head",
      absl::StrCat(head.layer.architecture, ", Eagle3 with MLA, ", head.layer.num_attention_heads, " heads"));
  Row("  reads",
      absl::StrCat("the outputs of layers ", Layers(head.taps), head.assumed_taps ? ", assumed" : "",
                   head.fc_norm          ? ", each normed"
                   : head.norm_before_fc ? ", normed together"
                                         : ""));
  Row("  recycles", head.norm_output ? "normed" : "un-normed");
  Row("  chooses", absl::StrCat("among ", Grouped(head.draft_vocab_size), " tokens, by ",
                                head.own_lm_head ? "its own head" : "the target's head"));
  Row("  parameters", absl::StrCat(Grouped(parameters), ", ", Grouped(DummyBytes(description)), " bytes"));
  Row("  KV bytes per token",
      absl::StrCat(Grouped(cache_bytes(model, {}) - cache_bytes(without, {})), ", in fp8 ",
                   Grouped(cache_bytes(model, DType::kF8E4M3) - cache_bytes(without, DType::kF8E4M3))));
  return absl::OkStatus();
}

absl::Status ShowInfo(const std::string& path, const std::string& head_dir) {
  ASSIGN_OR_RETURN(const CheckpointSummary summary, Summarize(path));
  const ModelConfig& model = summary.config;
  std::string dtypes;
  for (const auto& [dtype, bytes] : summary.dtype_bytes) {
    absl::StrAppend(&dtypes, ", ", dtype, " ", Grouped(bytes));
  }
  Row("architecture", model.architecture);
  Row("layers", absl::StrCat(model.num_hidden_layers, ", hidden ", Grouped(model.hidden_size),
                             ", vocabulary ", Grouped(model.vocab_size), ", experts ", model.n_routed_experts,
                             " (", model.num_experts_per_tok, " per token)"));
  Row("parameters", absl::StrCat(Grouped(summary.parameters), ", active ", Grouped(summary.active_parameters),
                                 ", MTP modules ", Grouped(summary.mtp_parameters)));
  Row("bytes",
      summary.tensor_count == 0
          ? absl::StrCat(Grouped(summary.bytes), " as a checkpoint of ", FormatOf(model))
          : absl::StrCat(Grouped(summary.bytes), " in ", Grouped(summary.tensor_count), " tensors", dtypes));
  if (summary.unread_bytes > 0) {
    Row("vision", absl::StrCat(Grouped(summary.unread_bytes), " bytes, not read: texts alone are served"));
  }
  if (summary.cache_scale_count > 0) {
    Row("k and v scales",
        absl::StrCat(
            Grouped(summary.cache_scale_count),
            ", passed over: kv_cache_config.dtype alone decides, and FP8 rows have scales of their own"));
  }
  if (summary.input_scale_count > 0) {
    Row("input scales", absl::StrCat(Grouped(summary.input_scale_count),
                                     ": those of routed experts are used with moe.inputs: nvfp4"));
  }
  if (model.drafter.empty()) {
    Row("MTP modules", absl::StrCat(model.num_nextn_predict_layers));
  } else {
    Row("drafter", DrafterText(summary));
  }
  Row("KV bytes per token",
      absl::StrCat(Grouped(summary.kv_bytes_per_token), ", and ",
                   Grouped(summary.kv_bytes_per_token_of_module), " per MTP module that runs"));
  if (summary.fp8_kv_bytes_per_token > 0) {
    Row("  in fp8",
        absl::StrCat(Grouped(summary.fp8_kv_bytes_per_token), ", and ",
                     Grouped(summary.fp8_kv_bytes_per_token_of_module), " per MTP module that runs"));
  }
  if (summary.window_bytes_per_sequence > 0) {
    Row("window bytes", absl::StrCat(Grouped(summary.window_bytes_per_sequence), " per sequence"));
  }
  if (summary.tensor_count > 0) {
    const absl::Status servable = CheckServable(path, model);
    Row("serve", servable.ok() ? "takes it" : absl::StrCat("refuses it: ", servable.message()));
  }
  if (!head_dir.empty()) RETURN_IF_ERROR(ShowHead(head_dir, model));
  Row("this machine", TopologyText(ReadTopology()));
  return absl::OkStatus();
}

}  // namespace

void AddInfo(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "info", "Architecture, parameters, bytes, MTP modules and KV bytes per token of a checkpoint");
  auto dir = std::make_shared<std::string>();
  command->add_option("MODEL,--checkpoint", *dir, "Hugging Face checkpoint directory, or a config.json alone")
      ->required()
      ->type_name("DIR");
  auto head_dir = std::make_shared<std::string>();
  command
      ->add_option("--head", *head_dir,
                   "an Eagle3 head that is to draft for it: its checkpoint directory, or a config.json alone")
      ->type_name("DIR");
  command->callback([dir, head_dir, exit_code] {
    const absl::Status status = ShowInfo(*dir, *head_dir);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
