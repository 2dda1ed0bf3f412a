#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/grouped_digits.h"
#include "base/status_macros.h"
#include "config/config_defaults.h"
#include "config/config_docs.h"
#include "config/config_yaml.h"
#include "engine/weights/dummy_weights.h"
#include "server/cli/commands.h"
#include "server/daemon.h"
#include "server/output/metric_table.h"

namespace foredraft {
namespace {

std::string Drafting(const Config& config) {
  if (!config.speculative_config.has_value()) return "none";
  const SpeculativeConfig& speculative = *config.speculative_config;
  std::string text = absl::StrCat("up to ", speculative.max_draft_len, " a step, ",
                                  speculative.use_mtp_vanilla ? "vanilla" : "eagle", ", policy ",
                                  NameOf(speculative.draft_policy));
  if (speculative.forced_acceptance_length.has_value()) {
    return absl::StrCat(text, ", FORCED acceptance: tokens are not the model's");
  }
  if (!speculative.use_relaxed_acceptance_for_thinking) return absl::StrCat(text, ", strict");
  return absl::StrCat(text, ", relaxed while thinking: top ", speculative.relaxed_topk, ", delta ",
                      speculative.relaxed_delta);
}

// Size of the KV cache: a number of tokens, or how the memory of the device decides it at the start.
std::string Pool(const Config& config, const ModelConfig& model) {
  const KvCacheConfig& cache = config.kv_cache_config;
  const int64_t token_bytes = KvBytesPerToken(model, MtpModuleCount(config), cache.dtype);
  if (cache.max_tokens > 0) {
    return absl::StrCat(Grouped(cache.max_tokens), " tokens in blocks of ", cache.tokens_per_block, ", ",
                        Grouped(cache.max_tokens * token_bytes), " bytes");
  }
  const int64_t weight_bytes = DummyBytes(model, MtpModuleCount(config));
  return absl::StrCat(cache.free_gpu_memory_fraction, " of what the GPU has left after the weights (about ",
                      Grouped(weight_bytes), " bytes on one rank) and workspaces, in blocks of ",
                      cache.tokens_per_block, ", ", Grouped(token_bytes), " bytes a token");
}

// A summary of the configuration, as YAML comments above the values.
std::string Explain(const Config& config, const ModelConfig& model) {
  const KvCacheConfig& cache = config.kv_cache_config;
  return absl::StrCat(
      "# serves  ", config.served_model_name, " on ", config.server.grpc_address,
      config.server.tls.cert.empty() ? ", no TLS" : ", TLS", "; metrics on ", config.server.metrics_address,
      "\n# drafts  ", Drafting(config), "\n# batch   up to ", config.max_batch_size, " sequences of up to ",
      Grouped(config.max_seq_len), " tokens, prefill ", Grouped(config.max_num_tokens),
      " tokens an iteration, ", config.disable_overlap_scheduler ? "no overlap" : "overlapped", ", ",
      config.cuda_graph_config.has_value() ? "graphs" : "eager", "\n# cache   ", Pool(config, model), ", ",
      NameOf(cache.dtype), ", reuse ", cache.enable_block_reuse ? "on" : "off", "; ",
      Grouped(cache.host_cache_size), " bytes for swapped sequences\n");
}

absl::Status CheckConfigFile(const ConfigOptions& options) {
  ASSIGN_OR_RETURN(LoadedConfig loaded, options.Read());
  ASSIGN_OR_RETURN(const ResolvedConfig resolved, ResolveConfig(std::move(loaded)));
  const Config& config = resolved.loaded.config;
  const std::string text = Explain(config, resolved.model) + EmitYaml(config);
  fwrite(text.data(), 1, text.size(), stdout);
  return absl::OkStatus();
}

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  if (file << text && file.flush()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--docs: ", path.string(), ": cannot be written"));
}

absl::Status WriteDocs(const std::filesystem::path& directory) {
  RETURN_IF_ERROR(WriteFile(directory / "configuration.md", ConfigurationDocument()));
  return WriteFile(directory / "metrics.md", MetricsDocument());
}

}  // namespace

void AddCheckConfig(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "check-config",
      "Parse and validate a configuration, summarize it, and print the effective values as YAML");
  auto options = std::make_shared<ConfigOptions>();
  auto docs = std::make_shared<std::string>();
  options->Add(*command);
  CLI::Option* config = command->get_option("--config")->required(false);
  command
      ->add_option("--docs", *docs,
                   "write configuration.md and metrics.md, the tables of keys and metrics, into DIR")
      ->type_name("DIR")
      ->excludes(config);
  command->callback([options, docs, exit_code] {
    if (options->file.empty() && docs->empty()) throw CLI::RequiredError("--config");
    const absl::Status status = docs->empty() ? CheckConfigFile(*options) : WriteDocs(*docs);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
