#include "config/config_fields.h"

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

constexpr ConfigRange Any() { return {}; }
constexpr ConfigRange Range(double low, double high) { return {ConfigRange::kNumber, low, high}; }
constexpr ConfigRange Bytes(double low, double high) { return {ConfigRange::kBytes, low, high}; }
constexpr ConfigRange Address() { return {ConfigRange::kAddress}; }
constexpr ConfigRange AddressOrNone() { return {ConfigRange::kAddressOrNone}; }
constexpr ConfigRange Path() { return {ConfigRange::kPath}; }

constexpr ConfigChange kRestart = ConfigChange::kRestart;
constexpr ConfigChange kReload = ConfigChange::kReload;

constexpr ConfigRanks kSame = ConfigRanks::kSame;
constexpr ConfigRanks kOwn = ConfigRanks::kOwn;
constexpr ConfigRanks kDaemon = ConfigRanks::kDaemon;

constexpr ConfigBits NoBits() { return {ConfigBits::kNone}; }
constexpr ConfigBits InClass(std::string (*part)(const Config&)) { return {ConfigBits::kClass, part}; }
constexpr ConfigBits InDevice() { return {ConfigBits::kDevice}; }
constexpr ConfigBits InModel() { return {ConfigBits::kModel}; }
constexpr ConfigBits InRule() { return {ConfigBits::kRule}; }

// Spelled as DTypeName (kernels/dtype.h) spells the dtype of the cache's rows.
std::string CacheDtype(const Config& c) {
  return c.kv_cache_config.dtype == KvDtype::kFp8 ? "kv F8_E4M3" : "kv BF16";
}

std::string AttentionProductsPart(const Config& c) {
  return c.kv_cache_config.attention_products == AttentionProducts::kFp8 ? "attention products F8_E4M3" : "";
}

std::string Int8InputsPart(const Config& c) { return c.cpu.inputs == CpuInputs::kInt8 ? "inputs INT8" : ""; }

std::string ExpertInputsPart(const Config& c) {
  return c.moe.inputs == MoeInputs::kNvfp4 ? "expert inputs NVFP4" : "";
}

std::string GeneratedReuse(const Config& c) {
  return c.kv_cache_config.reuse_generated ? "generated blocks reused" : "";
}

CudaGraphConfig& Graphs(Config& c) {
  if (!c.cuda_graph_config) c.cuda_graph_config.emplace();
  return *c.cuda_graph_config;
}

SpeculativeConfig& Speculative(Config& c) {
  if (!c.speculative_config) c.speculative_config.emplace();
  return *c.speculative_config;
}

ConstraintsConfig& Constraints(Config& c) {
  if (!c.constraints) c.constraints.emplace();
  return *c.constraints;
}

// A captureless lambda to a member: its return type picks the ConfigMember alternative.
#define MEMBER(expression) \
  [](Config & c) -> auto& { return expression; }

// No unset value: null is refused.
constexpr std::string_view kSet;

