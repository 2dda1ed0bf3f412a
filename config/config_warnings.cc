#include "config/config_warnings.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/grouped_digits.h"
#include "config/config_check.h"
#include "config/config_defaults.h"

namespace foredraft {
namespace {

class Warnings {
 public:
  explicit Warnings(const LoadedConfig& loaded) : loaded_(loaded) {}

  void Add(const std::string& path, const std::string& value, const std::string& what) {
    lines_.push_back(absl::StrCat(OriginOf(loaded_, path), ": ", path, ": ", value, ": ", what));
  }
  void Add(const std::vector<std::string>& lines) { lines_.insert(lines_.end(), lines.begin(), lines.end()); }
  std::vector<std::string> Take() { return std::move(lines_); }

 private:
  const LoadedConfig& loaded_;
  std::vector<std::string> lines_;
};

void WarnOfOpenPorts(const ServerConfig& server, Warnings& warnings) {
  const bool tokens = !server.auth.tokens_file.empty();
  const auto warn = [&](const char* key, const std::string& address, const char* what) {
    if (!address.empty() && address != kNoListener && !IsLocal(address)) warnings.Add(key, address, what);
  };
  const auto warn_of_api = [&](const char* key, const std::string& address) {
    if (server.tls.cert.empty()) {
      warn(key, address,
           tokens
               ? "without TLS: prompts and tokens travel in plain text; set server.tls.cert and key"
               : "without TLS: whoever reaches this port may generate, and prompts travel in plain text; set "
                 "server.tls.cert and key and server.auth.tokens_file, or a loopback address");
    } else if (!tokens && server.tls.client_ca.empty()) {
      warn(key, address,
           "whoever reaches this port may generate; set server.auth.tokens_file or server.tls.client_ca");
    }
  };
  warn_of_api("server.grpc_address", server.grpc_address);
  warn_of_api("server.http_address", server.http_address);
  if (!tokens) {
    warn("server.admin_address", server.admin_address,
         "whoever reaches this port may drain the daemon; set server.auth.tokens_file");
  } else if (server.tls.cert.empty()) {
    warn("server.admin_address", server.admin_address, "without TLS: tokens travel in plain text");
  }
  warn("server.gateway_address", server.gateway_address,
       "in plain text and without tokens: whoever reaches this port may generate");
}

void WarnOfLengths(const LoadedConfig& loaded, const ModelLimits& model, Warnings& warnings) {
  const Config& config = loaded.config;
  if (!loaded.origins.contains("max_seq_len") && config.max_seq_len < model.longest_sequence) {
    warnings.Add("max_seq_len", Grouped(config.max_seq_len),
                 absl::StrCat("the model has ", Grouped(model.longest_sequence),
                              " positions; longer requests are refused unless max_seq_len is set"));
  }
  const int64_t pool = config.kv_cache_config.max_tokens;
  if (pool > 0 && pool < config.max_seq_len) {
    warnings.Add("kv_cache_config.max_tokens", Grouped(pool),
                 absl::StrCat("below max_seq_len, ", Grouped(config.max_seq_len),
                              ": requests that need more than the pool are refused"));
  }
}

void WarnOfThreads(const Config& config, int host_cores, Warnings& warnings) {
  const int ranks = LocalRankCount(config);
  if (config.backend != Backend::kCpu || host_cores == 0 || ranks * config.cpu.threads <= host_cores) return;
  warnings.Add("cpu.threads", absl::StrCat(config.cpu.threads),
               absl::StrFormat("threads wait for each other: %d rank%s share %d core%s", ranks,
                               ranks == 1 ? "" : "s", host_cores, host_cores == 1 ? "" : "s"));
}

// Relaxed acceptance is off unless its switch is on, whatever its two numbers say.
void WarnOfStrictAcceptance(const LoadedConfig& loaded, Warnings& warnings) {
  const std::optional<SpeculativeConfig>& speculative = loaded.config.speculative_config;
  if (!speculative || speculative->use_relaxed_acceptance_for_thinking) return;
  for (const auto& [path, value] :
       {std::pair<const char*, std::string>("speculative_config.relaxed_topk",
                                            absl::StrCat(speculative->relaxed_topk)),
        {"speculative_config.relaxed_delta", absl::StrCat(speculative->relaxed_delta)}}) {
    if (!loaded.origins.contains(path)) continue;
    warnings.Add(path, value,
                 "changes nothing: acceptance is strict without use_relaxed_acceptance_for_thinking: true");
  }
}

}  // namespace

std::vector<std::string> ConfigWarnings(const LoadedConfig& loaded, const ModelLimits& model,
                                        int host_cores) {
  Warnings warnings(loaded);
  const Config& config = loaded.config;
  warnings.Add(loaded.warnings);
  WarnOfOpenPorts(config.server, warnings);
  WarnOfLengths(loaded, model, warnings);
  WarnOfThreads(config, host_cores, warnings);
  if (!loaded.notes.empty() && !loaded.origins.contains("backend") && config.backend == Backend::kCpu) {
    warnings.Add("backend", "cpu", "the file has keys of TensorRT-LLM; write backend: cuda to run on GPUs");
  }
  if (config.kv_cache_config.block_reuse_scope == BlockReuseScope::kToken &&
      (config.server.auth.tokens_file.empty() || !config.server.gateway_address.empty())) {
    warnings.Add("kv_cache_config.block_reuse_scope", "token",
                 config.server.auth.tokens_file.empty()
                     ? "without server.auth.tokens_file all callers share blocks as one"
                     : "callers of server.gateway_address have no tokens and share blocks as one");
  }
  if (config.kv_cache_config.reuse_generated && !config.kv_cache_config.enable_block_reuse) {
    warnings.Add("kv_cache_config.reuse_generated", "true",
                 "without kv_cache_config.enable_block_reuse no blocks are shared");
  }
  WarnOfStrictAcceptance(loaded, warnings);
  if (config.speculative_config && config.speculative_config->forced_acceptance_length) {
    warnings.Add("speculative_config.forced_acceptance_length",
                 absl::StrCat(*config.speculative_config->forced_acceptance_length),
                 "for benchmarks: the text is not the model's");
  }
  return warnings.Take();
}

}  // namespace foredraft
