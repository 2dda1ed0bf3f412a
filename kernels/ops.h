#pragma once

// The one list of ops. A backend is a table of function pointers; a model is a sequence of calls.
//
// Rules (docs/architecture.md, row-independence):
//  - a row's result depends on that row's inputs alone, bit for bit: not on the number of rows, the row's
//    index, the other rows' requests, or the number of threads;
//  - rows of idle slots (slot -1) are skipped: no cache write, no state change;
//  - parameters are trivially copyable, because a graph node stores them; outputs come first;
//  - an op called on a capturing stream is recorded, not run;
//  - with zero rows an op does nothing.
//
// Letters in shapes: rows R, hidden D, heads H, vocabulary V, experts E, bucket B, draft_len K. A decode step
// is padded to a bucket of B entries; an entry holds a live slot, or -1 (padding).

#include <cstdint>
#include <type_traits>

#include "kernels/op.h"
#include "kernels/ops_v4.h"
#include "kernels/slot_arrays.h"
#include "kernels/tensor.h"

namespace foredraft {

// ---- dense ----

// out[r] = table[ids[r]]. An id outside [0, vocab_size) reads row 0.
struct EmbedParams {
  Matrix<float> out;   // [R, D]
  const bf16* table;   // [V, D]
  const int32_t* ids;  // [R]
  int32_t vocab_size;
};

// y = weight * x / sqrt(mean(x^2) + eps), statistics in FP32. With a residual, x + residual is normed and
// stored in `sum`: a fused add and rms_norm. Writes whichever outputs are present; may run in place on `out`.
// out_f8 holds the quantised BF16 values; only where Device::quantizes_rows.
struct RmsNormParams {
  Matrix<float> out;             // [R, D] or absent
  Matrix<bf16> out_bf16;         // [R, D] or absent
  QuantizedRows out_f8;          // [R, D] or absent
  Matrix<float> sum;             // [R, D], may be x itself; absent where residual is
  Matrix<const float> x;         // [R, D]
  Matrix<const float> residual;  // [R, D] or absent
  const float* weight;           // [D]
  float eps;
};

// The two forms of a forward (docs/architecture.md, two-forms): prompt rows or generated rows. A backend may
// have a kernel for each; it never chooses one by the number of rows.
enum class GemmForm : int32_t { kDecode, kPrefill };

// out = x weight^T (+ bias), FP32 accumulation. The weight's shape and the form alone fix the order along k.
struct GemmParams {
  Matrix<float> out;      // [R, n] or absent
  Matrix<bf16> out_bf16;  // [R, n] or absent
  Matrix<const bf16> x;   // [R, k]; data may be null where x_f8 is read instead
  QuantizedRows x_f8;     // x quantised, read if the weight is FP8; if absent, the op quantises x itself
  PackedWeight weight;    // [n, k]
  const float* bias;      // [n] or null
  GemmForm form = GemmForm::kDecode;
};

// One small GEMM per head: out[r, h] = x[r, h] heads[h]^T. The absorbed form's q_nope W_UK and W_UV o_lat.
struct HeadGemmParams {
  Matrix<bf16> out;      // [R, H * n] with head h at column h * out_head_stride
  Matrix<const bf16> x;  // [R, ...] with head h at column h * x_head_stride
  PackedWeights heads;   // [H], each [n, k]
  int32_t out_head_stride;
  int32_t x_head_stride;
};

// out += x.
struct AddParams {
  Matrix<float> out;      // [R, D]
  Matrix<const float> x;  // [R, D]
};

// out = silu(gate) * up, gate first. Writes whichever outputs are present; out_f8 as in rms_norm.
struct SiluMulParams {
  Matrix<bf16> out;             // [R, I] or absent
  QuantizedRows out_f8;         // [R, I] or absent
  Matrix<const float> gate_up;  // [R, 2 I]
  const int32_t* row_count;  // null, or in device memory: only the first *row_count of the R rows are valid
};

// out[out_index[r]] = x[x_index[r]] for r in [0, rows). A null index array means 0, 1, 2...; a negative index
// on either side skips the row.
struct CopyRowsParams {
  Matrix<float> out;         // [*, D]
  Matrix<const float> x;     // [*, D]
  const int32_t* out_index;  // [rows] or null
  const int32_t* x_index;    // [rows] or null
  int32_t rows;
};

// out = bf16(x).
struct ToBf16Params {
  Matrix<bf16> out;       // [R, D]
  Matrix<const float> x;  // [R, D]
};

// ---- attention (MLA) ----

// Rotates the last rope_dim elements of every head (interleaved pairs 2i, 2i+1) and rounds the whole head to
// BF16.
struct RopeQueryParams {
  Matrix<bf16> out;       // [R, H * head_dim], head_dim = nope + rope
  Matrix<const float> q;  // [R, H * head_dim]
  const float* cos_sin;   // [max positions, rope_dim / 2, 2]: cos, sin
  RowIndex index;
  int32_t head_count;
  int32_t head_dim;
  int32_t rope_dim;
};

// Norms c, rotates k_pe, rounds both to BF16 and writes them to the cache row of (slot, position); an FP8 row
// then has c rounded again (kernels/kv_row.h). Also runs rms_norm with q_norm, if that has rows: the queries'
// norm, whose input comes from the same product.
struct KvWriteParams {
  KvLayer layer;
  Matrix<const float> ckv;   // [R, latent_dim + rope_dim] = c | k_pe
  const float* norm_weight;  // [latent_dim]
  const float* cos_sin;      // [max positions, rope_dim / 2, 2]
  RowIndex index;
  float eps;
  RmsNormParams q_norm;  // of as many rows, or with x absent
};

// Absorbed attention over the paged cache for generated tokens: row r attends positions [first_position, its
// own position] of its slot. Keys are (c, k_pe), values c. The KV axis is cut into splits
// counted from position 0, combined in order; the row's position alone fixes their length.
struct MlaDecodeParams {
  Matrix<bf16> out;          // [R, H * latent_dim]: o_lat
  Matrix<const bf16> q_lat;  // [R, H * latent_dim]
  Matrix<const bf16> q;      // [R, H * head_dim]: its last rope_dim elements per head are q_pe
  KvLayer layer;
  RowIndex index;
  int32_t head_count;
  int32_t head_dim;
  int32_t first_position;  // the level: 0 target, i for MTP module i
  float scale;
};

// Copies positions first_position .. first_position + rows - 1 of a slot out of the cache; decodes FP8 rows.
struct GatherKvParams {
  Matrix<bf16> latent;  // [rows, latent_dim]
  Matrix<bf16> rope;    // [rows, rope_dim]
  KvLayer layer;
  int32_t slot;
  int32_t first_position;
};

// Attention in the prefill form for adjacent rows of one sequence: row r of q has position chunk_first + r
// and attends positions [first_position, its own]. Their keys and values, expanded from the cache, come in
// one or more windows, in ascending order, one per call: row i of kv and k_pe is position window_first + i. A
// call finishes the rows whose position lies in its window. The softmax of later rows is kept in `state`
// until the next window; rows of earlier windows must not be passed. Windows start at first_position or at a
// multiple of kPrefillWindowUnit, and change no bit.
struct MlaPrefillParams {
  Matrix<bf16> out;         // [chunk, H * value_dim]: rows whose position lies in the window
  Matrix<float> state;      // [chunk, H * (value_dim + kPrefillStateExtra)] in the backend's layout; may be
                            // absent where the window has all positions of all rows
  Matrix<const bf16> q;     // [chunk, H * head_dim]
  Matrix<const bf16> kv;    // [window, H * (nope_dim + value_dim)]: per head k_nope | v
  Matrix<const bf16> k_pe;  // [window, rope_dim]
  int32_t chunk_first;      // at least window_first
  int32_t first_position;
  int32_t window_first;
  int32_t head_count;
  int32_t nope_dim;
  int32_t rope_dim;
  int32_t value_dim;
  float scale;
};

inline constexpr int32_t kPrefillWindowUnit = 64;
inline constexpr int32_t kPrefillStateExtra = 8;  // floats per head: maxima and sums of weights

// ---- mixture of experts ----

// Group-limited sigmoid routing (docs/deepseek-v3.md 3.4). Ties: the lower index wins. Expert ids of a row
// come in ascending order. Idle rows get expert -1.
struct RouteExpertsParams {
  int32_t* expert_ids;         // [R, top_k]
  float* expert_weights;       // [R, top_k]
  Matrix<const float> logits;  // [R, E]
  const float* bias;           // [E]: selects, does not weigh
  RowIndex index;
  int32_t n_group;
  int32_t topk_group;
  int32_t top_k;
  int32_t norm_topk_prob;  // 1: weights divided by their sum + 1e-20
  float routed_scaling_factor;
};

// Sorts the (row, choice) pairs by expert, rows ascending within one expert. Takes only the pairs of this
// rank's experts: [first_expert, first_expert + expert_count).
struct GroupRowsParams {
  int32_t* expert_offsets;  // [expert_count + 1]: grouped rows of this rank's expert e are
                            // [offsets[e], offsets[e + 1])
  int32_t* grouped_rows;    // [R * top_k]: the source row of each grouped row
  int32_t*
      grouped_index;  // [R, top_k]: grouped row of choice j of row r; -1: idle row or another rank's expert
  const int32_t* expert_ids;  // [R, top_k], -1 = none
  int32_t rows;
  int32_t top_k;
  int32_t expert_count;
  int32_t first_expert;  // 0 with a single rank
};

// out[g] = x[x_rows ? x_rows[g] : g] experts[e]^T for the grouped rows g of each expert e. A row's bits do
// not depend on the other rows.
struct GroupedGemmParams {
  Matrix<float> out;              // [R * top_k, n]; absent if silu_f8 is present
  QuantizedRows silu_f8;          // [R * top_k, n / 2] or absent: silu_mul of out, quantised. Only where
                                  // Device::quantizes_rows, for FP8 weights with k and n / 2 multiples of 128
  Matrix<const bf16> x;           // [*, k]; as in gemm
  QuantizedRows x_f8;             // as in gemm
  const int32_t* x_rows;          // [R * top_k] or null
  const int32_t* expert_offsets;  // [E + 1]
  PackedWeights experts;          // [E], each [n, k]
  int32_t expected_rows = 0;      // grouped rows that are likely, of at most R * top_k; 0: that many. Changes
                                  // no bits, may change the time
};

// hidden[r] += shared[r] + sum of weighted expert outputs, in the canonical order of docs/architecture.md
// section 5: 8 groups of experts [gE/8, (g+1)E/8). Within a group, sums are FP32 in ascending expert order,
// each product is rounded before it is added, and the sum is rounded to BF16 once. The groups are added in
// FP32 by the tree ((0+1)+(2+3))+((4+5)+(6+7)). Idle rows are unchanged.
struct CombineExpertsParams {
  Matrix<float> hidden;            // [R, D], updated
  Matrix<const float> expert_out;  // [R * top_k, D]
  Matrix<const float> shared;      // [R, D] or absent
  const int32_t* grouped_index;    // [R, top_k]
  const int32_t* expert_ids;       // [R, top_k]
  const float* expert_weights;     // [R, top_k]
  int32_t top_k;
  int32_t expert_count;
};

// combine_experts across ranks, in two steps (docs/architecture.md, expert-exchange). Step 1: each rank
// computes, for the rows of all ranks, the subtree over its own groups [first_group, first_group +
// group_count). The outputs of idle rows are undefined.
struct ExpertPartialsParams {
  Matrix<float> out;               // [R, D] or absent
  Matrix<bf16> out_bf16;           // [R, D] or absent; only for a single group, whose sum is a BF16 value
  Matrix<const float> expert_out;  // [grouped rows, D]
  const int32_t* grouped_index;    // [R, top_k], -1: not one of this rank's experts
  const int32_t* expert_ids;       // [R, top_k]
  const float* expert_weights;     // [R, top_k]
  int32_t top_k;
  int32_t expert_count;  // E, of all ranks
  int32_t first_group;
  int32_t group_count;  // 1, 2, 4, 8
};

// Step 2, on the rank that owns the row: hidden[r] += shared[r] + the partial values of all ranks, added by
// the rest of the tree. Idle rows are unchanged.
struct AddPartialsParams {
  Matrix<float> hidden;              // [R, D], updated
  Matrix<const float> partials;      // [ranks * R, D]: rank s's value of row r is row s * R + r; or absent
  Matrix<const bf16> partials_bf16;  // the same in BF16; exactly one of the two is present
  Matrix<const float> shared;        // [R, D] or absent
  const int32_t* expert_ids;         // [R, top_k]: -1 where the row is idle
  int32_t top_k;
  int32_t rank_count;  // 1, 2, 4, 8
};

// ---- sampling ----

// out[r] = argmax of row r; ties: the lowest id. kNoToken where the row is not usable.
struct ArgmaxParams {
  int32_t* out;                // [R]
  Matrix<const float> logits;  // [R, V]
};

// The target's own token of each row: penalties, then argmax (temperature 0), or temperature, top-k, top-p,
// min-p and argmax(log q + Gumbel(seed, position, v)) (docs/speculation.md section 2). Rows of one slot are
// adjacent. For the penalties, row j of a slot counts ids[1..j] of its slot's rows on top of the slot's
// counts. The noise is keyed by the sampled token's position, which is the row's position + 1. kNoToken where
// the row is not usable; its logprobs are then not written.
struct SampleParams {
  int32_t* out;                // [R]
  LogprobOutput* logprobs;     // [R] or null; written where constants.logprob_count >= 0
  Matrix<const float> logits;  // [R, V], raw
  RowIndex index;
  const int32_t* ids;          // [R]: the rows' own ids (t_p, d_1, ...)
  const int32_t* row_in_slot;  // [R]: j, or null = all 0
  int32_t stored_drafts;       // draft rows: the slot's first stored_drafts drafts count as output, too
  SlotArrays slots;
  float* scratch;  // [R, V]
};

// Relaxed acceptance (docs/speculation.md section 2): relaxed[r] = 1 where the id of the slot's next row is a
// candidate of row r: among the relaxed_topk most probable tokens (softmax of the penalised logits at
// temperature 1; ties: lower id first), with a probability at least the largest less relaxed_delta. 0 where
// the rule is strict, or the slot is sampled or strict. Cheap unless the rule is relaxed. verify_drafts
// checks the phase.
struct RelaxDraftsParams {
  int32_t* relaxed;            // [R]
  Matrix<const float> logits;  // [R, V], raw
  RowIndex index;
  const int32_t* ids;          // [R]
  const int32_t* row_in_slot;  // [R]
  SlotArrays slots;
  float* scratch;  // [R, V]
};

// ---- slots: the state machine of a step (docs/speculation.md section 1) ----

// Rows of a decode step, K + 1 per bucket entry: ids t_p, d_1..d_v, then 0 as a legal fill; positions p..p+K.
// Rows of idle or finished slots and rows past v get slot -1: their results are never read. Illegal draft ids
// become 0 in `ids`.
struct DecodeRowsParams {
  int32_t* ids;               // [B * (K + 1)]
  int32_t* row_slots;         // [B * (K + 1)]
  int32_t* positions;         // [B * (K + 1)]
  int32_t* row_in_slot;       // [B * (K + 1)]
  const int32_t* live_slots;  // [B], -1 = padding
  SlotArrays slots;
  int32_t bucket;
  int32_t draft_len;  // K
};

// Verification under slots.rule, clamp, stop, advance (docs/speculation.md section 1, steps 2-4). Compares
// draft ids as stored (an illegal one never matches). A slot with given tokens emits these, and no draft
// counts as verified. A row without a usable target ends the step before it, and its sequence. Updates
// progress and output_counts, zeroes draft_count and given_count, writes one StepOutput per entry.
struct VerifyDraftsParams {
  StepOutput* outputs;        // [B]
  const int32_t* target_ids;  // [B * (K + 1)]: g_j
  const int32_t* relaxed;     // [B * (K + 1)]: 1 = row j may accept d_{j+1} in the thinking phase
  const int32_t* live_slots;  // [B]
  SlotArrays slots;
  int32_t bucket;
  int32_t draft_len;  // K
};

// After a prompt's last chunk: the sampled token t_m of slot slot_ids[i] becomes last_token, length = m, stop
// ids and length_limit are applied. Writes one StepOutput per prompt (emitted_count 1, drafts_verified 0).
// Without a usable token the sequence ends at length m with none.
struct AcceptFirstTokenParams {
  StepOutput* outputs;      // [count]
  const int32_t* tokens;    // [count]
  const int32_t* slot_ids;  // [count]
  SlotArrays slots;
  int32_t count;
};

// What a step or a prefill emitted, as rows of an MTP module: K + 1 rows per entry, ids e_0..e_K (the emitted
// ids, then 0), positions p+1..p+K+1; the hidden of row j is the target's row j. Rows past n - 1 and rows of
// padding (n = 0) get slot -1, so they are not cached. last_row[i] = the row of e_{n-1}, which draft 1 comes
// from; for padding, the entry's first row.
struct EmittedRowsParams {
  int32_t* ids;               // [B * (K + 1)]
  int32_t* row_slots;         // [B * (K + 1)]
  int32_t* positions;         // [B * (K + 1)]
  int32_t* last_row;          // [B]
  const StepOutput* outputs;  // [B]
  int32_t bucket;
  int32_t draft_len;  // K
  int32_t level;      // of the module: rows at lower positions get slot -1
};

// The next recycled forward, one row per entry: id = the last draft; slot -1 for padding and for slots that
// emitted nothing or are finished.
struct NextDraftRowsParams {
  int32_t* ids;               // [B]
  int32_t* row_slots;         // [B]
  int32_t* positions;         // [B]
  const int32_t* draft_ids;   // [B]: draft i
  const StepOutput* outputs;  // [B]
  int32_t bucket;
  int32_t draft_index;  // i: position = length + i, the position of draft i
};

// drafts.tokens[draft_index - 1] = draft_ids[entry], draft_count = draft_index, for entries whose slot is
// active and not finished.
struct StoreDraftsParams {
  const int32_t* draft_ids;   // [B]
  const StepOutput* outputs;  // [B]: has the slot; emitted_count 0 = skip
  SlotArrays slots;
  int32_t bucket;
  int32_t draft_index;  // 1..K
};

// A slot's recent tokens as rows of module 1 (docs/speculation.md section 4): a window of W = Kmax + 1 rows
// per entry at positions P-Kmax..P; advances the slots' recent ids to P. Rows below position 1 and rows of
// padding get slot -1. A row's hidden comes from the recent hiddens or from the target's rows of this step;
// the index not used is -1.
struct RecentRowsParams {
  int32_t* ids;               // [B * W]
  int32_t* row_slots;         // [B * W]
  int32_t* positions;         // [B * W]
  int32_t* recent_index;      // [B * W]: slot * Kmax + index, or -1
  int32_t* target_index;      // [B * W]: entry * (K + 1) + row, or -1
  int32_t* save_index;        // [B * W]: index in the recent hiddens where the row's hidden goes, or -1
  int32_t* recent_ids;        // [slots, Kmax]: tokens P-Kmax+1..P, updated
  const StepOutput* outputs;  // [B]
  int32_t bucket;
  int32_t draft_len;  // K of the step
  int32_t max_draft_len;
};

// The window of module `level` >= 2: positions P-Kmax+level-1..P+level-1. Ids past P are the slot's stored
// drafts; rows without a draft yet get slot -1.
struct RecentLevelRowsParams {
  int32_t* ids;               // [B * W]
  int32_t* row_slots;         // [B * W]
  int32_t* positions;         // [B * W]
  const int32_t* recent_ids;  // [slots, Kmax]
  const StepOutput* outputs;  // [B]
  SlotArrays slots;
  int32_t bucket;
  int32_t max_draft_len;
  int32_t level;
};

// Appends a prompt's first token to the recent ids, which shift by one.
struct AppendRecentParams {
  int32_t* recent_ids;        // [slots, Kmax]
  const StepOutput* outputs;  // [count]
  int32_t count;
  int32_t max_draft_len;
};

struct Ops {
  Op<EmbedParams> embed;
  Op<RmsNormParams> rms_norm;
  Op<GemmParams> gemm;
  Op<HeadGemmParams> head_gemm;
  Op<AddParams> add;
  Op<SiluMulParams> silu_mul;
  Op<CopyRowsParams> copy_rows;
  Op<ToBf16Params> to_bf16;
  Op<RopeQueryParams> rope_query;
  Op<KvWriteParams> kv_write;
  Op<MlaDecodeParams> mla_decode;
  Op<GatherKvParams> gather_kv;
  Op<MlaPrefillParams> mla_prefill;
  Op<RouteExpertsParams> route_experts;
  Op<GroupRowsParams> group_rows;
  Op<GroupedGemmParams> grouped_gemm;
  Op<CombineExpertsParams> combine_experts;
  Op<ExpertPartialsParams> expert_partials;
  Op<AddPartialsParams> add_partials;
  Op<ArgmaxParams> argmax;
  Op<SampleParams> sample;
  Op<RelaxDraftsParams> relax_drafts;
  Op<DecodeRowsParams> decode_rows;
  Op<VerifyDraftsParams> verify_drafts;
  Op<AcceptFirstTokenParams> accept_first_token;
  Op<EmittedRowsParams> emitted_rows;
  Op<NextDraftRowsParams> next_draft_rows;
  Op<StoreDraftsParams> store_drafts;
  Op<RecentRowsParams> recent_rows;
  Op<RecentLevelRowsParams> recent_level_rows;
  Op<AppendRecentParams> append_recent;
  V4Ops v4;  // kernels/ops_v4.h
};

}  // namespace foredraft
