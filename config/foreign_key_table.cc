// The table of TensorRT-LLM's keys. One row each, by block, in the order of its LLM API reference.

#include "config/foreign_keys.h"

namespace foredraft {
namespace {

constexpr ForeignUse kSame = ForeignUse::kSame;
constexpr ForeignUse kLogic = ForeignUse::kLogic;
constexpr ForeignUse kOnly = ForeignUse::kOnly;
constexpr ForeignUse kIgnored = ForeignUse::kIgnored;
constexpr ForeignUse kRefused = ForeignUse::kRefused;

constexpr ForeignKey kKeys[] = {
    // Ranks.
    {"tensor_parallel_size", kLogic, "parallel.attention_dp", "", ""},
    {"tp_size", kLogic, "parallel.attention_dp", "", ""},
    {"moe_expert_parallel_size", kLogic, "parallel.moe_ep", "", ""},
    {"ep_size", kLogic, "parallel.moe_ep", "", ""},
    {"enable_attention_dp", kLogic, "parallel.attention_dp", "", ""},
    {"pipeline_parallel_size", kOnly, "", "1", "foredraft has no pipeline of ranks: leave the key out"},
    {"pp_size", kOnly, "", "1", "foredraft has no pipeline of ranks: leave the key out"},
    {"context_parallel_size", kOnly, "", "1", "a sequence stays on one rank: leave the key out"},
    {"moe_tensor_parallel_size", kOnly, "", "1, -1, null",
     "a rank holds whole experts: leave the key out and write moe_expert_parallel_size"},
    {"moe_cluster_parallel_size", kOnly, "", "1, -1, null", "a rank holds whole experts: leave the key out"},
    {"enable_lm_head_tp_in_adp", kOnly, "", "false", "every rank has the whole head: leave the key out"},
    {"gpus_per_node", kIgnored, "", "", "parallel.local_workers says how many ranks this host starts"},
    {"allreduce_strategy", kIgnored, "", "", "no collective of foredraft adds, so there is no all-reduce"},
    {"attention_dp_config.enable_balance", kIgnored, "", "", "prompts are always levelled between ranks"},
    {"attention_dp_config.timeout_iters", kIgnored, "", "",
     "a prompt waits for others for at most attention_dp_config.batching_wait_iters iterations"},

    // Graphs.
    {"use_cuda_graph", kLogic, "cuda_graph_config", "", ""},
    {"cuda_graph_config.max_batch_size", kLogic, "cuda_graph_config.batch_sizes", "", ""},
    {"cuda_graph_max_batch_size", kLogic, "cuda_graph_config.batch_sizes", "", ""},
    {"cuda_graph_batch_sizes", kSame, "cuda_graph_config.batch_sizes", "", ""},
    {"cuda_graph_padding_enabled", kSame, "cuda_graph_config.enable_padding", "", ""},
    {"cuda_graph_config.mode", kOnly, "", "decode",
     "foredraft captures decode steps alone: leave the key out"},

    // Kernels.
    {"moe_backend", kIgnored, "", "", "foredraft has kernels of its own"},
    {"moe_config.backend", kIgnored, "", "", "foredraft has kernels of its own"},
    {"moe_config.max_num_tokens", kIgnored, "", "", "rows go through the experts in rounds of a fixed size"},
    {"moe_config.load_balancer", kOnly, "", "null", "experts have fixed ranks: leave the key out"},
    {"moe_config.disable_finalize_fusion", kIgnored, "", "", "foredraft has kernels of its own"},
    {"moe_config.use_low_precision_moe_combine", kOnly, "", "false",
     "experts are added in FP32, in a fixed order: leave the key out"},
    {"attn_backend", kIgnored, "", "", "foredraft has kernels of its own"},
    {"attention_backend", kIgnored, "", "", "foredraft has kernels of its own"},
    {"sampler_type", kIgnored, "", "", "foredraft has kernels of its own"},
    {"disable_flashinfer_sampling", kIgnored, "", "", "foredraft has kernels of its own"},
    {"nvfp4_gemm_config", kIgnored, "", "", "foredraft has kernels of its own"},
    {"torch_compile_config", kIgnored, "", "", "foredraft has no PyTorch"},
    {"torch_compile_enabled", kIgnored, "", "", "foredraft has no PyTorch"},
    {"enable_autotuner", kIgnored, "", "", "`foredraft tune` writes the file of cublaslt.tuning_file"},
    {"enable_min_latency", kIgnored, "", "", "kernels are chosen by the number of rows"},
    {"enable_piecewise_cuda_graph", kIgnored, "", "", "prefills run eagerly"},

    // KV cache.
    {"kv_cache_free_gpu_memory_fraction", kSame, "kv_cache_config.free_gpu_memory_fraction", "", ""},
    {"kv_cache_dtype", kSame, "kv_cache_config.dtype", "", ""},
    {"kv_cache_config.enable_partial_reuse", kIgnored, "", "", "whole blocks are reused"},
    {"kv_cache_config.copy_on_partial_reuse", kIgnored, "", "", "whole blocks are reused"},
    {"kv_cache_config.secondary_offload_min_priority", kIgnored, "", "",
     "sequences are swapped as a whole, by their priority"},
    {"kv_cache_config.onboard_blocks", kIgnored, "", "", "a swapped sequence always returns to the GPU"},
    {"kv_cache_config.event_buffer_max_size", kIgnored, "", "", "there are no cache events"},
    {"kv_cache_config.attention_dp_events_gather_period_ms", kIgnored, "", "", "there are no cache events"},
    {"kv_cache_config.cross_kv_cache_fraction", kOnly, "", "null",
     "the models have no cross attention: leave the key out"},
    {"kv_cache_config.use_uvm", kOnly, "", "false", "the cache is in the GPU's memory: leave the key out"},
    {"kv_cache_config.max_attention_window", kOnly, "", "null",
     "the models attend all positions: leave the key out and write max_seq_len"},
    {"kv_cache_config.sink_token_length", kOnly, "", "0, null",
     "the models attend all positions: leave the key out"},
    {"kv_cache_config.max_gpu_total_bytes", kOnly, "", "0",
     "write kv_cache_config.max_tokens; `foredraft info` prints the bytes of a token"},
    {"kv_cache_config.mamba_ssm_cache_dtype", kIgnored, "", "", "the models have no state-space layers"},

    // Scheduling.
    {"enable_overlap_scheduler", kLogic, "disable_overlap_scheduler", "", ""},
    {"stream_interval", kIgnored, "", "",
     "every step's tokens are sent; a slow reader gets several steps at once"},
    {"scheduler_config", kIgnored, "", "", "foredraft has one scheduler: admitted requests always finish"},
    {"batching_type", kIgnored, "", "", "batching is always in flight"},
    {"batch_wait_timeout_ms", kIgnored, "", "", "attention_dp_config.batching_wait_iters does this"},
    {"batch_wait_timeout_iters", kIgnored, "", "", "attention_dp_config.batching_wait_iters does this"},
    {"batch_wait_max_tokens_ratio", kIgnored, "", "", "attention_dp_config.batching_wait_iters does this"},
    {"max_beam_width", kOnly, "", "1", "foredraft has no beam search: leave the key out"},
    {"max_input_len", kRefused, "", "", "write max_seq_len, which bounds prompt plus output"},

    // Drafts.
    {"speculative_config.BEGIN_THINKING_PHASE_TOKEN", kSame, "speculative_config.begin_thinking_phase_token",
     "", ""},
    {"speculative_config.END_THINKING_PHASE_TOKEN", kSame, "speculative_config.end_thinking_phase_token", "",
     ""},
    {"speculative_config.mtp_eagle_one_model", kOnly, "", "true",
     "module 1 drafts inside the target's step: leave the key out"},
    {"speculative_config.allow_advanced_sampling", kIgnored, "", "",
     "every sampling parameter works with drafts"},
    {"speculative_config.speculative_model", kRefused, "", "",
     "the drafts come from the MTP modules of `model`: leave the key out"},
    {"speculative_config.speculative_model_dir", kRefused, "", "",
     "the drafts come from the MTP modules of `model`: leave the key out"},
    {"speculative_config.max_concurrency", kRefused, "", "",
     "write draft_policy: schedule and draft_len_schedule: {N: K}, with N this number and K max_draft_len"},
    {"speculative_config.acceptance_window", kRefused, "", "", "write draft_policy: adaptive"},
    {"speculative_config.acceptance_length_threshold", kRefused, "", "", "write draft_policy: adaptive"},
    {"speculative_config.acceptance_rate_window_size", kOnly, "", "0, null",
     "write draft_policy: adaptive, which also drafts again when drafts pay again"},
    {"speculative_config.acceptance_rate_threshold", kOnly, "", "0, 0.0, null",
     "write draft_policy: adaptive, which also drafts again when drafts pay again"},
    {"speculative_config.max_total_draft_tokens", kOnly, "", "null",
     "drafts are one sequence, not a tree: write max_draft_len"},
    {"speculative_config.use_dynamic_tree", kOnly, "", "false",
     "drafts are one sequence, not a tree: leave the key out"},
    {"speculative_config.dynamic_tree_max_topK", kOnly, "", "null",
     "drafts are one sequence, not a tree: leave the key out"},
    {"speculative_config.sa_config", kOnly, "", "null",
     "drafts come from the checkpoint's drafter alone: leave the key out"},
    {"speculative_config.use_rejection_sampling", kOnly, "", "false",
     "a draft is accepted where it is the token that sampling without drafts gives: leave the key out"},
    {"speculative_config.advanced_sampling_mode", kOnly, "", "full",
     "top_k and top_p of every request count: leave the key out"},
    {"speculative_config.enable_penalty", kIgnored, "", "", "every request may have penalties"},
    {"speculative_config.spec_dec_variant", kOnly, "", "1", "there is one variant: leave the key out"},
    {"speculative_config.load_format", kOnly, "", "null, auto",
     "the drafter's weights are loaded with the model's: leave the key out"},
    {"speculative_config.moe_backend", kIgnored, "", "", "foredraft has kernels of its own"},
    {"speculative_config.attention_backend", kIgnored, "", "", "foredraft has kernels of its own"},
    {"speculative_config.num_nextn_predict_layers_from_model_config", kIgnored, "", "",
     "the checkpoint's config.json says it"},
    {"speculative_config.mask_token_id", kOnly, "", "null",
     "the checkpoint's config.json has dspark_noise_token_id: leave the key out"},
    {"speculative_config.target_layer_ids", kOnly, "", "null",
     "the checkpoint's config.json has dspark_target_layer_ids: leave the key out"},
    {"speculative_config.block_size", kOnly, "", "null",
     "the checkpoint's config.json has dspark_block_size; for fewer drafts write max_draft_len"},
    {"speculative_config.markov_rank", kOnly, "", "null",
     "the checkpoint's config.json has dspark_markov_rank: leave the key out"},
    {"speculative_config.markov_head_type", kOnly, "", "null, vanilla",
     "foredraft has DeepSeek-V4's head: leave the key out"},

    // Model and process.
    {"trust_remote_code", kIgnored, "", "", "foredraft runs no code of a checkpoint"},
    {"dtype", kOnly, "", "auto, bfloat16", "activations are BF16: leave the key out"},
    {"quant_config", kRefused, "", "",
     "the checkpoint's config.json says how weights are quantised, kv_cache_config.dtype how the cache is"},
    {"tokenizer", kRefused, "", "", "the tokenizer is the checkpoint's tokenizer.json: leave the key out"},
    {"tokenizer_mode", kIgnored, "", "", "there is one tokenizer"},
    {"skip_tokenizer_init", kOnly, "", "false", "the tokenizer is needed: leave the key out"},
    {"revision", kRefused, "", "", "write the checkpoint's directory as `model`"},
    {"reasoning_parser", kIgnored, "", "",
     "the answer to a chat has its thinking apart, as the model's chat format says"},
    {"guided_decoding_backend", kOnly, "", "null", "foredraft has no guided decoding: leave the key out"},
    {"enable_lora", kOnly, "", "false", "foredraft has no LoRA: leave the key out"},
    {"lora_config", kOnly, "", "null", "foredraft has no LoRA: leave the key out"},
    {"cache_transceiver_config", kOnly, "", "null",
     "a request is prefilled and decoded by the same ranks: leave the key out"},
    {"host", kRefused, "", "", "write server.grpc_address: HOST:PORT"},
    {"hostname", kRefused, "", "", "write server.grpc_address: HOST:PORT"},
    {"port", kRefused, "", "", "write server.grpc_address: HOST:PORT"},
    {"num_postprocess_workers", kIgnored, "", "", "one thread detokenizes all streams"},
    {"orchestrator_type", kIgnored, "", "", "the daemon starts its workers itself"},

    // Observation.
    {"print_iter_log", kIgnored, "", "", "server.metrics_address has the times and sizes of all steps"},
    {"enable_iter_perf_stats", kIgnored, "", "", "server.metrics_address has them always"},
    {"enable_iter_req_stats", kIgnored, "", "", "server.metrics_address has them always"},
    {"iter_stats_max_iterations", kIgnored, "", "", "server.metrics_address has them always"},
    {"return_perf_metrics", kIgnored, "", "", "every response has its times"},
    {"perf_metrics_max_requests", kIgnored, "", "", "every response has its times"},
    {"enable_layerwise_nvtx_marker", kIgnored, "", "", "there are no NVTX markers"},
    {"garbage_collection_gen0_threshold", kIgnored, "", "", "foredraft has no Python"},
};

}  // namespace

std::span<const ForeignKey> ForeignKeys() { return kKeys; }

}  // namespace foredraft
