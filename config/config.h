#pragma once

// The daemon's configuration as plain structs; docs/configuration.md says what each key means (names and
// meaning are TensorRT-LLM's where the block is named after it). Filled by config_reader from YAML,
// environment and --set; code below the daemon gets its own sub-struct, never the root.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"

namespace foredraft {

// Keys with a closed set of values, and how YAML spells them, in the order of the constants.
enum class Backend { kCpu, kCuda };
enum class LoadFormat { kAuto, kDummy };
enum class RestartPolicy { kExit, kGroup };
enum class KvDtype { kAuto, kBf16, kFp8 };
enum class AttentionProducts { kBf16, kFp8 };
enum class MoeInputs { kAuto, kNvfp4 };
enum class CpuInputs { kBf16, kInt8 };
enum class BlockReuseScope { kAll, kToken };
enum class DecodingType { kMtp, kDSpark, kEagle3 };
enum class DraftPolicyKind { kFixed, kSchedule, kAdaptive, kConfidence };
enum class LogFormat { kText, kJson };
enum class UnknownFields { kIgnore, kRefuse };
enum class CpuNuma { kAuto, kOff };
enum class CpuIsa { kAuto, kAmx, kAvx512, kAvx2, kPortable };

// clang-format off
constexpr auto EnumNames(Backend) { return std::to_array<const char*>({"cpu", "cuda"}); }
constexpr auto EnumNames(LoadFormat) { return std::to_array<const char*>({"auto", "dummy"}); }
constexpr auto EnumNames(RestartPolicy) { return std::to_array<const char*>({"exit", "group"}); }
constexpr auto EnumNames(KvDtype) { return std::to_array<const char*>({"auto", "bf16", "fp8"}); }
constexpr auto EnumNames(AttentionProducts) { return std::to_array<const char*>({"bf16", "fp8"}); }
constexpr auto EnumNames(CpuInputs) { return std::to_array<const char*>({"bf16", "int8"}); }
constexpr auto EnumNames(MoeInputs) { return std::to_array<const char*>({"auto", "nvfp4"}); }
constexpr auto EnumNames(BlockReuseScope) { return std::to_array<const char*>({"all", "token"}); }
constexpr auto EnumNames(DecodingType) { return std::to_array<const char*>({"MTP", "DSpark", "Eagle3"}); }
constexpr auto EnumNames(DraftPolicyKind) { return std::to_array<const char*>({"fixed", "schedule", "adaptive", "confidence"}); }
constexpr auto EnumNames(LogLevel) { return std::to_array<const char*>({"debug", "info", "warning", "error"}); }
constexpr auto EnumNames(LogFormat) { return std::to_array<const char*>({"text", "json"}); }
constexpr auto EnumNames(UnknownFields) { return std::to_array<const char*>({"ignore", "refuse"}); }
constexpr auto EnumNames(CpuNuma) { return std::to_array<const char*>({"auto", "off"}); }
constexpr auto EnumNames(CpuIsa) { return std::to_array<const char*>({"auto", "amx", "avx512", "avx2", "portable"}); }
// clang-format on

template <class Enum>
constexpr const char* NameOf(Enum value) {
  return EnumNames(value)[static_cast<size_t>(value)];
}

struct TlsConfig {
  std::string cert;  // PEM files; empty = no TLS
  std::string key;
  std::string client_ca;  // set = client certificates required on every RPC
};

struct AuthConfig {
  std::string tokens_file;  // empty = no tokens
};

// The value of server.admin_address that means: no admin listener.
inline constexpr char kNoListener[] = "none";

struct ServerConfig {
  std::string grpc_address = "127.0.0.1:50051";
  std::string admin_address;  // empty = HostResources::admin_address
  std::string metrics_address = "127.0.0.1:9464";
  std::string gateway_address;  // empty = gateways use grpc_address
  std::string http_address;     // empty = no OpenAI API
  std::vector<std::string> cors_origins;
  std::vector<std::string> http_hosts;
  std::vector<std::string> model_aliases;  // each may end with one *
  bool allow_insecure = false;
  UnknownFields unknown_fields = UnknownFields::kIgnore;
  int max_message_mib = 16;
  int max_connections = 4096;
  int max_streams_per_connection = 1024;
  int memory_quota_mib = 1024;
  int max_detokenize_ids = 1 << 17;
  int handshake_timeout_s = 20;
  double max_queue_share = 1;
  int priority_ageing_s = 30;
  int stream_keepalive_s = 15;  // 0 = never
  int tokenizer_threads = 0;    // 0 = a quarter of the CPUs, 1..8
  bool reflection = true;
  int drain_timeout_s = 30;
  AuthConfig auth;
  TlsConfig tls;
};

struct MetricsConfig {
  bool vllm_names = false;
  bool on_http = false;
};

// TLS of the port that workers dial; clients have a port of their own.
struct WorkerTlsConfig {
  std::string cert;  // PEM files; empty = server.tls.cert and key
  std::string key;
  std::string ca;  // signs the certificates of leader and workers; empty = server.tls.client_ca
};

struct ParallelConfig {
  int attention_dp = 1;
  int attention_tp = 1;
  int moe_ep = 1;
  int moe_tp = 1;
  std::string leader_address = "127.0.0.1:50052";
  std::string local_workers = "auto";  // auto, or a number: the ranks this host runs
  std::string interface = "lo";
  bool shared_memory = true;
  std::string token_file;  // the secret of workers that this host's daemon has not started
  int join_timeout_s = 10;
  int max_pending_connections = 64;
  WorkerTlsConfig tls;
  int step_timeout_s = 30;
  int heartbeat_timeout_s = 10;
  RestartPolicy restart = RestartPolicy::kExit;
  int max_restarts = 5;
  bool resume = true;

