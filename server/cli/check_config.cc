#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/grouped_digits.h"
#include "base/status_macros.h"
#include "config/byte_size.h"
#include "config/config_defaults.h"
#include "config/config_docs.h"
#include "config/config_explain.h"
#include "config/config_warnings.h"
#include "config/config_yaml.h"
#include "engine/cache/cache_groups.h"
#include "engine/kinds/compute_model_limits.h"
#include "engine/kinds/drafter_kinds.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/draft_head.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "ranks/engine_setup.h"
#include "ranks/model_files.h"
#include "server/api/fields/field_classes.h"
#include "server/cli/commands.h"
#include "server/cli/directory_config.h"
#include "server/cli/explain_memory.h"
#include "server/daemon.h"
#include "server/host_check.h"
#include "server/output/metric_table.h"

namespace foredraft {
namespace {

std::string Drafting(const Config& config, const ModelConfig& model) {
  if (!config.speculative_config.has_value()) return "none";
  const SpeculativeConfig& speculative = *config.speculative_config;
  std::string text =
      absl::StrCat("up to ", speculative.max_draft_len, " a step, ", SelectedDrafter(config)->name,
                   TapsText(model), ", policy ", NameOf(speculative.draft_policy));
  if (speculative.forced_acceptance_length.has_value()) {
    return absl::StrCat(text, ", FORCED acceptance: tokens are not the model's");
  }
  if (!speculative.use_relaxed_acceptance_for_thinking) return absl::StrCat(text, ", strict");
  return absl::StrCat(text, ", relaxed while thinking: top ", speculative.relaxed_topk, ", delta ",
                      speculative.relaxed_delta);
}

// Describes what a sequence keeps besides its history (engine/cache/cache_groups.h); empty if nothing.
std::string Windows(const Config& config, const ModelConfig& model) {
  const std::vector<CacheGroup> groups = CacheGroupsOf(
      model, DrafterRequirementsOf(config, model).module_count, config.kv_cache_config.tokens_per_block);
  if (groups.size() == 1) return "";
  return absl::StrCat(" (", Grouped(HistoryBytesPerToken(groups)), " a token), and windows of up to ",
                      Grouped(WindowBytesPerSequence(groups, MaxDraftLen(config))), " bytes a sequence");
}

// Size of the KV cache: a number of tokens, or how the memory of the device decides it at the start.
std::string Pool(const Config& config, const ModelConfig& model) {
  const KvCacheConfig& cache = config.kv_cache_config;
  const int64_t token_bytes = ComputeModelLimits(model).cache_bytes(config).per_token;
  const int block_tokens = BlockTokens(config, model);
  if (cache.max_tokens > 0) {
    return absl::StrCat(Grouped(cache.max_tokens), " tokens in blocks of ", block_tokens, ", ",
                        Grouped(cache.max_tokens * token_bytes), " bytes", Windows(config, model));
  }
  const int64_t weight_bytes = DummyBytes(model, DrafterRequirementsOf(config, model).module_count);
  return absl::StrCat(cache.free_gpu_memory_fraction, " of what the GPU has left after the weights (about ",
                      Grouped(weight_bytes), " bytes over all ranks) and workspaces, in blocks of ",
                      block_tokens, ", ", Grouped(token_bytes), " bytes a token", Windows(config, model));
}

// A summary of the configuration, as YAML comments above the values.
std::string Summary(const Config& config, const ModelConfig& model) {
  const KvCacheConfig& cache = config.kv_cache_config;
  return absl::StrCat(
      "# serves  ", config.served_model_name, " on ", config.server.grpc_address,
      config.server.tls.cert.empty() ? ", no TLS" : ", TLS", "; metrics on ", config.server.metrics_address,
      "\n# drafts  ", Drafting(config, model), "\n# batch   up to ", config.max_batch_size,
      " sequences of up to ", Grouped(config.max_seq_len), " tokens, prefill ",
      Grouped(config.max_num_tokens), " tokens an iteration, ",
      config.disable_overlap_scheduler ? "no overlap" : "overlapped", ", ",
      config.cuda_graph_config.has_value() ? "graphs" : "eager", "\n# cache   ", Pool(config, model), ", ",
      NameOf(cache.dtype), ", reuse ", cache.enable_block_reuse ? "on" : "off", "; ",
      Grouped(cache.host_cache_size), " bytes for swapped sequences\n");
}

std::string Comments(const char* title, const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) absl::StrAppend(&text, "# ", title, line, "\n");
  return text;
}

struct CheckConfigOptions {
  ConfigOptions config;
  std::string docs;
  bool explain = false;
  // Valid: CLI11 has checked them.
  std::string gpu_memory;
  std::string memory;
  bool other_host = false;
};

void Print(const std::string& text) { fwrite(text.data(), 1, text.size(), stdout); }

// No weights are needed, so the model may be a config.json instead of a checkpoint.
std::string ConfigJsonToCheck(const Config& config) {
  std::error_code error;
  return std::filesystem::is_regular_file(config.model, error) ? config.model : ConfigJsonOf(config);
}

// False: the model is a config.json alone, and `serve` would refuse it.
bool IsServable(const Config& config) {
  std::error_code error;
  return config.load_format == LoadFormat::kDummy || std::filesystem::is_directory(config.model, error);
}

absl::Status CheckConfigFile(const CheckConfigOptions& check) {
  ResolvedConfig resolved;
  ASSIGN_OR_RETURN(resolved.loaded, check.config.Read());
  ASSIGN_OR_RETURN(resolved.model,
                   ReadModel(resolved.loaded.config, ConfigJsonToCheck(resolved.loaded.config)));
  const ModelLimits limits = ComputeModelLimits(resolved.model);
  RETURN_IF_ERROR(ResolveDefaults(ReadHostResources(), &limits, resolved.loaded));
  const LoadedConfig& loaded = resolved.loaded;
  ConfigErrors errors;
  CheckModelFiles(loaded, resolved.model, errors);
  if (!check.other_host) CheckHost(loaded, errors);
  RETURN_IF_ERROR(errors.First());
  if (!check.other_host && IsServable(loaded.config)) {
    std::string doubt;
    RETURN_IF_ERROR(CheckMemory(loaded.config, resolved.model, ReadHostResources(), &doubt));
    if (!doubt.empty()) fprintf(stderr, "foredraft: warning: %s\n", doubt.c_str());
  }
  for (const std::string& warning : ConfigWarnings(loaded, ComputeModelLimits(resolved.model),
                                                   check.other_host ? 0 : ReadHostResources().cores)) {
    fprintf(stderr, "foredraft: warning: %s\n", warning.c_str());
  }
  Print(Summary(loaded.config, resolved.model) + Comments("foreign ", loaded.notes) +
        EmitYaml(loaded.config));
  return absl::OkStatus();
}

// Collects all faults, not only the first. Reads the model if possible, so that what depends on it is checked
// too.
absl::StatusOr<ResolvedConfig> ResolveAll(const CheckConfigOptions& options, ConfigErrors& errors) {
  ASSIGN_OR_RETURN(const ConfigSources sources, options.config.Sources());
  ResolvedConfig resolved{.loaded = ParseConfig(sources, errors), .model = {}};
  std::optional<ModelLimits> limits;
  if (!errors.Refused("model")) {
    const absl::Status found = ResolveModel(resolved.loaded);
    auto read = found.ok() ? ReadModelConfig(ConfigJsonToCheck(resolved.loaded.config)) : found;
    if (!read.ok()) {
      errors.Add(
          "model",
          absl::Status(read.status().code(),
                       absl::StrCat(found.ok() ? OriginOf(resolved.loaded, "model") + ": model: " : "",
                                    read.status().message(),
                                    "; --explain needs the model's config.json alone: --set model=FILE")));
    }
    if (read.ok()) {
      resolved.model = *std::move(read);
      const absl::Status drafter = ReadDrafter(resolved.loaded.config, resolved.model);
      if (!drafter.ok()) errors.Add("speculative_config.speculative_model", drafter);
      limits = ComputeModelLimits(resolved.model);
    }
  }
  ResolveDefaults(ReadHostResources(), limits ? &*limits : nullptr, resolved.loaded, errors);
  if (limits) CheckModelFiles(resolved.loaded, resolved.model, errors);
  if (!options.other_host) CheckHost(resolved.loaded, errors);
  return resolved;
}

// Refuses a size of the other backend's memory, which would be ignored.
absl::Status CheckSizes(const CheckConfigOptions& options, Backend backend) {
  const bool cpu = backend == Backend::kCpu;
  const std::string& other = cpu ? options.gpu_memory : options.memory;
  if (other.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s, allowed where backend is %s; it is %s, for which %s says how much there is",
                      cpu ? "--gpu-memory" : "--memory", other, cpu ? "cuda" : "cpu", NameOf(backend),
                      cpu ? "--memory" : "--gpu-memory"));
}

