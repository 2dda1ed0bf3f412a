#include <cstdio>
#include <memory>

#include "server/cli/commands.h"
#include "server/cli/synth_checkpoint.h"
#include "server/figures.h"

namespace foredraft {
namespace {

absl::Status Synth(const SynthOptions& options) {
  const absl::StatusOr<SynthReport> report = SynthCheckpoint(options);
  if (!report.ok()) return report.status();
  printf("%s: %s tensors, %s bytes\n", options.out_dir.c_str(), Grouped(report->tensors).c_str(),
         Grouped(report->bytes).c_str());
  return absl::OkStatus();
}

}  // namespace

void AddSynth(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "synth", "Write a random checkpoint in the Hugging Face layout, MTP modules included");
  auto options = std::make_shared<SynthOptions>();
  command->add_option("--config-json", options->config_json, "shape of the model: a config.json")
      ->required()
      ->type_name("F");
  command->add_option("--out", options->out_dir, "directory to write; made if missing")
      ->required()
      ->type_name("DIR");
  command->add_option("--seed", options->seed, "the same seed gives the same bytes")
      ->required()
      ->type_name("S");
  command->add_option("--dtype", options->dtype, "of the projections")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->capture_default_str();
  command->callback([options, exit_code] {
    const absl::Status status = Synth(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
