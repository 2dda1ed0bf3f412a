#pragma once

// Multi-head latent attention (docs/deepseek-v3.md 3.1-3.3): projections, rope, cache write, then one of two
// forms. Prefill expands keys and values from the cached latents; decode absorbs W_UK and W_UV and attends
// the latents. With selected positions (section 9), prompt rows that see more than SelectedPositions::count
// positions take the decode form.

#include "engine/cache/cache_groups.h"
#include "engine/cache/kv_cache.h"
#include "engine/model/forward.h"
#include "engine/model/tensor_group.h"
#include "engine/model/weights.h"

namespace foredraft {

// The number of prompt rows that attend selected positions at once: bounds the memory of long prefills.
inline constexpr int kSelectingRowsAtOnce = 256;

// Device memory between MLA's ops. R = capacity.rows; S = capacity.decode_rows, or min(R,
// kSelectingRowsAtOnce) if positions are selected and that is more; C = min(capacity.positions,
// capacity.segment); H = the rank's heads.
struct MlaActivations {
  Matrix<float> qkv_a;         // [R, q_lora + latent + rope]
  InputRows q_a;               // [R, q_lora]
  Matrix<float> q;             // [R, H * qk_head_dim]
  Matrix<bf16> q_roped;        // [R, H * qk_head_dim]
  Matrix<bf16> q_lat;          // [S, H * latent] decode form
  Matrix<bf16> o_lat;          // [S, H * latent] decode form
  Matrix<bf16> attention;      // [R, H * v]
  QuantizedRows attention_f8;  // [decode rows, H * v] decode form, for an FP8 o_proj; or absent
  Matrix<bf16> latent;         // [C, latent] prefill form
  Matrix<bf16> k_pe;           // [C, rope] prefill form
  Matrix<bf16> kv;             // [C, H * (nope + v)] prefill form
  // [R, H * (v + kPrefillStateExtra)] prefill form, state between segments; absent where one segment has all
  // positions. Lies in the memory of Activations::gate_up, which other ops use between two attentions only.
  Matrix<float> softmax_state;
};

// Floats per row that softmax_state takes; 0 where it is absent. heads: the rank's.
int SoftmaxStateWidth(const ModelConfig& config, const ForwardCapacity& capacity, int heads);

struct MlaSize {
  int heads = 0;           // of the rank
  bool selects = false;    // rows may attend selected positions
  bool quantized = false;  // o_proj reads rows in FP8
};

// Allocates all of `a` except softmax_state.
void AllocateMla(ActivationAllocator& allocate, const ModelConfig& config, const ForwardCapacity& capacity,
                 const MlaSize& size, MlaActivations& a);

// Rows that see more than `count` positions attend only the positions of their lists; other rows attend all
// that they see.
struct SelectedPositions {
  const int32_t* lists = nullptr;  // [R, count]: a list per row of the forward (MlaDecodeParams); null: none
  int32_t count = 0;
};

// What attention needs besides its rows: the layer's cache, the lowest position of its level, the rope table,
// and memory.
struct AttentionContext {
  const MlaActivations& activations;
  KvLayer cache;
  int32_t first_position = 0;      // 0 target, i for MTP module i (docs/speculation.md section 0)
  const float* cos_sin = nullptr;  // [positions, rope / 2, 2]
  SelectedPositions selected;
  PackedWeight q_a_reader;  // the weight that reads the queries' latents besides q_b; or absent
};

// The rows of a span that see more positions than context.selected.count; none without selected positions.
PrefillSpan SelectingRows(const AttentionContext& context, const PrefillSpan& span);

// Registers the latents of one layer: one per position, kept to the sequence's end.
CacheHandle RegisterLatents(const ModelConfig& config, KvFormat kv_format, CacheRegistry& registry);
KvLayer LatentsOf(const ModelConfig& config, const KvCache& cache, CacheHandle rows);

// The two halves of a layer's attention, between which layers with an indexer select positions. The first
// writes queries, keys and values, and returns the normed latents of the queries, as q_b and
// context.q_a_reader read them. normed: [R, D], as w.qkv_a reads it.
InputRows ProjectLatents(const Forward& f, const MlaWeights& w, const AttentionContext& context,
                         const InputRows& normed);
// Returns the rows to be added to the residual stream; whole rows are in `projected`.
RowsOrParts AttendLatents(const Forward& f, const MlaWeights& w, const AttentionContext& context,
                          Matrix<float> projected);

}  // namespace foredraft
