#include "server/cli/directory_config.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "config/config_warnings.h"
#include "engine/kinds/checkpoint_summary.h"
#include "engine/kinds/compute_model_limits.h"
#include "engine/kinds/model_kinds.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_config.h"
#include "server/cli/explain_memory.h"

namespace foredraft {
namespace {

namespace fs = std::filesystem;

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool IsDirectory(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool HasGguf(const fs::path& path) {
  if (path.extension() == ".gguf") return true;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".gguf") return true;
  }
  return false;
}

// "organisation/model", as hubs name models.
bool IsHubName(const std::string& model) {
  const size_t slash = model.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < model.size() &&
         model.find('/', slash + 1) == std::string::npos && model.front() != '.' && model.front() != '~';
}

fs::path HubCache() {
  if (const char* cache = std::getenv("HF_HUB_CACHE"); cache != nullptr && *cache != '\0') return cache;
  if (const char* home = std::getenv("HF_HOME"); home != nullptr && *home != '\0')
    return fs::path(home) / "hub";
  const char* home = std::getenv("HOME");
  return fs::path(home == nullptr ? "/" : home) / ".cache/huggingface/hub";
}

// YAML's double-quoted form.
std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

std::string DraftsText(const ModelConfig& model) {
  int draft_len = 0;
  std::string type = "MTP";
  if (model.dspark.has_value()) {
    type = model.drafter;
    draft_len = model.num_nextn_predict_layers > 0 ? model.dspark->block_size : 0;
  } else if (model.num_nextn_predict_layers > 0) {
    draft_len = 3;
  }
  if (draft_len == 0) return "";
  return absl::StrFormat(
      "speculative_config: {decoding_type: %s, max_draft_len: %d, draft_policy: adaptive}\n", type,
      draft_len);
}

// Whether config.json declares MTP modules that the checkpoint lacks (as after transformers has saved it) and
// nobody asks for drafts. A checkpoint that cannot be read is refused where it is loaded.
bool LacksModules(const std::string& directory, const ModelConfig& model, const ConfigSources& sources) {
  if (IsFile(directory) || model.num_nextn_predict_layers == 0) return false;
  const auto asks = [](const ConfigOverride& override) {
    return override.path.starts_with("speculative_config") || override.path == "load_format";
  };
  if (std::any_of(sources.overrides.begin(), sources.overrides.end(), asks)) return false;
  const absl::StatusOr<CheckpointSummary> summary = SummarizeCheckpoint(directory);
  return summary.ok() && summary->config.num_nextn_predict_layers == 0;
}

// The longest context with which a sequence fits the cache. 0: not known, because a device's memory is known
// only when the weights are on it.
int LongestContext(const Config& config, const ModelLimits& limits, const HostResources& host) {
  if (config.backend != Backend::kCpu) return 0;
  Config resolved = config;
  resolved.max_seq_len = limits.longest_sequence;
  if (resolved.kv_cache_config.tokens_per_block == 0) {
    resolved.kv_cache_config.tokens_per_block = DefaultTokensPerBlock(resolved.backend);
  }
  const int64_t given = resolved.kv_cache_config.max_tokens;
  constexpr int64_t kBesideTheSequence = 256;  // its drafts, and the rest of its last block
  const int64_t fits = given > 0 ? given - kBesideTheSequence : CacheTokensThatFit(host, limits, resolved);
  constexpr int kUnit = 1024;
  if (fits >= limits.longest_sequence) return limits.longest_sequence;
  return static_cast<int>(std::max<int64_t>(fits / kUnit * kUnit, std::min(kUnit, limits.longest_sequence)));
}

bool SaysRanks(const ConfigSources& sources) {
  const auto of_override = [](const ConfigOverride& override) {
    return override.path.starts_with("parallel");
  };
  const auto of_variable = [](const auto& variable) {
    return variable.first.starts_with("FOREDRAFT_PARALLEL__");
  };
  return std::any_of(sources.overrides.begin(), sources.overrides.end(), of_override) ||
         std::any_of(sources.environment.begin(), sources.environment.end(), of_variable);
}

std::string RanksText(int ranks) {
  return ranks == 1 ? "" : absl::StrFormat("parallel: {attention_tp: %d, moe_ep: %d}\n", ranks, ranks);
}

// Whether `ranks` GPUs hold the model and one sequence. free_bytes: of the fullest of these GPUs.
absl::Status FitOn(int ranks, int64_t free_bytes, const ModelConfig& model, const HostResources& host,
                   ConfigSources sources) {
  absl::StrAppend(&sources.text, RanksText(ranks));
  ASSIGN_OR_RETURN(LoadedConfig loaded, ParseConfig(sources));
  const ModelLimits limits = ComputeModelLimits(model);
  RETURN_IF_ERROR(ResolveDefaults(host, &limits, loaded));
  ASSIGN_OR_RETURN(const MemoryExplanation memory,
                   ExplainMemory(loaded.config, model, MemoryLimits{.device_bytes = free_bytes}));
  return memory.fits;
}

// Adds the fewest GPUs that hold the model to sources.text. Warns if other GPUs are idle or all are too few.
void ChooseRanks(const ModelConfig& model, const HostResources& host, const std::vector<HostGpu>& gpus,
                 ConfigSources& sources) {
  const int count = static_cast<int>(gpus.size());
  absl::Status last;
  int64_t free_bytes = std::numeric_limits<int64_t>::max();
  int seen = 0;
  for (const int ranks : {1, 2, 4, 8}) {
    if (ranks > count) break;
    for (; seen < ranks; ++seen) free_bytes = std::min(free_bytes, gpus[seen].free_bytes);
    last = FitOn(ranks, free_bytes, model, host, sources);
    if (!last.ok()) continue;
    absl::StrAppend(&sources.text, RanksText(ranks));
    if (ranks == count) return;
    sources.warnings.push_back(
        absl::StrFormat("%d of %d GPUs %s, the others are idle", ranks, count,
                        ranks == 1 ? "holds the model" : "hold the model and share each request"));
    if (2 * ranks > count) return;
    absl::StrAppendFormat(
        &sources.warnings.back(),
        ": --tp %d lets more of them share each request, parallel.attention_dp gives each of them requests "
        "of its own",
        2 * ranks);
    return;
  }
  if (count > 0) {
    sources.warnings.push_back(absl::StrFormat("%d GPU%s of %.1f GiB free: %s", count, count == 1 ? "" : "s",
                                               static_cast<double>(free_bytes) / (1 << 30), last.message()));
  }
}

}  // namespace

