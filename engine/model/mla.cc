#include "engine/model/mla.h"

#include <algorithm>

#include "base/check.h"
#include "engine/model/linear.h"
#include "engine/model/rope.h"

namespace foredraft {
namespace {

float SoftmaxScale(const ModelConfig& config) {
  return static_cast<float>(AttentionScale(config.qk_head_dim(), config.rope_scaling));
}

// Attends in the decode form. out: the rows from first_row on, at most as many as q_lat has; written in FP8
// if out has that form.
void AttendDecode(const Forward& f, const MlaWeights& w, const AttentionContext& context, int first_row,
                  const InputRows& out) {
  const MlaActivations& a = context.activations;
  const int row_count = out.rows();
  const SelectedPositions& selected = context.selected;
  const Matrix<bf16> q = a.q_roped.row_range(first_row, row_count);
  const Matrix<bf16> q_lat = a.q_lat.first_rows(row_count);
  const Matrix<bf16> o_lat = a.o_lat.first_rows(row_count);
  f.ops.head_gemm(f.stream, {.out = q_lat,
                             .x = q,
                             .heads = w.w_uk,
                             .out_head_stride = f.config.kv_lora_rank,
                             .x_head_stride = f.config.qk_head_dim()});
  f.ops.mla_decode(
      f.stream,
      {.out = o_lat,
       .q_lat = q_lat,
       .q = q,
       .layer = context.cache,
       .index = RowsOf(f.batch.index, first_row, row_count),
       .head_count = w.w_uk.count,
       .head_dim = f.config.qk_head_dim(),
       .first_position = context.first_position,
       .selected = selected.lists == nullptr ? nullptr : selected.lists + int64_t{first_row} * selected.count,
       .selected_count = selected.count,
       .scale = SoftmaxScale(f.config)});
  f.ops.head_gemm(f.stream, {.out = out.as_bf16,
                             .x = o_lat,
                             .heads = w.w_uv,
                             .out_head_stride = f.config.v_head_dim,
                             .x_head_stride = f.config.kv_lora_rank,
                             .out_f8 = out.as_f8});
}

// Positions [begin, end) of a context.
struct Segment {
  int begin;
  int end;
};

// Lets the rows of a span attend the positions of a segment. Rows before the segment's first position take no
// part.
void AttendSegment(const Forward& f, const MlaWeights& w, const PrefillSpan& span,
                   const AttentionContext& context, const Segment& segment) {
  const MlaActivations& a = context.activations;
  const int skipped = std::max(0, segment.begin - span.first_position);
  const int first_row = span.first_row + skipped;
  const int row_count = span.row_count - skipped;
  const Matrix<bf16> latent = a.latent.first_rows(segment.end - segment.begin);
  const Matrix<bf16> k_pe = a.k_pe.first_rows(segment.end - segment.begin);
  const Matrix<bf16> kv = a.kv.first_rows(segment.end - segment.begin);
  f.ops.gather_kv(f.stream, {.latent = latent,
                             .rope = k_pe,
                             .layer = context.cache,
                             .slot = span.slot,
                             .first_position = segment.begin});
  f.ops.gemm(f.stream, {.out_bf16 = kv, .x = latent, .weight = w.kv_b, .form = GemmForm::kPrefill});
  f.ops.mla_prefill(f.stream, {.out = a.attention.row_range(first_row, row_count),
                               .state = a.softmax_state.row_range(first_row, row_count),
                               .q = a.q_roped.row_range(first_row, row_count),
                               .kv = kv,
                               .k_pe = k_pe,
                               .chunk_first = span.first_position + skipped,
                               .first_position = context.first_position,
                               .segment_first = segment.begin,
                               .head_count = w.w_uk.count,
                               .nope_dim = f.config.qk_nope_head_dim,
                               .rope_dim = f.config.qk_rope_head_dim,
                               .value_dim = f.config.v_head_dim,
                               .scale = SoftmaxScale(f.config)});
}

// Reads all keys and values from the cache, rounded, even those of this chunk. So chunk borders do not change
// results (docs/invariants.md, from-the-cache). Expands them segment by segment; segments end at multiples of
// their size, so their borders do not depend on the chunk.
void AttendExpanded(const Forward& f, const MlaWeights& w, const PrefillSpan& span,
                    const AttentionContext& context) {
  const int size = context.activations.kv.rows;
  const int context_end = span.first_position + span.row_count;
  for (int begin = context.first_position; begin < context_end;) {
    const int end = std::min(context_end, (begin / size + 1) * size);
    AttendSegment(f, w, span, context, {begin, end});
    begin = end;
  }
}

// Attends in the form that a row's position alone decides.
void AttendPrefill(const Forward& f, const MlaWeights& w, const PrefillSpan& span,
                   const AttentionContext& context) {
  const PrefillSpan selecting = SelectingRows(context, span);
  PrefillSpan expanded = span;
  expanded.row_count -= selecting.row_count;
  if (expanded.row_count > 0) AttendExpanded(f, w, expanded, context);
  const int end = selecting.first_row + selecting.row_count;
  for (int first = selecting.first_row; first < end; first += kSelectingRowsAtOnce) {
    const int count = std::min(kSelectingRowsAtOnce, end - first);
    AttendDecode(f, w, context, first, {.as_bf16 = context.activations.attention.row_range(first, count)});
  }
}

}  // namespace

CacheHandle RegisterLatents(const ModelConfig& config, KvFormat kv_format, CacheRegistry& registry) {
  const KvRowLayout row = {config.kv_lora_rank, config.qk_rope_head_dim, kv_format.dtype};
  return registry.Add({.row_bytes = row.bytes(), .format = kv_format});
}

KvLayer LatentsOf(const ModelConfig& config, const KvCache& cache, CacheHandle handle) {
  const CachedRows rows = cache.rows(handle);
  return {.data = rows.data,
          .block_tables = rows.block_tables,
          .table_stride = rows.table_stride,
          .block_count = rows.block_count,
          .tokens_per_block = rows.rows_per_block,
          .latent_dim = config.kv_lora_rank,
          .rope_dim = config.qk_rope_head_dim,
          .dtype = rows.format.dtype,
          .fp8_products = rows.format.fp8_products};
}

int SoftmaxStateWidth(const ModelConfig& config, const ForwardCapacity& capacity, int heads) {
  if (capacity.positions <= capacity.segment) return 0;
  return heads * (config.v_head_dim + kPrefillStateExtra);
}

void AllocateMla(ActivationAllocator& allocate, const ModelConfig& config, const ForwardCapacity& capacity,
                 const MlaSize& size, MlaActivations& a) {
  CHECK_EQ(capacity.segment % kPrefillSegmentUnit, 0);
  const int rows = capacity.rows;
  const int decode_rows =
      std::max(capacity.decode_rows, size.selects ? std::min(rows, kSelectingRowsAtOnce) : 0);
  const int context = std::min(capacity.positions, capacity.segment);
  const int heads = size.heads;
  const int latent = config.kv_lora_rank;
  const int q_width = heads * config.qk_head_dim();
  const int q_a_width = config.q_lora_rank > 0 ? config.q_lora_rank : q_width;
  allocate(a.qkv_a, rows, q_a_width + latent + config.qk_rope_head_dim);
  if (config.q_lora_rank > 0) {
    allocate(a.q_a, rows, config.q_lora_rank);
    allocate(a.q, rows, q_width);
  }
  allocate(a.q_roped, rows, q_width);
  allocate(a.q_lat, decode_rows, heads * latent);
  allocate(a.o_lat, decode_rows, heads * latent);
  allocate(a.attention, rows, heads * config.v_head_dim);
  if (size.quantized) allocate(a.attention_f8, capacity.decode_rows, heads * config.v_head_dim);
  allocate(a.latent, context, latent);
  allocate(a.k_pe, context, config.qk_rope_head_dim);
  allocate(a.kv, context, heads * (config.qk_nope_head_dim + config.v_head_dim));
}

PrefillSpan SelectingRows(const AttentionContext& context, const PrefillSpan& span) {
  const int last = span.first_row + span.row_count, end = span.first_position + span.row_count;
  const int64_t border = int64_t{context.first_position} + context.selected.count;  // the first position
  const bool selects = context.selected.lists != nullptr;
  const int count = selects ? static_cast<int>(std::clamp<int64_t>(end - border, 0, span.row_count)) : 0;
  return {.slot = span.slot, .first_row = last - count, .row_count = count, .first_position = end - count};
}

InputRows ProjectLatents(const Forward& f, const MlaWeights& w, const AttentionContext& context,
                         const InputRows& normed) {
  const MlaActivations& a = context.activations;
  const Matrix<float> qkv_a = a.qkv_a.first_rows(f.rows());
  const int ckv_width = f.config.kv_lora_rank + f.config.qk_rope_head_dim;
  const int q_width = qkv_a.cols - ckv_width;
  const Matrix<float> first = qkv_a.columns(0, q_width);  // queries, or the latents from which q_b makes them
  const float eps = static_cast<float>(f.config.latent_norm_eps);

  Linear(f, normed, {.out = qkv_a, .weight = w.qkv_a, .bias = w.qkv_a_bias});
  const InputRows q_a = a.q_a.first_rows(f.rows()).ReadBy({w.q_b, context.q_a_reader});
  KvWriteParams write = {.layer = context.cache,
                         .ckv = qkv_a.columns(q_width, ckv_width),
                         .norm_weight = w.kv_a_layernorm,
                         .cos_sin = context.cos_sin,
                         .index = f.batch.index,
                         .eps = eps};
  if (w.q_b) write.q_norm = RmsNormTo(q_a, {.x = first, .weight = w.q_a_layernorm, .eps = eps});
  f.ops.kv_write(f.stream, write);
  RopeQueryParams rope = {.out = a.q_roped.first_rows(f.rows()),
                          .q = first,
                          .cos_sin = context.cos_sin,
                          .index = f.batch.index,
                          .head_count = w.w_uk.count,
                          .head_dim = f.config.qk_head_dim(),
                          .rope_dim = f.config.qk_rope_head_dim};
  if (!w.q_b) {
    f.ops.rope_query(f.stream, rope);
    return q_a;
  }
  const Matrix<float> q = a.q.first_rows(f.rows());
  rope.q = q;
  f.ops.query_gemm(f.stream, {.gemm = LinearOf(f, q_a, {.out = q, .weight = w.q_b}), .rope = rope});
  return q_a;
}

RowsOrParts AttendLatents(const Forward& f, const MlaWeights& w, const AttentionContext& context,
                          Matrix<float> projected) {
  const MlaActivations& a = context.activations;
  InputRows attention = {.as_bf16 = a.attention.first_rows(f.rows())};
  if (f.batch.prefill_form()) {
    for (const PrefillSpan& span : f.batch.spans) AttendPrefill(f, w, span, context);
  } else {
    const bool quantized = a.attention_f8 && ReadsF8(w.o_proj) && w.o_first_column == 0;
    if (quantized) attention.as_f8 = a.attention_f8.first_rows(f.rows());
    AttendDecode(f, w, context, 0, attention);
    if (quantized) attention.as_f8 = attention.as_f8.first_columns(w.o_proj.k);
  }
  attention.as_bf16 = attention.as_bf16.columns(w.o_first_column, w.o_proj.k);
  return SummedLinearInParts(f, attention, {.out = projected, .weight = w.o_proj, .bias = w.o_proj_bias});
}

}  // namespace foredraft
