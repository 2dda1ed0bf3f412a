#include "tools/synth/synth.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/grouped_digits.h"
#include "base/status_macros.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_config.h"
#include "server/cli/byte_progress.h"
#include "server/cli/commands.h"
#include "server/request_setup.h"
#include "server/text/synth_tokenizer.h"

namespace foredraft {
namespace {

// Writes the tokenizer that the daemon needs to serve the checkpoint.
absl::Status WriteTokenizer(const RandomCheckpointOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(options.config_json));
  const std::string path = (std::filesystem::path(options.out_dir) / "tokenizer.json").string();
  std::ofstream file(path, std::ios::binary);
  file << SynthTokenizerJson(SynthVocabularyOf(config));
  file.close();
  if (file.fail()) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  return absl::OkStatus();
}

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const NamedFormat& row : kNamedFormats) names.emplace_back(row.name);
  return names;
}

// Writes the model, or if head_json is not empty, the head that it describes.
absl::Status Synth(const RandomCheckpointOptions& options, const std::string& head_json) {
  ByteProgress progress("writing");
  const auto show = [&](int64_t done_bytes, int64_t total_bytes) { progress.Show(done_bytes, total_bytes); };
  ASSIGN_OR_RETURN(const WrittenCheckpoint written, head_json.empty()
                                                        ? WriteRandomCheckpoint(options, show)
                                                        : WriteRandomHead(options, head_json, show));
  if (head_json.empty()) RETURN_IF_ERROR(WriteTokenizer(options));
  printf("%s: %s tensors, %s bytes\n", options.out_dir.c_str(), Grouped(written.tensor_count).c_str(),
         Grouped(written.bytes).c_str());
  return absl::OkStatus();
}

}  // namespace

void AddSynth(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "synth", "Write a random checkpoint in the Hugging Face layout, MTP modules included");
  auto options = std::make_shared<RandomCheckpointOptions>();
  command->add_option("--config-json", options->config_json, "a config.json: the shape of the model")
      ->required()
      ->type_name("F");
  command->add_option("--out", options->out_dir, "directory to write; must be new or empty")
      ->required()
      ->type_name("DIR");
  command->add_option("--seed", options->seed, "the same seed gives the same bytes")
      ->required()
      ->type_name("S");
  auto dtype = std::make_shared<std::string>("bf16");
  command->add_option("--dtype", *dtype, "of the projections")
      ->check(CLI::IsMember(FormatNames()))
      ->capture_default_str();
  auto head_json = std::make_shared<std::string>();
  command
      ->add_option("--head", *head_json,
                   "a config.json of an Eagle3 head: writes that head for the model, in BF16")
      ->type_name("F");
  command->callback([options, dtype, head_json, exit_code] {
    options->projections = FindFormat(*dtype)->format;
    const absl::Status status = Synth(*options, *head_json);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
