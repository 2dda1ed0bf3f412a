#include "config/config_fields.h"

#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace foredraft {
namespace {

// Users' files contain these names: add names, but rename none.
constexpr const char* kFixedKeys[] = {
    "model",
    "served_model_name",
    "backend",
    "load_format",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "max_queue_size",
    "request_timeout_s",
    "enable_chunked_prefill",
    "disable_overlap_scheduler",
    "server.grpc_address",
    "server.admin_address",
    "server.metrics_address",
    "server.gateway_address",
    "server.http_address",
    "server.cors_origins",
    "server.http_hosts",
    "server.model_aliases",
    "server.allow_insecure",
    "server.unknown_fields",
    "server.max_message_mib",
    "server.max_connections",
    "server.max_streams_per_connection",
    "server.memory_quota_mib",
    "server.max_detokenize_ids",
    "server.handshake_timeout_s",
    "server.max_queue_share",
    "server.priority_ageing_s",
    "server.stream_keepalive_s",
    "server.tokenizer_threads",
    "server.reflection",
    "server.drain_timeout_s",
    "server.auth.tokens_file",
    "server.tls.cert",
    "server.tls.key",
    "server.tls.client_ca",
    "metrics.vllm_names",
    "metrics.on_http",
    "parallel.attention_dp",
    "parallel.attention_tp",
    "parallel.moe_ep",
    "parallel.moe_tp",
    "parallel.leader_address",
    "parallel.local_workers",
    "parallel.interface",
    "parallel.shared_memory",
    "parallel.token_file",
    "parallel.join_timeout_s",
    "parallel.max_pending_connections",
    "parallel.tls.cert",
    "parallel.tls.key",
    "parallel.tls.ca",
    "parallel.step_timeout_s",
    "parallel.heartbeat_timeout_s",
    "parallel.restart",
    "parallel.max_restarts",
    "parallel.resume",
    "attention_dp_config.batching_wait_iters",
    "scheduler.max_decode_pause_ms",
    "kv_cache_config.tokens_per_block",
    "kv_cache_config.enable_block_reuse",
    "kv_cache_config.block_reuse_scope",
    "kv_cache_config.reuse_generated",
    "kv_cache_config.free_gpu_memory_fraction",
    "kv_cache_config.max_tokens",
    "kv_cache_config.host_cache_size",
    "kv_cache_config.dtype",
    "kv_cache_config.attention_products",
    "moe.inputs",
    "cuda_graph_config.enable_padding",
    "cuda_graph_config.batch_sizes",
    "cublaslt.tuning_file",
    "cuda.side_stream",
    "cuda.pdl",
    "cpu.threads",
    "cpu.pin",
    "cpu.numa",
    "cpu.isa",
    "cpu.inputs",
    "speculative_config.decoding_type",
    "speculative_config.speculative_model",
    "speculative_config.eagle3_layers_to_capture",
    "speculative_config.max_draft_len",
    "speculative_config.use_mtp_vanilla",
    "speculative_config.use_relaxed_acceptance_for_thinking",
    "speculative_config.relaxed_topk",
    "speculative_config.relaxed_delta",
    "speculative_config.begin_thinking_phase_token",
    "speculative_config.end_thinking_phase_token",
    "speculative_config.draft_policy",
    "speculative_config.draft_len_schedule",
    "speculative_config.forced_acceptance_length",
    "constraints.max_source_kib",
    "constraints.max_nodes",
    "constraints.max_depth",
    "constraints.max_configurations",
    "constraints.max_compile_steps",
    "constraints.max_mask_steps",
    "constraints.cache_mib",
    "constraints.threads",
    "constraints.max_live",
    "thinking.wind_down",
    "log.level",
    "log.format",
};

TEST(ConfigFields, KeepTheirNames) {
  std::vector<std::string> paths;
  for (const ConfigField& field : ConfigFields()) {
    paths.emplace_back(field.path);
    EXPECT_FALSE(field.help.empty()) << field.path;
  }
  EXPECT_EQ(paths, std::vector<std::string>(std::begin(kFixedKeys), std::end(kFixedKeys)));
}

}  // namespace
}  // namespace foredraft
