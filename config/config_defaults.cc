#include "config/config_defaults.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "config/config_fields.h"
#include "config/decode_buckets.h"

namespace foredraft {
namespace {

constexpr int kDefaultMaxSeqLen = 4096;
constexpr int kMostDefaultLive = 256;  // of constraints.max_live

std::string LastPart(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

std::string Number(int value) { return absl::StrFormat("%d", value); }

void CheckThinkingTokens(const ModelLimits& model, const LoadedConfig& loaded, ConfigErrors& errors) {
  if (!loaded.config.speculative_config) return;
  const SpeculativeConfig& speculative = *loaded.config.speculative_config;
  for (const auto& [path, id] :
       {std::pair("speculative_config.begin_thinking_phase_token", speculative.begin_thinking_phase_token),
        std::pair("speculative_config.end_thinking_phase_token", speculative.end_thinking_phase_token)}) {
    if (!id || *id < model.vocab_size) continue;
    errors.Add(path, RefuseKey(loaded, path, Number(*id),
                               absl::StrFormat("0..%d, the vocabulary", model.vocab_size - 1)));
  }
}

void CheckAgainstModel(const ModelLimits& model, const LoadedConfig& loaded, ConfigErrors& errors) {
  const Config& config = loaded.config;
  if (config.speculative_config && model.check_drafter) model.check_drafter(loaded, errors);
  constexpr const char* kProducts = "kv_cache_config.attention_products";
  if (config.kv_cache_config.attention_products == AttentionProducts::kFp8 && !model.fp8_products &&
      !errors.Refused(kProducts)) {
    errors.Add(kProducts,
               RefuseKey(loaded, kProducts, "fp8", "bf16 with this model, whose keys are no latents"));
  }
  if (config.moe.inputs == MoeInputs::kNvfp4 && !model.nvfp4_experts && !errors.Refused("moe.inputs")) {
    errors.Add("moe.inputs", RefuseKey(loaded, "moe.inputs", "nvfp4",
                                       "auto with this model, whose routed experts are not in NVFP4"));
  }
  if (config.cpu.inputs == CpuInputs::kInt8 && !model.has_4bit_weights && !errors.Refused("cpu.inputs")) {
    errors.Add("cpu.inputs", RefuseKey(loaded, "cpu.inputs", "int8",
                                       "bf16 with this model, which has no weights of 4-bit codes"));
  }
  if (config.parallel.attention_tp > 1 && model.check_parallel) model.check_parallel(loaded, errors);
  if (config.max_seq_len > model.longest_sequence) {
    errors.Add("max_seq_len",
               RefuseKey(loaded, "max_seq_len", Number(config.max_seq_len),
                         absl::StrFormat("2..%d, %s", model.longest_sequence, model.sequence_bound)));
  } else if (!config.enable_chunked_prefill && config.max_num_tokens < config.max_seq_len) {
    errors.Add("enable_chunked_prefill",
               RefuseKey(loaded, "enable_chunked_prefill", "false",
                         absl::StrFormat("true where max_num_tokens, %d, is below max_seq_len, %d",
                                         config.max_num_tokens, config.max_seq_len)));
  }
  CheckThinkingTokens(model, loaded, errors);
}

void ResolvePool(const HostResources& host, const ModelLimits& model, Config& config) {
  KvCacheConfig& cache = config.kv_cache_config;
  if (cache.max_tokens != 0 || config.backend != Backend::kCpu) return;
  const int64_t wanted = int64_t{config.max_batch_size} * config.max_seq_len;
  const int64_t blocks = std::min(wanted, CacheTokensThatFit(host, model, config)) / cache.tokens_per_block;
  cache.max_tokens = std::max<int64_t>(blocks, 1) * cache.tokens_per_block;
}

}  // namespace

int LocalRankCount(const Config& config) {
  int count = config.parallel.world_size();
  if (config.parallel.local_workers != "auto" && !absl::SimpleAtoi(config.parallel.local_workers, &count)) {
    return 1;  // CheckConfig has refused it
  }
  return std::clamp(count, 1, config.parallel.world_size());
}

int DefaultTokensPerBlock(Backend backend) { return backend == Backend::kCuda ? 64 : 32; }

int DefaultDecodePauseMs(Backend backend) { return backend == Backend::kCuda ? 200 : 500; }

int64_t CacheTokensThatFit(const HostResources& host, const ModelLimits& model, const Config& config) {
  const CacheBytes bytes = model.cache_bytes(config);
  const int64_t share = host.ram_bytes / 4 / LocalRankCount(config) - bytes.windows;
  return std::max<int64_t>(share, 0) / std::max<int64_t>(bytes.per_token, 1);
}

void ResolveDefaults(const HostResources& host, const ModelLimits* model, LoadedConfig& loaded,
                     ConfigErrors& errors) {
  Config& config = loaded.config;
  if (config.served_model_name.empty()) config.served_model_name = LastPart(config.model);
  if (std::ranges::count(config.server.model_aliases, config.served_model_name) > 0) {
    errors.Add("server.model_aliases",
               RefuseKey(loaded, "server.model_aliases", config.served_model_name,
                         "other names than served_model_name, which is taken anyway"));
  }
  if (config.server.admin_address.empty()) config.server.admin_address = host.admin_address;
  if (config.scheduler.max_decode_pause_ms == "auto") {
    config.scheduler.max_decode_pause_ms = absl::StrCat(DefaultDecodePauseMs(config.backend));
  }
  if (config.kv_cache_config.tokens_per_block == 0) {
    config.kv_cache_config.tokens_per_block = DefaultTokensPerBlock(config.backend);
  }
  if (config.kv_cache_config.dtype == KvDtype::kAuto) config.kv_cache_config.dtype = KvDtype::kBf16;
  if (config.cuda_graph_config) config.cuda_graph_config->batch_sizes = DecodeBuckets(config);
  if (config.constraints && config.constraints->max_live == 0) {
    config.constraints->max_live = std::min(config.max_batch_size, kMostDefaultLive);
  }
  const int local_ranks = LocalRankCount(config);
  if (config.server.tokenizer_threads == 0) {
    config.server.tokenizer_threads = std::clamp(host.cores / 4, 1, 8);
  }
  if (config.cpu.threads == 0) config.cpu.threads = std::max(1, host.cores / local_ranks);
  if (local_ranks > 1 && config.cpu.pin.value_or(false)) {
    errors.Add("cpu.pin", RefuseKey(loaded, "cpu.pin", "true", "false where ranks share a host"));
  }
  if (!config.cpu.pin) config.cpu.pin = local_ranks == 1 && config.cpu.threads <= host.cores;
  if (model == nullptr) return;
  if (config.max_seq_len == 0) {
    config.max_seq_len = std::min(model->longest_sequence, kDefaultMaxSeqLen);
  }
  CheckAgainstModel(*model, loaded, errors);
  ResolvePool(host, *model, config);
}

absl::Status ResolveDefaults(const HostResources& host, const ModelLimits* model, LoadedConfig& loaded) {
  ConfigErrors errors;
  ResolveDefaults(host, model, loaded, errors);
  return errors.First();
}

}  // namespace foredraft
