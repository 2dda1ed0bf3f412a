#include "server/cli/explain_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/grouped_digits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "config/config_defaults.h"
#include "engine/checkpoint/dummy_weights.h"
#include "engine/checkpoint/model_shard.h"
#include "engine/kinds/drafter_kinds.h"
#include "engine/memory_estimate.h"
#include "engine/model/draft_head.h"
#include "ranks/engine_setup.h"

namespace foredraft {
namespace {

class Table {
 public:
  void Line(const std::string& text) { absl::StrAppend(&text_, text.empty() ? "#" : "# ", text, "\n"); }
  void Row(const std::string& name, int64_t bytes, const std::string& what) {
    const bool large = bytes >= (int64_t{1} << 30) / 10;
    Line(absl::StrFormat("  %-12s%10.2f %s   %s", name,
                         static_cast<double>(bytes) / (large ? 1 << 30 : 1 << 20), large ? "GiB" : "MiB",
                         what));
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string WeightsText(const Config& config, const ModelConfig& model) {
  const int modules = DrafterRequirementsOf(config, model).module_count;
  const ExpertShard experts = ModelShard{.layout = EngineOptionsOf(config, model).layout}.experts();
  const std::string what = model.drafter.empty() ? " MTP module" : absl::StrCat(" ", model.drafter, " stage");
  std::string text =
      absl::StrCat(model.num_hidden_layers, " layers, ", modules, what, modules == 1 ? "" : "s");
  if (model.draft_head != nullptr) {
    absl::StrAppend(&text, ", an Eagle3 head of ",
                    Grouped(DummyBytes(SelectedDrafter(config)->describe(model))), " bytes", TapsText(model));
  }
  if (model.n_routed_experts > 0) {
    absl::StrAppend(&text, ", ", experts.expert_count_here(model.n_routed_experts), " of ",
                    model.n_routed_experts, " experts");
  }
  if (config.parallel.attention_tp > 1) {
    absl::StrAppend(&text, ", 1/", config.parallel.attention_tp,
                    " of heads, dense layers, shared experts and vocabulary, as far as they can be cut");
  }
  return text;
}

void AddCache(const Config& config, const MemoryEstimate& memory, int64_t blocks, Table& table) {
  const int64_t tokens = (blocks - 1) * memory.cache.tokens_per_block();  // block 0 is scratch
  const int64_t requests = (blocks - 1) / std::max(memory.sequence_blocks, 1);
  table.Row(
      "KV cache", blocks * memory.block_bytes(),
      absl::StrCat(Grouped(tokens), " tokens in ", Grouped(blocks - 1), " blocks of ",
                   memory.cache.tokens_per_block(), ": ", Grouped(requests),
                   requests == 1 ? " request" : " requests", " of max_seq_len ", Grouped(config.max_seq_len),
                   " at once", config.parallel.attention_tp > 1 ? "; every rank holds all of them" : ""));
  if (memory.cache.window_bytes() == 0) return;
  table.Row(
      "windows", memory.cache.window_bytes(),
      absl::StrCat("the last tokens of ", config.max_batch_size, " sequences, and of reusable prefixes"));
}

void AddCommon(const Config& config, const ModelConfig& model, const EngineOptions& options,
               const MemoryEstimate& memory, Table& table) {
  table.Row("weights", memory.weight_bytes, WeightsText(config, model));
  table.Row("activations", memory.activation_bytes,
            absl::StrCat("forwards of up to ", Grouped(options.largest_forward()), " tokens: max_num_tokens ",
                         Grouped(config.max_num_tokens), ", max_batch_size ", config.max_batch_size, " x ",
                         options.max_draft_len + 1));
  table.Row("slots", memory.slot_bytes,
            absl::StrCat("state of ", config.max_batch_size, " sequences: max_batch_size"));
}

void AddAssumed(const MemoryEstimate& memory, Table& table) {
  table.Row("graphs", memory.graph_bytes,
            memory.graph_count == 0
                ? "none"
                : absl::StrCat(Grouped(memory.graph_count), " of up to ", Grouped(memory.graph_nodes),
                               " kernels; assumed, measured at the start"));
  table.Row("workspaces", memory.workspace_bytes, "of kernels; assumed");
  table.Row("libraries", memory.library_bytes, "CUDA, NCCL; assumed");
}

double Gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// An assumed amount for the system, the daemon without its ranks, and pages of the checkpoint while it is
// read.
constexpr int64_t kSystemBytes = int64_t{2} << 30;

// What the ranks of this host take of its RAM.
struct CpuMemory {
  MemoryEstimate rank;
  int64_t blocks = 0;
  int64_t sum = 0;  // of all ranks here
};

absl::StatusOr<CpuMemory> EstimateCpu(const Config& config, const ModelConfig& model) {
  CpuMemory memory;
  ASSIGN_OR_RETURN(memory.rank, EstimateMemory(SizedBackend::kCpu, EngineOptionsOf(config, model), model));
  memory.blocks = BlockCount(config, model);
  memory.sum = LocalRankCount(config) * (memory.rank.fixed_bytes() + memory.rank.cache_bytes(memory.blocks) +
                                         config.kv_cache_config.host_cache_size);
  return memory;
}

// What to change so that the ranks fit `ram`.
absl::StatusOr<std::string> WhatFits(const Config& config, const ModelConfig& model, const CpuMemory& memory,
                                     int64_t ram) {
  const int64_t ranks = LocalRankCount(config);
  const int64_t excess = memory.sum + kSystemBytes - ram;
  const int64_t fewer =
      (excess + ranks * memory.rank.block_bytes() - 1) / (ranks * memory.rank.block_bytes());
  if (memory.blocks - fewer > memory.rank.sequence_blocks) {
    return absl::StrCat("kv_cache_config.max_tokens: ", TokensOfBlocks(config, model, memory.blocks - fewer),
                        " fits");
  }
  ModelConfig smaller = model;
  smaller.projections = kInt4Format;
  smaller.experts.reset();
  ASSIGN_OR_RETURN(const CpuMemory int4, EstimateCpu(config, smaller));
  if (int4.sum >= memory.sum) return std::string("use a server with more");
  return absl::StrFormat("in INT4 it would need %.2f", Gib(int4.sum + kSystemBytes));
}

// What the ranks need and have where they do not fit; empty where they do.
absl::StatusOr<std::string> Shortage(const Config& config, const ModelConfig& model, const CpuMemory& memory,
                                     const MemoryLimits& limits) {
  const int64_t ranks = LocalRankCount(config);
  const int64_t needed = memory.sum + kSystemBytes;
  if (needed > limits.device_bytes) {
    ASSIGN_OR_RETURN(const std::string what, WhatFits(config, model, memory, limits.device_bytes));
    return absl::StrFormat("model: %s: the server needs %.2f GiB of RAM, it has %.2f; %s", config.model,
                           Gib(needed), Gib(limits.device_bytes), what);
  }
  if (limits.address_space_bytes > 0 && memory.sum > ranks * limits.address_space_bytes) {
    ASSIGN_OR_RETURN(const std::string what,
                     WhatFits(config, model, memory, ranks * limits.address_space_bytes + kSystemBytes));
    return absl::StrFormat("model: %s: %s needs %.2f GiB of address space, ulimit -v allows %.2f; %s",
                           config.model, ranks > 1 ? "a rank" : "the server", Gib(memory.sum / ranks),
                           Gib(limits.address_space_bytes), what);
  }
  return std::string();
}

absl::StatusOr<MemoryExplanation> ExplainCpu(const Config& config, const ModelConfig& model,
                                             const std::optional<MemoryLimits>& limits) {
  ASSIGN_OR_RETURN(const CpuMemory memory, EstimateCpu(config, model));
  Table table;
  const int here = LocalRankCount(config);
  table.Line(
      absl::StrCat("memory  of each rank, in RAM", here > 1 ? absl::StrCat("; ", here, " ranks here") : ""));
  AddCommon(config, model, EngineOptionsOf(config, model), memory.rank, table);
  AddCache(config, memory.rank, memory.blocks, table);
  table.Row("swap", config.kv_cache_config.host_cache_size,
            "swapped-out sequences: kv_cache_config.host_cache_size");
  table.Row("sum", memory.sum, limits ? absl::StrFormat("of %.2f GiB RAM", Gib(limits->device_bytes)) : "");
  MemoryExplanation explanation;
  if (limits) {
    table.Row("system", kSystemBytes, "and the daemon beside its ranks; assumed");
    ASSIGN_OR_RETURN(const std::string shortage, Shortage(config, model, memory, *limits));
    if (!shortage.empty()) explanation.fits = absl::ResourceExhaustedError(shortage);
    table.Line(explanation.fits.ok() ? "  fits" : "  DOES NOT FIT");
  }
  explanation.text = table.Take();
  return explanation;
}

}  // namespace

absl::StatusOr<MemoryExplanation> ExplainMemory(const Config& config, const ModelConfig& model,
                                                const std::optional<MemoryLimits>& limits) {
  if (config.backend == Backend::kCpu) return ExplainCpu(config, model, limits);
  std::optional<int64_t> gpu_bytes;
  if (limits) gpu_bytes = limits->device_bytes;
  const EngineOptions options = EngineOptionsOf(config, model);
  ASSIGN_OR_RETURN(const MemoryEstimate memory, EstimateMemory(SizedBackend::kCuda, options, model));
  Table table;
  MemoryExplanation explanation;
  const int ranks = config.parallel.world_size();
  const std::string of_rank = ranks == 1 ? "of the GPU" : absl::StrCat("of each of ", ranks, " GPUs");
  table.Line(absl::StrCat("memory  ", of_rank,
                          gpu_bytes ? absl::StrFormat(" of %.2f GiB", Gib(*gpu_bytes)) : "",
                          ", predicted from config.json"));
  AddCommon(config, model, options, memory, table);
  AddAssumed(memory, table);
  const int64_t set_blocks = config.kv_cache_config.max_tokens > 0 ? BlockCount(config, model) : 0;
  if (set_blocks > 0) AddCache(config, memory, set_blocks, table);
  const int64_t least = set_blocks > 0
                            ? memory.fixed_bytes() + memory.graph_bytes + memory.cache_bytes(set_blocks)
                            : SmallestDevice(memory, options);
  if (!gpu_bytes) {
    table.Row("needed", least,
              set_blocks > 0 ? "in all"
                             : "at least, with one request of max_seq_len; --gpu-memory 141GiB says what "
                               "fits a GPU of 141 GiB");
    explanation.text = table.Take();
    return explanation;
  }
  if (set_blocks > 0) {
    if (least > *gpu_bytes) {
      explanation.fits = absl::ResourceExhaustedError(
          absl::StrFormat("kv_cache_config.max_tokens: %d: the rank needs %.2f GiB, the GPU has %.2f",
                          config.kv_cache_config.max_tokens, Gib(least), Gib(*gpu_bytes)));
    }
  } else {
    const absl::StatusOr<int> blocks = BlocksOn(*gpu_bytes, memory, options);
    explanation.fits = blocks.status();
    if (blocks.ok()) {
      AddCache(config, memory, *blocks, table);
      table.Row("left", *gpu_bytes - memory.fixed_bytes() - memory.graph_bytes - memory.cache_bytes(*blocks),
                absl::StrFormat("free_gpu_memory_fraction is %.2f", options.free_memory_fraction));
    }
  }
  table.Line(explanation.fits.ok()
                 ? "  fits"
                 : absl::StrFormat("  DOES NOT FIT: it needs at least %.2f GiB", Gib(least)));
  explanation.text = table.Take();
  return explanation;
}

absl::Status CheckMemory(const Config& config, const ModelConfig& model, const HostResources& host,
                         std::string* doubt) {
  if (config.backend != Backend::kCpu) return absl::OkStatus();
  ASSIGN_OR_RETURN(const CpuMemory memory, EstimateCpu(config, model));
  ASSIGN_OR_RETURN(
      *doubt, Shortage(config, model, memory,
                       {.device_bytes = host.ram_bytes, .address_space_bytes = host.address_space_bytes}));
  const int64_t ranks = LocalRankCount(config);
  const bool no_space = host.address_space_bytes > 0 && memory.sum > ranks * host.address_space_bytes;
  const bool no_ram = ranks * memory.rank.weight_bytes > host.ram_bytes + host.swap_bytes;
  return no_space || no_ram ? absl::ResourceExhaustedError(*doubt) : absl::OkStatus();
}

absl::Status LookAtMemory(const Config& config, const ModelConfig& model) {
  std::string doubt;
  RETURN_IF_ERROR(CheckMemory(config, model, ReadHostResources(), &doubt));
  if (!doubt.empty()) Log(LogLevel::kWarning, "%s; it starts, and ends when it needs more than that", doubt);
  return absl::OkStatus();
}

}  // namespace foredraft