// The memory that the ranks have to fit: the size given for the backend in use, else this host's.
std::optional<MemoryLimits> LimitsOf(const CheckConfigOptions& options, Backend backend) {
  const std::string& size = backend == Backend::kCpu ? options.memory : options.gpu_memory;
  if (!size.empty()) return MemoryLimits{.device_bytes = *ParseByteSize(size)};
  if (backend != Backend::kCpu || options.other_host) return std::nullopt;
  const HostResources host = ReadHostResources();
  return MemoryLimits{.device_bytes = host.ram_bytes, .address_space_bytes = host.address_space_bytes};
}

absl::Status PrintExplanation(const ResolvedConfig& resolved, const CheckConfigOptions& options) {
  const LoadedConfig& loaded = resolved.loaded;
  RETURN_IF_ERROR(CheckSizes(options, loaded.config.backend));
  ASSIGN_OR_RETURN(const MemoryExplanation memory,
                   ExplainMemory(loaded.config, resolved.model, LimitsOf(options, loaded.config.backend)));
  // The keys fill screens, so the summary comes after them, and the verdict last.
  Print(ExplainYaml(loaded) + "\n" + Comments("foreign ", loaded.notes) +
        Comments("warning ", ConfigWarnings(loaded, ComputeModelLimits(resolved.model),
                                            options.other_host ? 0 : ReadHostResources().cores)) +
        Summary(loaded.config, resolved.model) + memory.text);
  return memory.fits;
}

