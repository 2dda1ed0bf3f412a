#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model_weights.h"
#include "engine/spec/eagle3/eagle3_drafter.h"
#include "kernels/slot_arrays.h"
#include "server/cli/commands.h"
#include "tools/validate_mtp/dspark_chain.h"
#include "tools/validate_mtp/eagle3_chain.h"
#include "tools/validate_mtp/mtp_chain.h"

namespace foredraft {
namespace {

struct ValidateOptions {
  std::string dir;
  std::string head_dir;  // of an Eagle3 head; empty: the checkpoint's own drafter
  MtpCheckOptions chain;
  bool json = false;
};

absl::StatusOr<MtpCheckResult> CheckHead(const ValidateOptions& options, ModelConfig config, Device& device) {
  if (config.kv_lora_rank == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--head: ", config.architecture, " gives a head no hidden states of its layers"));
  }
  Config of_head;
  of_head.speculative_config.emplace().speculative_model = options.head_dir;
  RETURN_IF_ERROR(kEagle3.read(of_head, config));
  const std::unique_ptr<Stream> stream = device.CreateStream();
  ASSIGN_OR_RETURN(LoadedWeights weights,
                   LoadWeights(options.dir, config, /*mtp_module_count=*/0, device, *stream, nullptr));
  ASSIGN_OR_RETURN(LoadedWeights head, kEagle3.load(config, device, *stream));
  weights.SetDrafter(std::move(head));
  return CheckEagle3Chain(options.dir, config, device, weights, options.chain);
}

absl::StatusOr<MtpCheckResult> Check(const ValidateOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig config,
                   ReadModelConfig((std::filesystem::path(options.dir) / "config.json").string()));
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                   CreateDevice("cpu", {.threads = std::max(threads, 1)}));
  if (!options.head_dir.empty()) return CheckHead(options, config, *device);
  const std::unique_ptr<Stream> stream = device->CreateStream();
  const bool dspark = config.dspark.has_value();
  ASSIGN_OR_RETURN(const LoadedWeights weights,
                   LoadWeights(options.dir, config, dspark ? config.num_nextn_predict_layers : 1, *device,
                               *stream, nullptr));
  const auto check = dspark ? CheckDSparkChain : CheckMtpChain;
  return check(options.dir, config, *device, weights, options.chain);
}

// A difference as text: in full, such as "0", of values that have to be equal.
std::string Difference(const Boundary& boundary, double value) {
  return boundary.allowed == 0 ? absl::StrCat(value) : absl::StrFormat("%.1e", value);
}

void PrintTable(const MtpCheckResult& result) {
  constexpr char kRow[] = "%-37s %-29s %5s %9s %10s %9s  %s\n";
  printf(kRow, "boundary", "shape", "rows", "left out", "difference", "allowed", "");
  for (const Boundary& boundary : result.boundaries) {
    printf(kRow, boundary.name.c_str(), boundary.shape.c_str(), absl::StrCat(boundary.rows).c_str(),
           boundary.left_out > 0 ? absl::StrCat(boundary.left_out).c_str() : "",
           Difference(boundary, boundary.difference).c_str(), Difference(boundary, boundary.allowed).c_str(),
           boundary.ok() ? "ok" : "FAILED");
  }
  printf("\nprompts of %s tokens", absl::StrJoin(result.prompt_lens, ", ").c_str());
  if (result.verified > 0) {
    printf(", %lld of %lld drafts accepted", static_cast<long long>(result.accepted),
           static_cast<long long>(result.verified));
  }
  printf("\n");
  printf("%s\n", result.ok() ? "the chain of drafts agrees with the float64 reference" : "FAILED");
}

void PrintJson(const MtpCheckResult& result) {
  nlohmann::json boundaries = nlohmann::json::array();
  for (const Boundary& boundary : result.boundaries) {
    boundaries.push_back({{"name", boundary.name},
                          {"shape", boundary.shape},
                          {"rows", boundary.rows},
                          {"left_out", boundary.left_out},
                          {"difference", boundary.difference},
                          {"allowed", boundary.allowed},
                          {"ok", boundary.ok()}});
  }
  const nlohmann::json all = {{"ok", result.ok()},
                              {"prompt_lens", result.prompt_lens},
                              {"drafts_verified", result.verified},
                              {"drafts_accepted", result.accepted},
                              {"boundaries", boundaries}};
  printf("%s\n", all.dump(2).c_str());
}

}  // namespace

void AddValidateMtp(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "validate-mtp",
      "Run the chain of drafts of a small checkpoint, of its MTP module, of DSpark or of an Eagle3 head, "
      "compare each boundary with a float64 reference, and every draft that a server's engine makes with one "
      "made from scratch");
  auto options = std::make_shared<ValidateOptions>();
  command
      ->add_option(
          "--model", options->dir,
          "Hugging Face checkpoint directory, with MTP weights or DSpark stages, or without them with --head")
      ->required()
      ->type_name("DIR");
  command->add_option("--head", options->head_dir, "an Eagle3 head's checkpoint directory: checks its drafts")
      ->type_name("DIR");
  command->add_option("--drafts", options->chain.draft_len, "per step; with DSpark at most dspark_block_size")
      ->check(CLI::Range(1, kMaxDraftLen))
      ->capture_default_str()
      ->type_name("K");
  command->add_option("--steps", options->chain.steps, "decode steps")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--seed", options->chain.seed, "of the prompts")->capture_default_str()->type_name("S");
  command->add_flag("--json", options->json, "print JSON instead of a table");
  command->footer(
      "Differences are in units of the reference's root mean square. Allowed is twice what rounding to BF16 "
      "makes of\n"
      "the reference. Rows left out: rounding alone may choose other experts there. Exit code 1 if a line "
      "FAILED.");
  command->callback([options, exit_code] {
    const absl::StatusOr<MtpCheckResult> result = Check(*options);
    if (!result.ok()) {
      *exit_code = Fail(result.status());
      return;
    }
    options->json ? PrintJson(*result) : PrintTable(*result);
    *exit_code = result->ok() ? 0 : 1;
  });
}

}  // namespace foredraft
