#pragma once

// The sizes that one rank is built for. Fixed for the life of the engine.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/checkpoint/rank_layout.h"
#include "kernels/kv_row.h"
#include "scheduler/drafter_requirements.h"

namespace foredraft {

struct DrafterKind;

struct EngineOptions {
  RankLayout layout;          // of all ranks
  int max_batch_size = 64;    // slots
  int max_num_tokens = 8192;  // rows of the largest prefill forward
  int max_seq_len = 4096;
  int max_draft_len = 0;                     // Kmax; 0 = no drafts
  const DrafterKind* drafter = nullptr;      // null where max_draft_len is 0
  DrafterRequirements drafter_requirements;  // of `drafter` (UseDrafter in engine/spec/drafter_kind.h)
  // Drafts have confidences, and a step may have fewer rows than drafts (draft policy `confidence`).
  bool cuts_drafts = false;
  int tokens_per_block = 32;  // cache groups may have longer blocks (engine/cache/cache_groups.h)
  int block_count = 2049;     // of the history, scratch included; 0 = as many as the device has room for
  double free_memory_fraction = 0.9;  // if block_count is 0: share of what weights and buffers leave free
  KvFormat kv_format;                 // of the KV cache
  bool nvfp4_inputs = false;          // ModelConfig::nvfp4_inputs
  int64_t host_cache_bytes = int64_t{1} << 30;  // of swapped sequences
  std::vector<int> batch_sizes;                 // decode buckets, ascending, the last >= max_batch_size
  // Blocks of generated tokens may be reused: decode steps keep the boundaries of the blocks that they fill.
  bool reuse_generated = false;
  bool capture_graphs = true;       // false = eager
  std::vector<int> captured_sizes;  // the batch_sizes that have graphs; empty: all of them
  bool poison_cache = false;  // fill new KV memory with NaN: a row read before it was written shows at once
  std::chrono::seconds step_timeout{30};

  const std::vector<int>& graph_sizes() const {
    return captured_sizes.empty() ? batch_sizes : captured_sizes;
  }
  // Rows of the largest decode step, of the largest forward within a decode step, and of the largest forward
  // of any kind.
  int largest_step() const { return batch_sizes.back() * (max_draft_len + 1); }
  int largest_decode_forward() const {
    return std::max(largest_step(), batch_sizes.back() * drafter_requirements.block_rows);
  }
  int largest_forward() const { return std::max(largest_decode_forward(), max_num_tokens); }
  // Positions that RoPE and block tables cover: drafting runs past the longest sequence (docs/invariants.md
  // section 2).
  int position_count() const { return max_seq_len + max_draft_len + drafter_requirements.rows_ahead; }
  int blocks_per_slot(int block_tokens) const { return (position_count() + block_tokens - 1) / block_tokens; }
  // Blocks per slot of a cache with one group.
  int blocks_per_slot() const { return blocks_per_slot(tokens_per_block); }
  bool operator==(const EngineOptions&) const = default;
};

}  // namespace foredraft