// Prints every error on a line of its own, or the explanation. Returns the exit code.
int ExplainConfig(const CheckConfigOptions& options) {
  ConfigErrors errors;
  const absl::StatusOr<ResolvedConfig> resolved = ResolveAll(options, errors);
  if (!resolved.ok()) return Fail(resolved.status());
  for (const absl::Status& error : errors.all()) Fail(error);
  if (!errors.empty()) return 1;
  const absl::Status status = PrintExplanation(*resolved, options);
  return status.ok() ? 0 : Fail(status);
}

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  if (file << text && file.flush()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--docs: ", path.string(), ": cannot be written"));
}

absl::Status WriteDocs(const std::filesystem::path& directory) {
  RETURN_IF_ERROR(WriteFile(directory / "configuration.md", ConfigurationDocument()));
  RETURN_IF_ERROR(WriteFile(directory / "tensorrt-llm.md", ForeignKeysDocument()));
  RETURN_IF_ERROR(WriteFile(directory / "client-fields.md", ClientFieldsDocument()));
  return WriteFile(directory / "metrics.md", MetricsDocument());
}

}  // namespace

void AddCheckConfig(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "check-config",
      "Parse and validate a configuration, summarize it, and print the effective values as YAML");
  auto options = std::make_shared<CheckConfigOptions>();
  options->config.AddWithModel(*command, /*required=*/false);
  CLI::Option* config = command->get_option("--config");
  CLI::Option* explain = command->add_flag("--explain", options->explain,
                                           "for every key help, type, allowed values, default and where its "
                                           "value came from; memory per rank. Needs the model's config.json, "
                                           "no weights and no GPU");
  const auto add_size = [&](const char* name, std::string& size, const char* help) {
    command->add_option(name, size, help)
        ->type_name("SIZE")
        ->needs(explain)
        ->check([](const std::string& text) {
          const absl::StatusOr<int64_t> bytes = ParseByteSize(text);
          return bytes.ok() ? std::string() : std::string(bytes.status().message());
        });
  };
  add_size("--gpu-memory", options->gpu_memory,
           "with --explain: memory of one GPU; exit 1 if a rank does not fit it");
  add_size(
      "--memory", options->memory,
      "with --explain and backend cpu: RAM of the server, this host's by default; exit 1 if the ranks do not "
      "fit it");
  command->add_flag(
      "--other-host", options->other_host,
      "the configuration is for another host: TLS files, tokens, the CPU and the RAM of this one are not "
      "compared with it; the model's files are");
  command
      ->add_option("--docs", options->docs,
                   "write client-fields.md, configuration.md, metrics.md and tensorrt-llm.md, the tables in "
                   "code, into DIR")
      ->type_name("DIR")
      ->excludes(config);
  command->callback([options, exit_code] {
    if (options->config.file.empty() && options->config.model.empty() && options->docs.empty()) {
      throw CLI::RequiredError("MODEL, a checkpoint's directory, or --config F");
    }
    if (options->explain) {
      *exit_code = ExplainConfig(*options);
      return;
    }
    const absl::Status status = options->docs.empty() ? CheckConfigFile(*options) : WriteDocs(options->docs);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
