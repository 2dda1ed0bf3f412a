#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/config_defaults.h"
#include "config/model_config.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/tensor_names.h"
#include "server/cli/commands.h"
#include "server/figures.h"

namespace foredraft {
namespace {

int64_t ParameterCount(const ModelConfig& model, int module_count) {
  int64_t parameters = 0;
  for (const TensorSpec& tensor : ExpectedTensors(model, module_count)) {
    if (tensor.kind == TensorKind::kCopy) continue;
    int64_t elements = 1;
    for (int64_t extent : tensor.shape) elements *= extent;
    parameters += elements;
  }
  return parameters;
}

void Row(const char* name, const std::string& value) { printf("%-20s %s\n", name, value.c_str()); }

absl::Status ShowInfo(const std::string& dir) {
  ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(dir + "/config.json"));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  int64_t bytes = 0;
  for (const TensorLocation& tensor : checkpoint.tensors()) bytes += tensor.entry->bytes;
  const int modules = model.num_nextn_predict_layers;
  const int64_t target = ParameterCount(model, 0);
  Row("architecture", model.architecture);
  Row("parameters", absl::StrCat(Grouped(ParameterCount(model, modules)), "   target ", Grouped(target),
                                 ", MTP modules ", Grouped(ParameterCount(model, modules) - target)));
  Row("bytes", absl::StrCat(Grouped(bytes), "   ", model.fp8_blocks ? "FP8 blocks" : "BF16 or F32", ", ",
                            Grouped(static_cast<int64_t>(checkpoint.tensors().size())), " tensors"));
  Row("layers", absl::StrCat(model.num_hidden_layers, "   hidden ", Grouped(model.hidden_size),
                             ", vocabulary ", Grouped(model.vocab_size), ", experts ", model.n_routed_experts,
                             " (", model.num_experts_per_tok, " per token)"));
  Row("MTP modules", absl::StrCat(modules));
  Row("KV bytes per token", absl::StrCat(Grouped(KvBytesPerToken(model, 0)), "   with Eagle ",
                                         Grouped(KvBytesPerToken(model, modules > 0 ? 1 : 0)),
                                         ", with all modules ", Grouped(KvBytesPerToken(model, modules))));
  return absl::OkStatus();
}

}  // namespace

void AddInfo(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "info", "Architecture, parameters, bytes, MTP modules and KV bytes per token of a checkpoint");
  auto dir = std::make_shared<std::string>();
  command->add_option("--checkpoint", *dir, "Hugging Face checkpoint directory")
      ->required()
      ->type_name("DIR");
  command->callback([dir, exit_code] {
    const absl::Status status = ShowInfo(*dir);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
