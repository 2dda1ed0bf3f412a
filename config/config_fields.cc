#include "config/config_fields.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "absl/strings/str_format.h"

namespace foredraft {
namespace {

constexpr ConfigRange Any() { return {}; }
constexpr ConfigRange Range(double low, double high) { return {ConfigRange::kNumber, low, high, {}}; }
constexpr ConfigRange OneOf(std::string_view choices) { return {ConfigRange::kChoice, 0, 0, choices}; }
constexpr ConfigRange Address() { return {ConfigRange::kAddress, 0, 0, {}}; }

constexpr ConfigChange kRestart = ConfigChange::kRestart;
constexpr ConfigChange kReload = ConfigChange::kReload;
constexpr bool kNullable = true;

CudaGraphConfig& Graphs(Config& c) {
  if (!c.cuda_graph_config) c.cuda_graph_config.emplace();
  return *c.cuda_graph_config;
}

SpeculativeConfig& Speculative(Config& c) {
  if (!c.speculative_config) c.speculative_config.emplace();
  return *c.speculative_config;
}

// A captureless lambda to a member: its return type picks the ConfigMember alternative.
#define MEMBER(expression) \
  [](Config & c) -> auto& { return expression; }

const ConfigField kFields[] = {
    {"model", MEMBER(c.model), Any(), kRestart, false,
     "Hugging Face checkpoint directory; with load_format dummy also a config.json; required"},
    {"served_model_name", MEMBER(c.served_model_name), Any(), kRestart, kNullable,
     "unset = last part of model"},
    {"backend", MEMBER(c.backend), OneOf("cpu, cuda"), kRestart, false, "device"},
    {"load_format", MEMBER(c.load_format), OneOf("auto, dummy"), kRestart, false,
     "dummy = random weights in the checkpoint's shapes"},
    {"max_batch_size", MEMBER(c.max_batch_size), Range(1, 4096), kRestart, false, "decode slots per rank"},
    {"max_num_tokens", MEMBER(c.max_num_tokens), Range(1, 1 << 20), kRestart, false,
     "prefill budget per rank and iteration"},
    {"max_seq_len", MEMBER(c.max_seq_len), Range(2, 1 << 22), kRestart, kNullable,
     "prompt + output; unset = the model's, at most 4096"},
    {"max_queue_size", MEMBER(c.max_queue_size), Range(1, 1 << 20), kReload, false,
     "requests waiting; more are refused"},
    {"request_timeout_s", MEMBER(c.request_timeout_s), Range(1, 604800), kReload, false,
     "deadline of requests that have none"},
    {"enable_chunked_prefill", MEMBER(c.enable_chunked_prefill), Any(), kRestart, false,
     "cut prompts at max_num_tokens"},
    {"disable_overlap_scheduler", MEMBER(c.disable_overlap_scheduler), Any(), kRestart, false,
     "collect an iteration before planning the next"},
    {"server.grpc_address", MEMBER(c.server.grpc_address), Address(), kRestart, false,
     "host:port or unix:path"},
    {"server.metrics_address", MEMBER(c.server.metrics_address), Address(), kRestart, false,
     "host:port of /metrics"},
    {"server.max_message_mib", MEMBER(c.server.max_message_mib), Range(1, 1024), kRestart, false,
     "largest gRPC message"},
    {"server.reflection", MEMBER(c.server.reflection), Any(), kRestart, false, "gRPC server reflection"},
    {"server.drain_timeout_s", MEMBER(c.server.drain_timeout_s), Range(0, 86400), kReload, false,
     "how long SIGTERM waits for streams"},
    {"server.tls.cert", MEMBER(c.server.tls.cert), Any(), kRestart, kNullable, "PEM file; unset = no TLS"},
    {"server.tls.key", MEMBER(c.server.tls.key), Any(), kRestart, kNullable, "PEM file"},
    {"server.tls.client_ca", MEMBER(c.server.tls.client_ca), Any(), kRestart, kNullable,
     "PEM file; set = client certificates required on every RPC"},
    {"parallel.attention_dp", MEMBER(c.parallel.attention_dp), Range(1, 8), kRestart, false,
     "ranks: 1, 2, 4, 8"},
    {"parallel.moe_ep", MEMBER(c.parallel.moe_ep), Range(1, 8), kRestart, false, "equals attention_dp"},
    {"parallel.leader_address", MEMBER(c.parallel.leader_address), Address(), kRestart, false,
     "where workers dial in; off loopback with TLS"},
    {"parallel.local_workers", MEMBER(c.parallel.local_workers), Any(), kRestart, false,
     "ranks that run on this host, auto = all; serve starts them, from rank 0"},
    {"parallel.interface", MEMBER(c.parallel.interface), Any(), kRestart, false,
     "network interface of the tensors' traffic"},
    {"parallel.step_timeout_s", MEMBER(c.parallel.step_timeout_s), Range(1, 3600), kRestart, false,
     "a rank that owes a step's result for so long is lost"},
    {"parallel.heartbeat_timeout_s", MEMBER(c.parallel.heartbeat_timeout_s), Range(1, 3600), kRestart, false,
     "a worker or leader silent for so long is lost"},
    {"parallel.restart", MEMBER(c.parallel.restart), OneOf("exit, group"), kRestart, false,
     "after a lost rank: exit, or start all ranks again"},
    {"attention_dp_config.batching_wait_iters", MEMBER(c.attention_dp_config.batching_wait_iters),
     Range(0, 1 << 20), kRestart, false, "iterations a prompt may wait for company while decodes run"},
    {"kv_cache_config.tokens_per_block", MEMBER(c.kv_cache_config.tokens_per_block), Range(1, 1024), kRestart,
     kNullable, "unset = 32, cuda 64"},
    {"kv_cache_config.enable_block_reuse", MEMBER(c.kv_cache_config.enable_block_reuse), Any(), kRestart,
     false, "share the blocks of equal prompt beginnings"},
    {"kv_cache_config.free_gpu_memory_fraction", MEMBER(c.kv_cache_config.free_gpu_memory_fraction),
     Range(0.01, 1), kRestart, false, "cuda: share of what the weights leave"},
    {"kv_cache_config.max_tokens", MEMBER(c.kv_cache_config.max_tokens), Range(1, 1e12), kRestart, kNullable,
     "size of the pool; unset, cpu: max_batch_size x max_seq_len, at most a quarter of RAM"},
    {"kv_cache_config.host_cache_size", MEMBER(c.kv_cache_config.host_cache_size), Range(0, 1e15), kRestart,
     false, "bytes for swapped-out sequences"},
    {"kv_cache_config.dtype", MEMBER(c.kv_cache_config.dtype), OneOf("auto, bf16"), kRestart, false,
     "auto = bf16"},
    {"cuda_graph_config.enable_padding", MEMBER(Graphs(c).enable_padding), Any(), kRestart, false,
     "pad decode steps to the next captured batch size"},
    {"cuda_graph_config.batch_sizes", MEMBER(Graphs(c).batch_sizes), Range(1, 4096), kRestart, kNullable,
     "ascending; unset = 1, 2, 4, 8, then by 8 up to max_batch_size"},
    {"cublaslt.tuning_file", MEMBER(c.cublaslt.tuning_file), Any(), kRestart, kNullable,
     "made by foredraft tune; unset = GEMM kernels of our own"},
    {"cpu.threads", MEMBER(c.cpu.threads), Range(1, 1024), kRestart, kNullable,
     "unset = cores / local ranks"},
    {"cpu.pin", MEMBER(c.cpu.pin), Any(), kRestart, kNullable, "threads to cores; unset = true if they fit"},
    {"speculative_config.decoding_type", MEMBER(Speculative(c).decoding_type), OneOf("MTP"), kRestart, false,
     "how drafts are made"},
    {"speculative_config.max_draft_len", MEMBER(Speculative(c).max_draft_len), Range(0, 7), kReload, false,
     "drafts per step; 0 at start = no MTP module loaded"},
    {"speculative_config.use_mtp_vanilla", MEMBER(Speculative(c).use_mtp_vanilla), Any(), kRestart, false,
     "a module per draft; false = Eagle on module 1"},
    {"speculative_config.use_relaxed_acceptance_for_thinking",
     MEMBER(Speculative(c).use_relaxed_acceptance_for_thinking), Any(), kReload, false,
     "accept likely drafts between the thinking tokens"},
    {"speculative_config.relaxed_topk", MEMBER(Speculative(c).relaxed_topk), Range(1, 64), kReload, false,
     "candidates beside the target's own token"},
    {"speculative_config.relaxed_delta", MEMBER(Speculative(c).relaxed_delta), Range(0, 1), kReload, false,
     "how much less probable than the first"},
    {"speculative_config.begin_thinking_phase_token", MEMBER(Speculative(c).begin_thinking_phase_token),
     Range(0, 1 << 22), kReload, kNullable, "unset = id of <think> in the tokenizer"},
    {"speculative_config.end_thinking_phase_token", MEMBER(Speculative(c).end_thinking_phase_token),
     Range(0, 1 << 22), kReload, kNullable, "unset = id of </think> in the tokenizer"},
    {"speculative_config.draft_policy", MEMBER(Speculative(c).draft_policy),
     OneOf("fixed, schedule, adaptive"), kReload, false, "how the draft length is chosen at each step"},
    {"speculative_config.draft_len_schedule", MEMBER(Speculative(c).draft_len_schedule), Range(0, 7), kReload,
     kNullable, "{bucket: draft_len}, for schedule: up to which bucket which draft_len"},
    {"speculative_config.forced_acceptance_length", MEMBER(Speculative(c).forced_acceptance_length),
     Range(1, 8), kReload, kNullable, "benchmarks only"},
    {"log.level", MEMBER(c.log.level), OneOf("debug, info, warning, error"), kReload, false,
     "least severe lines that are written"},
    {"log.format", MEMBER(c.log.format), OneOf("text, json"), kRestart, false, "of log lines"},
};
#undef MEMBER

constexpr std::string_view kAliases[][2] = {
    {"speculative_config.num_nextn_predict_layers", "speculative_config.max_draft_len"}};

std::string_view LastPart(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// Letters to insert, remove or replace to make `a` of `b`.
int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const ConfigField> ConfigFields() { return kFields; }

std::string_view ResolveAlias(std::string_view path) {
  for (const auto& [alias, target] : kAliases)
    if (path == alias) return target;
  return path;
}

const ConfigField* FindField(std::string_view path) {
  for (const ConfigField& field : kFields)
    if (field.path == ResolveAlias(path)) return &field;
  return nullptr;
}

bool IsBlock(std::string_view path) {
  const std::string prefix = std::string(path) + ".";
  return std::any_of(std::begin(kFields), std::end(kFields),
                     [&](const ConfigField& field) { return field.path.starts_with(prefix); });
}

bool IsOptionalBlock(std::string_view path) {
  return path == "cuda_graph_config" || path == "speculative_config";
}

bool BlockPresent(const Config& config, std::string_view path) {
  if (path == "cuda_graph_config") return config.cuda_graph_config.has_value();
  if (path == "speculative_config") return config.speculative_config.has_value();
  return true;
}

void SetBlockPresent(Config& config, std::string_view path, bool present) {
  if (path == "cuda_graph_config")
    config.cuda_graph_config = present ? std::optional<CudaGraphConfig>(CudaGraphConfig{}) : std::nullopt;
  if (path == "speculative_config")
    config.speculative_config =
        present ? std::optional<SpeculativeConfig>(SpeculativeConfig{}) : std::nullopt;
}

std::string NearestKey(std::string_view path, int* distance) {
  std::set<std::string> candidates;
  for (const ConfigField& field : kFields) {
    candidates.emplace(field.path);
    for (size_t dot = field.path.find('.'); dot != std::string_view::npos;
         dot = field.path.find('.', dot + 1))
      candidates.emplace(field.path.substr(0, dot));
  }
  std::string nearest;
  *distance = std::numeric_limits<int>::max();
  for (const std::string& candidate : candidates) {
    // Paths as a whole, or the last names alone: a key in the wrong block is one step away.
    const int whole = EditDistance(path, candidate);
    const int last = EditDistance(LastPart(path), LastPart(candidate)) + 1;
    if (std::min(whole, last) >= *distance) continue;
    *distance = std::min(whole, last);
    nearest = candidate;
  }
  return nearest;
}

std::string DescribeUnknownKey(std::string_view path) {
  int distance = 0;
  const std::string nearest = NearestKey(path, &distance);
  const bool same_block = path.substr(0, path.rfind('.') + 1) == nearest.substr(0, nearest.rfind('.') + 1);
  return absl::StrFormat("unknown key, nearest is %s", same_block ? std::string(LastPart(nearest)) : nearest);
}

}  // namespace foredraft