  // The number of all ranks. If there are several, each is a process.
  int world_size() const { return attention_dp * attention_tp; }
};

struct AttentionDpConfig {
  int batching_wait_iters = 10;
};

struct SchedulerConfig {
  std::string max_decode_pause_ms = "auto";  // auto: DefaultDecodePauseMs; else a number, 0 = no bound
};

struct KvCacheConfig {
  int tokens_per_block = 0;  // 0 = the backend's default: cpu 32, cuda 64
  bool enable_block_reuse = true;
  BlockReuseScope block_reuse_scope = BlockReuseScope::kAll;
  bool reuse_generated = false;
  double free_gpu_memory_fraction = 0.9;
  int64_t max_tokens = 0;  // 0 = max_batch_size x max_seq_len, at most a quarter of RAM (cpu)
  int64_t host_cache_size = int64_t{1} << 30;  // bytes
  KvDtype dtype = KvDtype::kAuto;
  AttentionProducts attention_products = AttentionProducts::kBf16;
};

struct MoeConfig {
  MoeInputs inputs = MoeInputs::kAuto;
};

struct CudaGraphConfig {
  bool enable_padding = true;
  std::vector<int> batch_sizes;  // empty = 1, 2, 4, 8, then by 8 up to max_batch_size
};

struct CublasLtConfig {
  std::string tuning_file;
};

struct CudaConfig {
  bool side_stream = false;
  bool pdl = true;
};

struct CpuConfig {
  int threads = 0;          // 0 = cores / local ranks
  std::optional<bool> pin;  // unset = true if the threads fit the cores
  CpuNuma numa = CpuNuma::kAuto;
  CpuIsa isa = CpuIsa::kAuto;
  CpuInputs inputs = CpuInputs::kBf16;
};

struct SpeculativeConfig {
  DecodingType decoding_type = DecodingType::kMtp;
  std::string speculative_model;              // Eagle3's checkpoint directory; empty without it
  std::vector<int> eagle3_layers_to_capture;  // from 0, read at their outputs; empty = the checkpoint's list
  int max_draft_len = 1;                      // 0..7
  bool use_mtp_vanilla = false;
  bool use_relaxed_acceptance_for_thinking = false;
  int relaxed_topk = 1;
  double relaxed_delta = 0;
  std::optional<int> begin_thinking_phase_token;  // unset = id of <think> in the tokenizer
  std::optional<int> end_thinking_phase_token;
  DraftPolicyKind draft_policy = DraftPolicyKind::kFixed;
  std::map<int, int> draft_len_schedule;
  std::optional<double> forced_acceptance_length;
};

// What structured output may cost (docs/structured-output.md). The keys up to max_mask_steps count work, so a
// request gets the same answer on every machine.
struct ConstraintsConfig {
  int max_source_kib = 256;
  int max_nodes = 200'000;
  int max_depth = 64;
  int max_configurations = 1024;
  int max_compile_steps = 2'000'000;
  int max_mask_steps = 50'000;
  int cache_mib = 256;
  int threads = 2;   // that make masks
  int max_live = 0;  // slots of a rank with a grammar; 0 = max_batch_size, at most 256

  bool operator==(const ConstraintsConfig&) const = default;
};

struct ThinkingConfig {
  std::string wind_down;  // text before the forced end of a thought
};

struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
};

struct Config {
  std::string model;              // required: HF checkpoint directory
  std::string served_model_name;  // empty = last part of model
  Backend backend = Backend::kCpu;
  LoadFormat load_format = LoadFormat::kAuto;
  int max_batch_size = 64;
  int max_num_tokens = 8192;
  int max_seq_len = 0;  // 0 = the model's, at most 4096
  int max_queue_size = 1024;
  int request_timeout_s = 600;
  bool enable_chunked_prefill = true;
  bool disable_overlap_scheduler = false;
  ServerConfig server;
  MetricsConfig metrics;
  ParallelConfig parallel;
  AttentionDpConfig attention_dp_config;
  SchedulerConfig scheduler;
  KvCacheConfig kv_cache_config;
  MoeConfig moe;
  std::optional<CudaGraphConfig> cuda_graph_config = CudaGraphConfig{};  // null = eager
  CublasLtConfig cublaslt;
  CudaConfig cuda;
  CpuConfig cpu;
  std::optional<SpeculativeConfig> speculative_config;                 // null = no drafts
  std::optional<ConstraintsConfig> constraints = ConstraintsConfig{};  // null = requests with one are refused
  ThinkingConfig thinking;
  LogConfig log;
};

// Whether steps may verify fewer rows than there are drafts. Ranks prepare such steps at the start.
inline bool CutsDrafts(const Config& config) {
  return config.speculative_config && config.speculative_config->max_draft_len > 0 &&
         config.speculative_config->draft_policy == DraftPolicyKind::kConfidence;
}

}  // namespace foredraft
