// The costs of DeepSeek-V4's ops (docs/deepseek-v4.md).

#include <algorithm>
#include <cmath>

#include "tests/bench/op_cost.h"

namespace foredraft {
namespace {

template <class T>
double BytesOf(const Matrix<T>& x) {
  return double(x.rows) * x.cols * sizeof(T);
}

// Sequences of the rows in a step.
double SequencesOf(const RowIndex& index, const CostContext& shape) {
  return std::ceil(double(index.rows) / shape.rows_per_sequence);
}

}  // namespace

OpCost CostOf(const HyperPreParams& p, const CostContext&) {
  const double weights = 4.0 * p.mix.cols * p.streams.cols;
  return {.bytes = weights + BytesOf(p.streams) + BytesOf(p.out) + BytesOf(p.mix), .stored_bytes = weights};
}

OpCost CostOf(const HyperPostParams& p, const CostContext&) {
  return {.bytes = 2 * BytesOf(p.streams) + BytesOf(p.x) + BytesOf(p.mix)};
}

OpCost CostOf(const HyperHeadParams& p, const CostContext&) {
  const double weights = 4.0 * p.pre.cols * p.streams.cols;
  return {.bytes = weights + BytesOf(p.streams) + BytesOf(p.out) + BytesOf(p.pre), .stored_bytes = weights};
}

OpCost CostOf(const BroadcastStreamsParams& p, const CostContext&) {
  return {.bytes = (p.add != 0 ? 2 : 1) * BytesOf(p.streams) + BytesOf(p.x)};
}

OpCost CostOf(const RotateHeadsParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.out) + BytesOf(p.x)};
}

OpCost CostOf(const WriteKeysParams& p, const CostContext&) {
  return {.bytes = 2 * BytesOf(p.keys) + BytesOf(p.kv)};
}

OpCost CostOf(const CompressParams& p, const CostContext&) {
  // Every row keeps its values and gates. An entry reads as many as its window has rows, the new row's among
  // them, so that a row reads one on average.
  const double state = 4.0 * p.index.rows * p.state.width;
  return {.bytes = BytesOf(p.values) + BytesOf(p.gates) + 2 * state, .stored_bytes = state};
}

OpCost CostOf(const SelectEntriesParams& p, const CostContext& shape) {
  const int64_t visible = int64_t{shape.context} / p.ratio;  // whole spans
  if (visible <= p.top_k) return {.bytes = 4.0 * p.index.rows * p.top_k};
  const double keys = SequencesOf(p.index, shape) * visible * p.entries.width * sizeof(bf16);
  return {.bytes = BytesOf(p.q) + BytesOf(p.weights) + keys + 4.0 * p.index.rows * p.top_k,
          .stored_bytes = keys,
          .bf16_flops = 2.0 * p.index.rows * visible * p.head_count * p.entries.width};
}

OpCost CostOf(const WindowAttentionParams& p, const CostContext& shape) {
  const double visible = p.ratio > 0 ? shape.context / p.ratio : 0;
  const double entries = p.selected != nullptr ? std::min<double>(visible, p.selected_count) : visible;
  const double keys = std::min(shape.context, p.window_len) + entries;  // of a row
  const double stored = SequencesOf(p.index, shape) * keys * p.layout.bytes();
  return {.bytes = BytesOf(p.out) + BytesOf(p.q) + BytesOf(p.keys) + stored,
          .stored_bytes = stored,
          .bf16_flops = 4.0 * p.index.rows * p.head_count * keys * p.layout.width()};
}

OpCost CostOf(const MeanStreamsParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.streams) + BytesOf(p.out)};
}

OpCost CostOf(const BlockAttentionParams& p, const CostContext& shape) {
  const double window = std::min(shape.context, p.window_len), keys = window + p.block_rows;  // of a row
  const double stored = double(p.index.rows) / p.block_rows * window * p.layout.bytes();
  return {.bytes = BytesOf(p.out) + BytesOf(p.q) + BytesOf(p.keys) + stored,
          .stored_bytes = stored,
          .bf16_flops = 4.0 * p.index.rows * p.head_count * keys * p.layout.width()};
}

OpCost CostOf(const DraftConfidenceParams& p, const CostContext&) {
  const double weight = 4.0 * (p.hidden.cols + p.token_rows.cols);
  return {.bytes = weight + BytesOf(p.hidden) + BytesOf(p.token_rows), .stored_bytes = weight};
}

OpCost CostOf(const RouteSoftplusParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.logits) + 4.0 * p.logits.cols + 8.0 * p.index.rows * p.top_k};
}

}  // namespace foredraft
