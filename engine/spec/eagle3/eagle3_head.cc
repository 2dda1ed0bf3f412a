#include "engine/spec/eagle3/eagle3_head.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/model/linear.h"
#include "engine/model/mlp.h"
#include "engine/model/model_kind.h"
#include "engine/model/rope.h"

namespace foredraft {
namespace {

// The parts of `spans` within rows [first, first + count), with rows counted from `first`.
std::vector<PrefillSpan> SpansWithin(std::span<const PrefillSpan> spans, int first, int count) {
  std::vector<PrefillSpan> within;
  for (const PrefillSpan& span : spans) {
    const int begin = std::max(span.first_row, first);
    const int end = std::min(span.first_row + span.row_count, first + count);
    if (begin >= end) continue;
    within.push_back({.slot = span.slot,
                      .first_row = begin - first,
                      .row_count = end - begin,
                      .first_position = span.first_position + begin - span.first_row});
  }
  return within;
}

}  // namespace

Eagle3Head::Eagle3Head(Device& device, Model& target, Eagle3Weights weights)
    : ops_(device.ops()),
      target_(target),
      embed_tokens_(target.draft_target()->embed_tokens()),
      head_(target.config().draft_head),
      weights_(std::move(weights)),
      solo_(device.ops()) {}

absl::StatusOr<std::unique_ptr<Eagle3Head>> Eagle3Head::Create(Device& device, Model& target,
                                                               Eagle3Weights weights,
                                                               const ForwardCapacity& capacity,
                                                               KvFormat kv_format) {
  CHECK(target.draft_target() != nullptr) << target.config().architecture;
  CHECK(target.config().draft_head != nullptr);
  std::unique_ptr<Eagle3Head> head(new Eagle3Head(device, target, std::move(weights)));
  CacheRegistry registry(/*tokens_per_block=*/1);
  head->cache_rows_ = RegisterRows(target.config(), /*module_count=*/0, kv_format, registry);
  RETURN_IF_ERROR(head->Allocate(device, capacity));
  target.draft_target()->SetLayerReader(head.get());
  return head;
}

absl::Status Eagle3Head::Allocate(Device& device, const ForwardCapacity& capacity) {
  const ModelConfig& layer = head_->layer;
  const int tap_width = static_cast<int>(head_->taps.size()) * layer.hidden_size;
  ForwardCapacity own = capacity;
  own.rows = std::max(capacity.decode_rows, std::min(capacity.rows, kEagle3RowsAtOnce));
  const int heads = weights_.self_attn.w_uk.count;
  const int state_width = SoftmaxStateWidth(layer, own, heads);
  ActivationAllocator allocate(device);
  allocate(taps_, capacity.rows, tap_width);
  if (head_->norm_before_fc) allocate(unnormed_taps_, capacity.rows, tap_width);
  AllocateActivations(allocate, layer, shard_,
                      {.rows = own.rows,
                       .decode_rows = own.decode_rows,
                       .mlp_width = weights_.mlp.down.k,
                       .scratch_width = state_width,
                       .keeps_expert_gate_up = false},
                      activations_);
  allocate(activations_.mtp_input, own.rows, 2 * layer.hidden_size);
  AllocateMla(allocate, layer, own, {.heads = heads, .quantized = ReadsF8(weights_.self_attn.o_proj)},
              mla_activations_);
  if (state_width > 0) {
    mla_activations_.softmax_state = Dense(activations_.gate_up.data, own.rows, state_width);
  }
  if (!head_->token_ids.empty()) {
    std::vector<int32_t> index(layer.vocab_size, -1);
    for (size_t i = 0; i < head_->token_ids.size(); ++i) index[head_->token_ids[i]] = static_cast<int32_t>(i);
    int32_t* uploaded = nullptr;
    allocate(uploaded, index.size());
    allocate(draft_logits_, own.decode_rows, head_->draft_vocab_size);
    RETURN_IF_ERROR(allocate.status());
    const std::unique_ptr<Stream> stream = device.CreateStream();
    device.CopyToDevice(*stream, uploaded, index.data(), index.size() * sizeof(int32_t));
    stream->Synchronize();
    draft_index_ = uploaded;
  }
  RETURN_IF_ERROR(allocate.status());
  ASSIGN_OR_RETURN(
      cos_sin_,
      UploadRopeTable(device, RopeFrequencies(layer.qk_rope_head_dim, layer.rope_theta, layer.rope_scaling),
                      RopeMscale(layer.rope_scaling), capacity.positions));
  return absl::OkStatus();
}

Forward Eagle3Head::ForwardOf(Stream& stream, const Batch& batch) const {
  return {.ops = ops_,
          .stream = stream,
          .comm = solo_,
          .shard = shard_,
          .config = head_->layer,
          .activations = activations_,
          .batch = batch};
}

void Eagle3Head::Read(Stream& stream, int layer, Matrix<const float> hidden) const {
  const auto tap = std::find(head_->taps.begin(), head_->taps.end(), layer);
  if (tap == head_->taps.end()) return;
  const auto index = static_cast<int>(tap - head_->taps.begin());
  const int width = hidden.cols;
  const Matrix<bf16> out = taps_.first_rows(hidden.rows).columns(index * width, width);
  if (head_->norm_before_fc) {
    const Matrix<float> unnormed = unnormed_taps_.first_rows(hidden.rows).columns(index * width, width);
    ops_.copy_rows(stream, {.out = unnormed, .x = hidden, .rows = hidden.rows});
  } else if (head_->fc_norm) {
    ops_.rms_norm(stream, {.out_bf16 = out,
                           .x = hidden,
                           .weight = weights_.fc_norms[index],
                           .eps = static_cast<float>(head_->layer.rms_norm_eps)});
  } else {
    ops_.to_bf16_rows(stream, {.out = out, .x = hidden});
  }
}

void Eagle3Head::Fuse(Stream& stream, GemmForm form, Matrix<float> out) const {
  const Matrix<bf16> taps = taps_.first_rows(out.rows);
  if (head_->norm_before_fc) {
    ops_.rms_norm(stream, {.out_bf16 = taps,
                           .x = unnormed_taps_.first_rows(out.rows),
                           .weight = weights_.input_norm,
                           .eps = static_cast<float>(head_->layer.rms_norm_eps)});
  }
  ops_.gemm(stream, {.out = out, .x = taps, .weight = weights_.fc, .form = form});
}

// Runs rows in pieces. A row's bits do not depend on its piece, because attention reads from the cache.
void Eagle3Head::RunModule(Stream& stream, int /*module*/, const Batch& batch, const KvCache& cache,
                           Matrix<float> output) const {
  const int rows = batch.index.rows;
  if (!batch.prefill_form()) {
    if (rows > 0) RunRows(stream, batch, cache, output);
    return;
  }
  for (int first = 0; first < rows; first += kEagle3RowsAtOnce) {
    const int count = std::min(kEagle3RowsAtOnce, rows - first);
    const std::vector<PrefillSpan> spans = SpansWithin(batch.spans, first, count);
    if (spans.empty()) continue;
    RunRows(stream,
            {.index = RowsOf(batch.index, first, count),
             .ids = batch.ids + first,
             .previous = batch.previous.row_range(first, count),
             .spans = spans},
            cache, output.row_range(first, count));
  }
}

void Eagle3Head::RunRows(Stream& stream, const Batch& batch, const KvCache& cache,
                         Matrix<float> output) const {
  const Forward f = ForwardOf(stream, batch);
  const Eagle3Weights& w = weights_;
  const int width = f.config.hidden_size;
  const float eps = f.norm_eps();
  const Matrix<float> hidden = activations_.hidden.first_rows(f.rows());
  const Matrix<float> projected = activations_.projected.first_rows(f.rows());
  const InputRows input = activations_.mtp_input.first_rows(f.rows());

  ops_.embed(stream,
             {.out = hidden, .table = embed_tokens_, .ids = batch.ids, .vocab_size = f.config.vocab_size});
  ops_.rms_norm(
      stream,
      {.out_bf16 = input.as_bf16.columns(0, width), .x = hidden, .weight = w.input_layernorm, .eps = eps});
  ops_.rms_norm(stream, {.out = head_->norm_before_residual ? hidden : Matrix<float>(),
                         .out_bf16 = input.as_bf16.columns(width, width),
                         .x = batch.previous,
                         .weight = w.hidden_norm,
                         .eps = eps});
  if (!head_->norm_before_residual) {
    ops_.copy_rows(stream, {.out = hidden, .x = batch.previous, .rows = f.rows()});
  }

  const AttentionContext context = {.activations = mla_activations_,
                                    .cache = LatentsOf(f.config, cache, cache_rows_),
                                    .first_position = 1,
                                    .cos_sin = cos_sin_,
                                    .selected = {},
                                    .q_a_reader = {}};
  ProjectLatents(f, w.self_attn, context, {.as_bf16 = input.as_bf16});
  const RowsOrParts attended = AttendLatents(f, w.self_attn, context, projected);
  const InputRows normed = activations_.normed.first_rows(f.rows()).ReadBy({w.mlp.gate_up});
  RmsNorm(f, normed,
          {.sum = hidden,
           .x = hidden,
           .residual = attended.rows,
           .weight = w.post_attention_layernorm,
           .eps = eps});
  DenseMlp(f, w.mlp, {}, normed, projected);
  if (head_->norm_output) {
    return RmsNormOfHidden(f, {.rows = projected}, {.out = output, .weight = w.norm, .eps = eps});
  }
  ops_.copy_rows(stream, {.out = output, .x = hidden, .rows = f.rows()});
  ops_.add(stream, {.out = output, .x = projected});
}

void Eagle3Head::Logits(Stream& stream, int /*level*/, Matrix<const float> outputs, Matrix<float> logits,
                        const RankRows* rank_rows) const {
  const auto eps = static_cast<float>(head_->layer.rms_norm_eps);
  if (!head_->own_lm_head) {
    const Matrix<float> normed = activations_.projected.first_rows(outputs.rows);
    if (!head_->norm_output) {
      ops_.rms_norm(stream, {.out = normed, .x = outputs, .weight = weights_.norm, .eps = eps});
    }
    return target_.Logits(stream, 0, head_->norm_output ? outputs : normed, logits, rank_rows);
  }
  const Matrix<bf16> input = activations_.normed.as_bf16.first_rows(outputs.rows);
  if (head_->norm_output) {
    ops_.to_bf16_rows(stream, {.out = input, .x = outputs});
  } else {
    ops_.rms_norm(stream, {.out_bf16 = input, .x = outputs, .weight = weights_.norm, .eps = eps});
  }
  const Matrix<float> own = draft_index_ == nullptr ? logits : draft_logits_.first_rows(outputs.rows);
  ops_.gemm(stream, {.out = own, .x = input, .weight = weights_.lm_head});
  if (draft_index_ != nullptr) {
    ops_.take_columns(stream, {.out = logits, .x = own, .index = draft_index_});
  }
}

}  // namespace foredraft