absl::StatusOr<std::string> FindModel(const std::string& model) {
  if (IsFile(fs::path(model) / "config.json")) return model;
  if (IsFile(model) && fs::path(model).extension() == ".json") return model;
  if (IsFile(model) && (fs::path(model).extension() == ".yaml" || fs::path(model).extension() == ".yml")) {
    return absl::InvalidArgumentError(
        absl::StrCat(model, ": a configuration file, allowed a checkpoint's directory; --config ", model));
  }
  if (IsDirectory(model) || IsFile(model)) {
    if (!HasGguf(model)) {
      return absl::NotFoundError(absl::StrCat(
          model, "/config.json: not there; allowed a Hugging Face checkpoint of ", KnownArchitectures()));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        model, ": a GGUF file, allowed a Hugging Face checkpoint (config.json and *.safetensors) of ",
        KnownArchitectures(), "; llama.cpp serves GGUF"));
  }
  if (!IsHubName(model)) return absl::NotFoundError(absl::StrCat(model, ": no such directory"));
  const fs::path repository =
      HubCache() / absl::StrCat("models--", absl::StrReplaceAll(model, {{"/", "--"}}));
  std::ifstream ref(repository / "refs/main");
  std::string revision;
  ref >> revision;
  const fs::path snapshot = repository / "snapshots" / revision;
  if (revision.empty() || !IsFile(snapshot / "config.json")) {
    return absl::NotFoundError(absl::StrCat(model, ": no such directory, and not in ", HubCache().string(),
                                            ": `hf download ", model, "` puts it there"));
  }
  return snapshot.string();
}

absl::Status ResolveModel(LoadedConfig& loaded) {
  Config& config = loaded.config;
  absl::StatusOr<std::string> found = FindModel(config.model);
  if (!found.ok()) {
    return absl::Status(found.status().code(),
                        absl::StrCat(OriginOf(loaded, "model"), ": model: ", found.status().message()));
  }
  if (*found == config.model) return absl::OkStatus();
  if (config.served_model_name.empty()) config.served_model_name = config.model;
  config.model = *std::move(found);
  return absl::OkStatus();
}

absl::StatusOr<ConfigSources> DirectoryConfig(const std::string& model, const HostResources& host,
                                              const std::function<std::vector<HostGpu>()>& gpus,
                                              ConfigSources sources) {
  ASSIGN_OR_RETURN(const std::string directory, FindModel(model));
  ASSIGN_OR_RETURN(const ModelConfig config,
                   ReadModelConfig(IsFile(directory) ? directory : absl::StrCat(directory, "/config.json")));
  std::string drafts = DraftsText(config);
  if (!drafts.empty() && LacksModules(directory, config, sources)) {
    drafts.clear();
    sources.warnings.push_back(absl::StrFormat(
        "%s: no drafts: config.json declares %d MTP module%s (num_nextn_predict_layers), but the checkpoint "
        "has no tensor of them; the original checkpoint has",
        directory, config.num_nextn_predict_layers, config.num_nextn_predict_layers == 1 ? "" : "s"));
  }
  sources.file = absl::StrCat("serve ", model);
  sources.text =
      absl::StrCat("model: ", Quoted(directory), "\n", "server: {http_address: 127.0.0.1:8000}\n", drafts);
  if (directory != model) absl::StrAppend(&sources.text, "served_model_name: ", Quoted(model), "\n");
  ASSIGN_OR_RETURN(const LoadedConfig loaded, ParseConfig(sources));
  const int context = LongestContext(loaded.config, ComputeModelLimits(config), host);
  if (context > 0) absl::StrAppend(&sources.text, "max_seq_len: ", context, "\n");
  if (loaded.config.backend == Backend::kCuda && !SaysRanks(sources)) {
    ChooseRanks(config, host, gpus(), sources);
  }
  return sources;
}

}  // namespace foredraft