const ConfigField kFields[] = {
    {"model", MEMBER(c.model), Path(), kRestart, kOwn, InModel(), kSet,
     "Hugging Face checkpoint directory, or the name of a model that Hugging Face's tools have downloaded; "
     "with `load_format: dummy` a config.json is enough."},
    {"served_model_name", MEMBER(c.served_model_name), Any(), kRestart, kDaemon, NoBits(),
     "the last part of `model`", "Name of the model in the API and in metrics."},
    {"backend", MEMBER(c.backend), Any(), kRestart, kSame,
     InClass([](const Config& c) { return std::string(NameOf(c.backend)); }), kSet, "Device that computes."},
    {"load_format", MEMBER(c.load_format), Any(), kRestart, kSame, InModel(), kSet,
     "`auto` loads the checkpoint, `dummy` makes random weights in the shapes of its config.json."},
    {"max_batch_size", MEMBER(c.max_batch_size), Range(1, 4096), kRestart, kSame, NoBits(), kSet,
     "Decode slots per rank: how many sequences one decode step advances."},
    {"max_num_tokens", MEMBER(c.max_num_tokens), Range(1, 1 << 20), kRestart, kSame, NoBits(), kSet,
     "Prompt tokens that a rank prefills in one iteration, at most; fewer where they would take longer than "
     "a quarter of `parallel.step_timeout_s`."},
    {"max_seq_len", MEMBER(c.max_seq_len), Range(2, 1 << 22), kRestart, kSame, NoBits(),
     "the model's `max_position_embeddings`, at most 4096", "Longest prompt plus output, in tokens."},
    {"max_queue_size", MEMBER(c.max_queue_size), Range(1, 1 << 20), kReload, kDaemon, NoBits(), kSet,
     "Requests that wait for a slot. Further ones are refused with RESOURCE_EXHAUSTED."},
    {"request_timeout_s", MEMBER(c.request_timeout_s), Range(1, 604800), kReload, kDaemon, NoBits(), kSet,
     "Longest time from a request's arrival to its end, in seconds. A request may set an earlier deadline."},
    {"enable_chunked_prefill", MEMBER(c.enable_chunked_prefill), Any(), kRestart, kDaemon, NoBits(), kSet,
     "Spread prompts longer than `max_num_tokens` over several iterations. Without it `max_num_tokens` must "
     "be at least `max_seq_len`."},
    {"disable_overlap_scheduler", MEMBER(c.disable_overlap_scheduler), Any(), kRestart, kDaemon, NoBits(),
     kSet,
     "Plan an iteration only after the results of the one before it. Otherwise it is planned while that one "
     "runs, where this gains time."},
    {"server.grpc_address", MEMBER(c.server.grpc_address), Address(), kRestart, kDaemon, NoBits(), kSet,
     "Listener of the gRPC API. Off loopback it needs `tls.cert` and `key`, and to know its clients "
     "`auth.tokens_file` or `tls.client_ca`."},
    {"server.admin_address", MEMBER(c.server.admin_address), AddressOrNone(), kRestart, kDaemon, NoBits(),
     "`unix:$RUNTIME_DIRECTORY/admin.sock` under systemd (`/run/foredraft/admin.sock`), "
     "`unix:$XDG_RUNTIME_DIR/foredraft.sock` for a user, `none` where neither is set",
     "Listener of the RPCs that change things (`AdminService.Drain`, `ReloadConfig`). A unix socket is for "
     "its owner alone and needs no token. Off loopback it needs `tls.cert` and `key` and `auth.tokens_file`. "
     "`none`: no listener; SIGTERM drains and SIGHUP reloads."},
    {"server.metrics_address", MEMBER(c.server.metrics_address), Address(), kRestart, kDaemon, NoBits(), kSet,
     "HTTP listener of `/metrics`, `/healthz` (live) and `/readyz` (serves)."},
    {"server.gateway_address", MEMBER(c.server.gateway_address), Address(), kRestart, kDaemon, NoBits(),
     "on `grpc_address`",
     "Listener of its own for gateways (`vllm.grpc.engine.VllmEngine`), in plain text: for a daemon whose "
     "`grpc_address` has TLS."},
    {"server.http_address", MEMBER(c.server.http_address), Address(), kRestart, kDaemon, NoBits(), "none",
     "Listener of OpenAI's API over HTTP, with a page to try it at `/` ([clients.md](clients.md)); with the "
     "tokens, certificates and limits of `grpc_address`. Off loopback it needs what that needs."},
    {"server.cors_origins", MEMBER(c.server.cors_origins), Any(), kRestart, kDaemon, NoBits(), "none",
     "Origins whose pages a browser lets use `http_address`, like `[\"https://chat.example\"]`; `[\"*\"]` is "
     "every origin. Requests of pages of other origins are refused."},
    {"server.http_hosts", MEMBER(c.server.http_hosts), Any(), kRestart, kDaemon, NoBits(), "none",
     "Names of `http_address` and `metrics_address` beside `localhost` and IP addresses, like "
     "`[\"box.example\"]`, where they are on loopback and ask for no token: requests whose Host is another "
     "name are refused ([security.md](security.md))."},
    {"server.model_aliases", MEMBER(c.server.model_aliases), Any(), kRestart, kDaemon, NoBits(), "none",
     "Further names of the model in requests over HTTP, like `[\"gpt-4o\", \"claude-*\"]`; a `*` at the end "
     "stands for any text. Answers repeat the name of the request; `/v1/models` lists the model's own."},
    {"server.allow_insecure", MEMBER(c.server.allow_insecure), Any(), kRestart, kDaemon, NoBits(), kSet,
     "Accept listeners off loopback that are in plain text or do not ask who calls: whoever reaches them may "
     "do what they serve."},
    {"server.unknown_fields", MEMBER(c.server.unknown_fields), Any(), kReload, kDaemon, NoBits(), kSet,
     "Fields of requests over HTTP that no table of [client-fields.md](client-fields.md) has: `ignore` names "
     "them in the answer's header `x-foredraft-ignored`, `refuse` answers 400 with the nearest name."},
    {"server.max_message_mib", MEMBER(c.server.max_message_mib), Range(1, 1024), kRestart, kDaemon, NoBits(),
     kSet, "Largest gRPC message and HTTP body that is accepted, in MiB."},
    {"server.max_connections", MEMBER(c.server.max_connections), Range(1, 1 << 20), kRestart, kDaemon,
     NoBits(), kSet,
     "Connections to `grpc_address`, `gateway_address` and `http_address` together. Further ones take the "
     "place of gRPC connections without an admitted call, or are closed at once. Of those to `http_address` "
     "at most half, and a quarter from one address, may wait for their client; then the one that has waited "
     "longest is closed. Lowered where the limit of descriptors (`ulimit -n`) leaves fewer."},
    {"server.max_streams_per_connection", MEMBER(c.server.max_streams_per_connection), Range(1, 1 << 20),
     kRestart, kDaemon, NoBits(), kSet,
     "RPCs that one connection may have open; further ones wait in the client."},
    {"server.memory_quota_mib", MEMBER(c.server.memory_quota_mib), Range(64, 1 << 20), kRestart, kDaemon,
     NoBits(), kSet,
     "Memory for the messages of all gRPC connections, in MiB, and as much for HTTP bodies; beyond it "
     "connections wait or are closed."},
    {"server.max_detokenize_ids", MEMBER(c.server.max_detokenize_ids), Range(1, 1 << 24), kRestart, kDaemon,
     NoBits(), kSet,
     "Most token ids of a Detokenize request, and of what /tokenize gives where the context has no more."},
    {"server.handshake_timeout_s", MEMBER(c.server.handshake_timeout_s), Range(1, 3600), kRestart, kDaemon,
     NoBits(), kSet,
     "A connection that has not finished TLS's and HTTP/2's handshakes after this many seconds is closed."},
    {"server.max_queue_share", MEMBER(c.server.max_queue_share), Range(0.001, 1), kRestart, kDaemon, NoBits(),
     kSet,
     "Share of `max_queue_size` that the requests of one client without a token of output so far may take; "
     "its further ones are refused with RESOURCE_EXHAUSTED. A client is a token's name, else an IP address, "
     "so a gateway is one client. 1: no cap."},
    {"server.priority_ageing_s", MEMBER(c.server.priority_ageing_s), Range(0, 86400), kRestart, kDaemon,
     NoBits(), kSet,
     "A request that has waited this many seconds longer goes before one whose priority is higher by one. "
     "Priorities are -100 to 100, so none waits for requests that came more than 200 times this long after "
     "it. 0: a higher priority always goes first, and there is no such bound."},
    {"server.stream_keepalive_s", MEMBER(c.server.stream_keepalive_s), Range(0, 3600), kRestart, kDaemon,
     NoBits(), kSet,
     "A stream over HTTP that has nothing to send for this many seconds begins all the same, and sends an "
     "event without content, so that clients and proxies do not take it for dead. 0: never."},
    {"server.tokenizer_threads", MEMBER(c.server.tokenizer_threads), Range(1, 64), kRestart, kDaemon,
     NoBits(), "a quarter of the CPUs, 1 to 8",
     "Threads that tokenize inputs of more than 4 KiB, and compile what requests ask of their outputs; "
     "smaller inputs are tokenized where they arrive. Up to `max_queue_size` inputs wait for them, and "
     "clients take turns."},
    {"server.reflection", MEMBER(c.server.reflection), Any(), kRestart, kDaemon, NoBits(), kSet,
     "Serve gRPC reflection."},
    {"server.drain_timeout_s", MEMBER(c.server.drain_timeout_s), Range(0, 86400), kReload, kDaemon, NoBits(),
     kSet, "How long requests may go on after SIGTERM, in seconds; then they are cancelled."},
    {"server.auth.tokens_file", MEMBER(c.server.auth.tokens_file), Path(), kRestart, kDaemon, NoBits(),
     "no tokens",
     "File with a line per bearer token: role (`api`, `admin`, `metrics`), name, SHA-256 in hex; `foredraft "
     "token` makes one. Where set, callers need a token ([security.md](security.md)). Read again on SIGHUP "
     "and when it changes."},
    {"server.tls.cert", MEMBER(c.server.tls.cert), Path(), kRestart, kOwn, NoBits(), "no TLS",
     "PEM file with the certificate of the server. The three files are read again on SIGHUP and when they "
     "change."},
    {"server.tls.key", MEMBER(c.server.tls.key), Path(), kRestart, kOwn, NoBits(), "no TLS",
     "PEM file with its private key."},
    {"server.tls.client_ca", MEMBER(c.server.tls.client_ca), Path(), kRestart, kOwn, NoBits(),
     "clients need no certificate",
     "PEM file of the authority that signs client certificates. Where set, every RPC needs one."},
    {"metrics.vllm_names", MEMBER(c.metrics.vllm_names), Any(), kRestart, kDaemon, NoBits(), kSet,
     "Serve the metrics that vLLM has under vLLM's names too ([metrics.md](metrics.md))."},
    {"metrics.on_http", MEMBER(c.metrics.on_http), Any(), kRestart, kDaemon, NoBits(), kSet,
     "Serve `/metrics` on `server.http_address` too, to callers with a token of the API."},
    {"parallel.attention_dp", MEMBER(c.parallel.attention_dp), Range(1, 8), kRestart, kSame, NoBits(), kSet,
     "Groups of ranks that requests are spread over: 1, 2, 4 or 8."},
    {"parallel.attention_tp", MEMBER(c.parallel.attention_tp), Range(1, 8), kRestart, kSame, NoBits(), kSet,
     "Ranks of a group, which share the heads of each of its requests: 1, 2, 4 or 8."},
    {"parallel.moe_ep", MEMBER(c.parallel.moe_ep), Range(1, 8), kRestart, kSame, NoBits(), kSet,
     "Groups of ranks that experts are spread over; `moe_ep` times `moe_tp` is `attention_dp` times "
     "`attention_tp`."},
    {"parallel.moe_tp", MEMBER(c.parallel.moe_tp), Range(1, 8), kRestart, kSame, NoBits(), kSet,
     "Ranks that share the columns of each expert, where all share the requests: 1, 2, 4 or 8."},
    {"parallel.leader_address", MEMBER(c.parallel.leader_address), Address(), kRestart, kDaemon, NoBits(),
     kSet,
     "Listener of the daemon for its workers. Off loopback both ends need certificates: `parallel.tls`, or "
     "`server.tls` with all three files."},
    {"parallel.local_workers", MEMBER(c.parallel.local_workers), Any(), kRestart, kOwn, NoBits(), kSet,
     "Ranks that `serve` starts on its own host, from rank 0 up: `auto` (all of them) or a number. The "
     "others are started with `foredraft worker`, and prove that they belong to the group by `token_file`, "
     "`parallel.tls.ca` or both."},
    {"parallel.interface", MEMBER(c.parallel.interface), Any(), kRestart, kOwn, NoBits(), kSet,
     "Network interface that carries tensors between ranks, unencrypted."},
    {"parallel.shared_memory", MEMBER(c.parallel.shared_memory), Any(), kRestart, kSame, NoBits(), kSet,
     "Ranks of one host exchange a step's rows through memory that they share: on CPUs all of them, on GPUs "
     "that reach each other's memory those of few rows. `false`: over `parallel.interface`, or by NCCL."},
    {"parallel.token_file", MEMBER(c.parallel.token_file), Path(), kRestart, kOwn, NoBits(), "no token",
     "File with the secret of workers started by `foredraft worker`, one line of at least 32 characters, the "
     "same for the daemon and its workers. The workers that `serve` starts have a secret of their own. The "
     "daemon reads the file again on SIGHUP and when it changes."},
    {"parallel.join_timeout_s", MEMBER(c.parallel.join_timeout_s), Range(1, 600), kRestart, kDaemon, NoBits(),
     kSet,
     "A connection to `leader_address` that has not joined the group after this many seconds is closed."},
    {"parallel.max_pending_connections", MEMBER(c.parallel.max_pending_connections), Range(1, 4096), kRestart,
     kDaemon, NoBits(), kSet,
     "Connections to `leader_address` that have not joined as a worker. When one more comes, one of these is "
     "closed: any of the address that has the most. Lowered to a sixteenth of the limit of descriptors "
     "(`ulimit -n`)."},
    {"parallel.tls.cert", MEMBER(c.parallel.tls.cert), Path(), kRestart, kOwn, NoBits(), "`server.tls.cert`",
     "PEM file with the certificate of the daemon towards its workers, or of the worker. The daemon reads "
     "the three files again on SIGHUP and when they change; a worker reads them when it starts."},
    {"parallel.tls.key", MEMBER(c.parallel.tls.key), Path(), kRestart, kOwn, NoBits(), "`server.tls.key`",
     "PEM file with its private key."},
    {"parallel.tls.ca", MEMBER(c.parallel.tls.ca), Path(), kRestart, kOwn, NoBits(), "`server.tls.client_ca`",
     "PEM file of the authority that signs these certificates, and no client's: without a `token_file` every "
     "certificate that it has signed may join as a rank."},
    {"parallel.step_timeout_s", MEMBER(c.parallel.step_timeout_s), Range(1, 3600), kRestart, kOwn, NoBits(),
     kSet, "A rank is lost when the result of a step has not come after this many seconds."},
    {"parallel.heartbeat_timeout_s", MEMBER(c.parallel.heartbeat_timeout_s), Range(1, 3600), kRestart, kOwn,
     NoBits(), kSet, "A worker, or the daemon to its workers, is lost after this many seconds of silence."},
    {"parallel.restart", MEMBER(c.parallel.restart), Any(), kRestart, kDaemon, NoBits(), kSet,
     "After a lost rank `exit` ends the daemon, `group` starts all ranks again."},
    {"parallel.max_restarts", MEMBER(c.parallel.max_restarts), Range(0, 1 << 20), kRestart, kDaemon, NoBits(),
     kSet,
     "With `restart: group`: how often all ranks start again within ten minutes; the next loss ends the "
     "daemon."},
    {"parallel.resume", MEMBER(c.parallel.resume), Any(), kRestart, kDaemon, NoBits(), kSet,
     "With `restart: group`: streams stay open while the ranks start again, and go on with the same tokens. "
     "Otherwise they end with UNAVAILABLE."},
    {"attention_dp_config.batching_wait_iters", MEMBER(c.attention_dp_config.batching_wait_iters),
     Range(0, 1 << 20), kRestart, kDaemon, NoBits(), kSet,
     "Iterations that an admitted prompt waits for others while decode steps run: one prefill for several "
     "prompts reads the weights once."},
    {"scheduler.max_decode_pause_ms", MEMBER(c.scheduler.max_decode_pause_ms), Any(), kRestart, kDaemon,
     NoBits(), kSet,
     "How long an iteration's prompt tokens may hold up streams that decode, in milliseconds, judged by the "
     "iterations before: `auto` (500 with `backend: cpu`, 200 with `cuda`), a number, or 0 for no bound. 64 "
     "tokens are always allowed: fewer take as long. Needs `enable_chunked_prefill`."},
    {"kv_cache_config.tokens_per_block", MEMBER(c.kv_cache_config.tokens_per_block), Range(1, 1024), kRestart,
     kSame, NoBits(), "32 with `backend: cpu`, 64 with `cuda`", "Tokens in a block of the KV cache."},
    {"kv_cache_config.enable_block_reuse", MEMBER(c.kv_cache_config.enable_block_reuse), Any(), kRestart,
     kDaemon, NoBits(), kSet, "Share the blocks of equal prompt prefixes between requests."},
    {"kv_cache_config.block_reuse_scope", MEMBER(c.kv_cache_config.block_reuse_scope), Any(), kRestart,
     kDaemon, NoBits(), kSet,
     "Whose prompts may share blocks: `all` or `token`, only those of the same token's name "
     "([security.md](security.md), section 3). With `all`, `cached_tokens` and the time to the first token "
     "tell a client whether somebody sent a prompt that begins like its own."},
    {"kv_cache_config.reuse_generated", MEMBER(c.kv_cache_config.reuse_generated), Any(), kRestart, kSame,
     InClass(GeneratedReuse), kSet,
     "Share blocks with generated tokens, too: the next turn of a conversation finds the answer before it. "
     "Tokens then depend on which blocks were cached ([invariants.md](invariants.md), section 3). Needs "
     "`enable_block_reuse`."},
    {"kv_cache_config.free_gpu_memory_fraction", MEMBER(c.kv_cache_config.free_gpu_memory_fraction),
     Range(0.01, 1), kRestart, kOwn, NoBits(), kSet,
     "With `backend: cuda` and no `max_tokens`: the cache's share of the memory that weights and workspaces "
     "leave."},
    {"kv_cache_config.max_tokens", MEMBER(c.kv_cache_config.max_tokens), Range(1, 1e12), kRestart, kSame,
     NoBits(),
     "`backend: cpu`: `max_batch_size` x `max_seq_len`, at most a quarter of RAM shared by the ranks of the "
     "host, less the windows of `max_batch_size` sequences of DeepSeek-V4; `cuda`: what "
     "`free_gpu_memory_fraction` allows",
     "Tokens that the KV cache of a rank holds; what drafts need beyond a sequence comes on top."},
    {"kv_cache_config.host_cache_size", MEMBER(c.kv_cache_config.host_cache_size), Bytes(0, 1e15), kRestart,
     kSame, NoBits(), kSet,
     "Host memory for swapped-out sequences, in bytes per rank; allocated at the start, page-locked on a "
     "GPU."},
    {"kv_cache_config.dtype", MEMBER(c.kv_cache_config.dtype), Any(), kRestart, kSame, InClass(CacheDtype),
     kSet,
     "Element type of the KV cache; `auto` is bf16. `fp8` holds the latents in E4M3 with a scale per 128 "
     "columns, and the RoPE part in BF16: for 512 + 64 columns 656 bytes instead of 1,152. DeepSeek-V4's "
     "keys and compressed entries have a scale per 64 columns: for 448 + 64 columns 608 bytes instead of "
     "1,024. Tokens are not those of bf16. Attention multiplies in BF16 all the same, see "
     "`attention_products`."},
    {"kv_cache_config.attention_products", MEMBER(c.kv_cache_config.attention_products), Any(), kRestart,
     kSame, InClass(AttentionProductsPart), kSet,
     "What attention of generated tokens multiplies: bf16, or with `dtype: fp8` the E4M3 codes of the cache, "
     "by queries and softmax weights that are rounded to E4M3 ([invariants.md](invariants.md), section "
     "3). Tokens are not those of bf16."},
    {"moe.inputs", MEMBER(c.moe.inputs), Any(), kRestart, kSame, InClass(ExpertInputsPart), kSet,
     "What products of routed experts read: `auto`, what the weights' format asks for, BF16 with NVFP4; or "
     "with an NVFP4 checkpoint that has scales of inputs `nvfp4`: rows rounded to 4 bits, as GPUs with FP4 "
     "products need them (W4A4; [deepseek-v3.md](deepseek-v3.md), section 4). Between ranks such rows take "
     "0.28 of the bytes. Tokens are not those of auto."},
    {"cuda_graph_config.enable_padding", MEMBER(Graphs(c).enable_padding), Any(), kRestart, kSame, NoBits(),
     kSet,
     "true pads a decode step to the next of `batch_sizes` and replays its graph. false replays the graphs "
     "of exact sizes and runs steps of other sizes eagerly; on a GPU each size then runs once at the start."},
    {"cuda_graph_config.batch_sizes", MEMBER(Graphs(c).batch_sizes), Range(1, 4096), kRestart, kSame,
     NoBits(), "1, 2, 4, 8, then every 8 up to `max_batch_size`",
     "Batch sizes of decode steps that have graphs, at most `max_batch_size`, which is always one of them."},
    {"cublaslt.tuning_file", MEMBER(c.cublaslt.tuning_file), Path(), kRestart, kOwn, InDevice(),
     "the backend's own GEMM kernels", "File that `foredraft tune` wrote: a cuBLASLt algorithm per GEMM."},
    {"cuda.side_stream", MEMBER(c.cuda.side_stream), Any(), kRestart, kOwn, NoBits(), kSet,
     "Run the shared expert on a second stream, beside the routed ones. The fork and the join keep kernels "
     "from starting early, so measure both."},
    {"cuda.pdl", MEMBER(c.cuda.pdl), Any(), kRestart, kOwn, NoBits(), kSet,
     "Programmatic dependent launches: a kernel starts while the one before it ends. Of GPUs from compute "
     "capability 9.0 on; false is for measuring what they bring (TensorRT-LLM's `TRTLLM_ENABLE_PDL=0`)."},
    {"cpu.threads", MEMBER(c.cpu.threads), Range(1, 1024), kRestart, kOwn, NoBits(),
     "cores / ranks of the host", "Threads of a rank."},
    {"cpu.pin", MEMBER(c.cpu.pin), Any(), kRestart, kOwn, NoBits(),
     "true for a single rank whose threads fit the cores", "Pin each thread to a core."},
    {"cpu.numa", MEMBER(c.cpu.numa), Any(), kRestart, kOwn, NoBits(), kSet,
     "`auto`: on a machine with several NUMA nodes (sockets), threads keep to a node, and every weight is "
     "cut over the memory of all nodes, so that each thread reads its own node's. `off`: memory lies where "
     "it is first touched. Without effect on one node, and where ranks share a host."},
    {"cpu.isa", MEMBER(c.cpu.isa), Any(), kRestart, kOwn, InDevice(), kSet,
     "Instruction path of the kernels; `auto` is the widest that the CPU supports: `amx` (AVX-512 with AMX's "
     "BF16 tiles), `avx512` (with BF16 and VBMI), `avx2` (with FMA), `portable`. Each rounds in its own "
     "order, so it is part of the numerics class."},
    {"cpu.inputs", MEMBER(c.cpu.inputs), Any(), kRestart, kSame, InClass(Int8InputsPart), kSet,
     "What products with weights of 4-bit codes (INT4, MXFP4, NVFP4) read: bf16, or with `int8` rows rounded "
     "to 8 bits in the weight's groups, which the CPU multiplies two to three times as fast "
     "([cpu-server.md](cpu-server.md), section 5). Tokens are not those of bf16."},
    {"speculative_config.decoding_type", MEMBER(Speculative(c).decoding_type), Any(), kRestart, kSame,
     NoBits(), kSet,
     "Source of the drafts: the model's MTP modules; the DSpark stages of DeepSeek-V4's checkpoints since "
     "June 2026, with `max_draft_len` at most `dspark_block_size`; or an Eagle3 head with MLA in a "
     "checkpoint of its own, `speculative_model` ([eagle3.md](eagle3.md))."},
    {"speculative_config.speculative_model", MEMBER(Speculative(c).speculative_model), Path(), kRestart, kOwn,
     NoBits(), "no head",
     "With `decoding_type: Eagle3`: the head's checkpoint directory. With `load_format: dummy` its "
     "config.json is enough."},
    {"speculative_config.eagle3_layers_to_capture", MEMBER(Speculative(c).eagle3_layers_to_capture),
     Range(0, 1023), kRestart, kSame, NoBits(), "the layers that the head's config.json names",
     "With `decoding_type: Eagle3`: the target's layers whose outputs the head reads, from 0, ascending."},
    {"speculative_config.max_draft_len", MEMBER(Speculative(c).max_draft_len), Range(0, 7), kReload, kSame,
     NoBits(), kSet,
     "K, the most drafts per step. A reload may lower it and raise it up to its value at the start; 0 at the "
     "start loads no MTP module. Alias: `num_nextn_predict_layers`."},
    {"speculative_config.use_mtp_vanilla", MEMBER(Speculative(c).use_mtp_vanilla), Any(), kRestart, kSame,
     NoBits(), kSet,
     "false is Eagle: MTP module 1 makes every draft. true is Vanilla: a module per draft, so "
     "`max_draft_len` is at most the number of modules."},
    {"speculative_config.use_relaxed_acceptance_for_thinking",
     MEMBER(Speculative(c).use_relaxed_acceptance_for_thinking), Any(), kReload, kDaemon, InRule(), kSet,
     "While the model thinks, greedy requests accept drafts that are merely likely. Tokens then depend on "
     "drafts."},
    {"speculative_config.relaxed_topk", MEMBER(Speculative(c).relaxed_topk), Range(1, 64), kReload, kDaemon,
     InRule(), kSet, "Relaxed acceptance: a draft must be among this many most probable tokens."},
    {"speculative_config.relaxed_delta", MEMBER(Speculative(c).relaxed_delta), Range(0, 1), kReload, kDaemon,
     InRule(), kSet,
     "Relaxed acceptance: how much less probable than the most probable token a draft may be."},
    {"speculative_config.begin_thinking_phase_token", MEMBER(Speculative(c).begin_thinking_phase_token),
     Range(0, 1 << 22), kReload, kDaemon, InRule(), "the id of `<think>` in the tokenizer",
     "Id of the token that begins the thinking phase."},
    {"speculative_config.end_thinking_phase_token", MEMBER(Speculative(c).end_thinking_phase_token),
     Range(0, 1 << 22), kReload, kDaemon, InRule(), "the id of `</think>` in the tokenizer",
     "Id of the token that ends the thinking phase."},
    {"speculative_config.draft_policy", MEMBER(Speculative(c).draft_policy), Any(), kReload, kSame, NoBits(),
     kSet,
     "How K is chosen at each step: `fixed` takes `max_draft_len`, `schedule` takes it from "
     "`draft_len_schedule`, `adaptive` measures step times and acceptance. `confidence`, with "
     "`decoding_type: DSpark`, also verifies only the drafts that the drafter is confident enough of; a "
     "reload may leave it, and return to it where it was the policy at the start. K never exceeds the "
     "largest `max_draft_tokens` of the requests in the step."},
    {"speculative_config.draft_len_schedule", MEMBER(Speculative(c).draft_len_schedule), Range(0, 7), kReload,
     kDaemon, NoBits(), "no schedule",
     "`{4: 3, 16: 2}`: K is 3 up to batch size 4, 2 up to 16, and 0 above. Required by `draft_policy: "
     "schedule`."},
    {"speculative_config.forced_acceptance_length", MEMBER(Speculative(c).forced_acceptance_length),
     Range(1, 8), kReload, kDaemon, InRule(), "not forced",
     "For benchmarks: steps emit this many tokens on average, whatever the model says. The text is then not "
     "the model's."},
    {"constraints.max_source_kib", MEMBER(Constraints(c).max_source_kib), Range(1, 16384), kReload, kDaemon,
     NoBits(), kSet, "Most KiB of a schema, expression, grammar or structural tag."},
    {"constraints.max_nodes", MEMBER(Constraints(c).max_nodes), Range(1000, 10'000'000), kReload, kDaemon,
     NoBits(), kSet, "Most nodes of a constraint's intermediate form."},
    {"constraints.max_depth", MEMBER(Constraints(c).max_depth), Range(1, 256), kReload, kDaemon, NoBits(),
     kSet, "Most objects and arrays that an output may have open at once, and nesting of what asks for it."},
    {"constraints.max_configurations", MEMBER(Constraints(c).max_configurations), Range(16, 65536), kReload,
     kDaemon, NoBits(), kSet,
     "Most places in a grammar that one output may be at, where it is ambiguous. An output that goes beyond "
     "ends with RESOURCE_EXHAUSTED."},
    {"constraints.max_compile_steps", MEMBER(Constraints(c).max_compile_steps), Range(10'000, 1e9), kReload,
     kDaemon, NoBits(), kSet, "Most steps to compile a constraint; ten million take about a second."},
    {"constraints.max_mask_steps", MEMBER(Constraints(c).max_mask_steps), Range(10'000, 1e9), kReload,
     kDaemon, NoBits(), kSet,
     "Most steps for the mask of one token, and for taking one; twenty million take about a second. An "
     "output that needs more ends with RESOURCE_EXHAUSTED."},
    {"constraints.cache_mib", MEMBER(Constraints(c).cache_mib), Range(8, 65536), kReload, kDaemon, NoBits(),
     kSet,
     "Memory for compiled constraints with their states and masks, in MiB. The least recently used ones go "
     "first."},
    {"constraints.threads", MEMBER(Constraints(c).threads), Range(1, 64), kRestart, kDaemon, NoBits(), kSet,
     "Threads of the daemon that make the masks of a step."},
    {"constraints.max_live", MEMBER(Constraints(c).max_live), Range(1, 4096), kRestart, kSame, NoBits(),
     "`max_batch_size`, at most 256",
     "Slots of a rank whose requests may have a constraint at once; further ones wait in the queue."},
    {"thinking.wind_down", MEMBER(c.thinking.wind_down), Any(), kRestart, kDaemon, InRule(), "none",
     "Text that a thought ends with whose `thinking_token_budget` is spent, in front of the token that ends "
     "it: at most 31 tokens, which are part of the budget."},
    {"log.level", MEMBER(c.log.level), Any(), kReload, kOwn, NoBits(), kSet,
     "Least severe level that is written; of `debug` see [operations.md](operations.md), section 4."},
    {"log.format", MEMBER(c.log.format), Any(), kRestart, kOwn, NoBits(), kSet,
     "Plain lines or JSON lines, on stderr."},
};
#undef MEMBER

const ConfigBlock kBlocks[] = {
    {"server", "Listeners and their limits."},
    {"server.auth", "Who may call."},
    {"server.tls",
     "TLS of the gRPC listeners and, where `parallel.tls` has no files, of the port that workers dial."},
    {"metrics", "What the page of metrics has."},
    {"parallel", "Ranks: processes with a device each, which share the experts."},
    {"parallel.tls", "TLS of the port that workers dial."},
    {"attention_dp_config", "How requests are spread over ranks."},
    {"scheduler", "How prompts and streams share the time."},
    {"kv_cache_config", "The paged KV cache."},
    {"moe", "Mixture of experts."},
    {"cuda_graph_config", "Graphs of decode steps, on either backend. `null` runs every step eagerly.", true},
    {"cublaslt", "GEMMs of backend cuda."},
    {"cuda", "Streams of backend cuda."},
    {"cpu", "Threads and instructions of backend cpu."},
    {"speculative_config", "Drafting. `null`, the default, runs without drafts.", true},
    {"constraints",
     "Structured output ([structured-output.md](structured-output.md)). `null` refuses every request that "
     "asks for it; a reload may turn it off and on again where it was on at the start.",
     true},
    {"thinking", "Thoughts of models that think."},
    {"log", "The log of the process."},
};

}  // namespace

std::span<const ConfigField> ConfigFields() { return kFields; }
std::span<const ConfigBlock> ConfigBlocks() { return kBlocks; }

}  // namespace foredraft
