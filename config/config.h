#ifndef FOREDRAFT_CONFIG_CONFIG_H_
#define FOREDRAFT_CONFIG_CONFIG_H_

// The daemon's configuration as plain structs; names and meaning as in README.md's table (and TensorRT-LLM's
// where the block is named after it). Filled by config_reader from YAML, environment and --set; below main a
// part gets its own sub-struct, never the root.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace foredraft {

struct TlsConfig {
  std::string cert;  // PEM files; empty = no TLS
  std::string key;
  std::string client_ca;  // set = client certificates required on every RPC
};

struct ServerConfig {
  std::string grpc_address = "127.0.0.1:50051";
  std::string metrics_address = "127.0.0.1:9464";
  int max_message_mib = 16;
  bool reflection = true;
  int drain_timeout_s = 30;
  TlsConfig tls;
};

struct ParallelConfig {
  int attention_dp = 1;
  int moe_ep = 1;
  std::string leader_address = "127.0.0.1:50052";
  std::string local_workers = "auto";  // auto, or a number: the ranks this host runs
  std::string interface = "lo";
  int step_timeout_s = 30;
  int heartbeat_timeout_s = 10;
  std::string restart = "exit";  // exit, group
};

struct AttentionDpConfig {
  int batching_wait_iters = 10;
};

struct KvCacheConfig {
  int tokens_per_block = 0;  // 0 = the backend's default: cpu 32, cuda 64
  bool enable_block_reuse = true;
  double free_gpu_memory_fraction = 0.9;
  int64_t max_tokens = 0;  // 0 = max_batch_size x max_seq_len, at most a quarter of RAM (cpu)
  int64_t host_cache_size = int64_t{1} << 30;  // bytes
  std::string dtype = "auto";                  // auto, bf16
};

struct CudaGraphConfig {
  bool enable_padding = true;
  std::vector<int> batch_sizes;  // empty = 1, 2, 4, 8, then by 8 up to max_batch_size
};

struct CublasLtConfig {
  std::string tuning_file;
};

struct CpuConfig {
  int threads = 0;          // 0 = cores / local ranks
  std::optional<bool> pin;  // unset = true if the threads fit the cores
};

struct SpeculativeConfig {
  std::string decoding_type = "MTP";
  int max_draft_len = 1;  // 0..7
  bool use_mtp_vanilla = false;
  bool use_relaxed_acceptance_for_thinking = false;
  int relaxed_topk = 1;
  double relaxed_delta = 0;
  std::optional<int> begin_thinking_phase_token;  // unset = id of <think> in the tokenizer
  std::optional<int> end_thinking_phase_token;
  std::string draft_policy = "fixed";  // fixed, schedule, adaptive
  std::map<int, int> draft_len_schedule;
  std::optional<double> forced_acceptance_length;
};

struct LogConfig {
  std::string level = "info";   // debug, info, warning, error
  std::string format = "text";  // text, json
};

struct Config {
  std::string model;              // required: HF checkpoint directory
  std::string served_model_name;  // empty = last part of model
  std::string backend = "cpu";
  std::string load_format = "auto";  // auto, dummy
  int max_batch_size = 64;
  int max_num_tokens = 8192;
  int max_seq_len = 0;  // 0 = the model's, at most 4096
  int max_queue_size = 1024;
  int request_timeout_s = 600;
  bool enable_chunked_prefill = true;
  bool disable_overlap_scheduler = false;
  ServerConfig server;
  ParallelConfig parallel;
  AttentionDpConfig attention_dp_config;
  KvCacheConfig kv_cache_config;
  std::optional<CudaGraphConfig> cuda_graph_config = CudaGraphConfig{};  // null = eager
  CublasLtConfig cublaslt;
  CpuConfig cpu;
  std::optional<SpeculativeConfig> speculative_config;  // null = no drafts
  LogConfig log;
};

}  // namespace foredraft

#endif  // FOREDRAFT_CONFIG_CONFIG_H_
