#include "tests/bench/op_cost.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr double kF8Block = 128;

// Bytes of the elements of a matrix; 0 if it is absent.
template <class T>
double BytesOf(const Matrix<T>& x) {
  return x ? double(x.rows) * x.cols * sizeof(T) : 0;
}

double BytesOf(const QuantizedRows& x) {
  return x ? double(x.rows) * (x.cols + sizeof(float) * std::ceil(double(x.cols) / kQuantGroup)) : 0;
}

// Bytes that a GEMM reads of its input rows.
template <class Params>
double InputBytes(const Params& p, DType weight) {
  return p.x_f8 && weight == DType::kF8E4M3 ? BytesOf(p.x_f8) : BytesOf(p.x);
}

// The bytes of the experts' outputs that are read: there is room for more rows than were chosen.
template <class Params>
double ChosenBytes(const Params& p, double rows) {
  return std::min<double>(p.expert_out.rows, rows * p.top_k) * p.expert_out.cols * sizeof(float);
}

OpCost MatrixWork(double flops, DType dtype) {
  OpCost cost;
  (dtype == DType::kF8E4M3 ? cost.fp8_flops : cost.bf16_flops) = flops;
  return cost;
}

}  // namespace

OpCost& OpCost::operator+=(const OpCost& other) {
  bytes += other.bytes;
  stored_bytes += other.stored_bytes;
  bf16_flops += other.bf16_flops;
  fp8_flops += other.fp8_flops;
  return *this;
}

double RooflineSeconds(const OpCost& cost, const DeviceRates& rates) {
  const double matrix = cost.bf16_flops / rates.bf16_flops + cost.fp8_flops / rates.fp8_flops;
  return std::max(cost.bytes / rates.bytes_per_second, matrix);
}

double ExpectedExperts(double pairs, int32_t experts) {
  return experts * (1 - std::pow(1 - 1.0 / experts, pairs));
}

double MetExperts(double pairs, int32_t experts, const CostContext& shape) {
  if (shape.met_experts > 0) return shape.met_experts;
  if (shape.slowest == nullptr) return ExpectedExperts(pairs, experts);
  const ExpertChoice& choice = shape.slowest->choice();
  CHECK_EQ(choice.rank_experts(), experts);
  return shape.slowest->MostExperts(static_cast<int>(std::lround(pairs * choice.ranks / choice.top_k)));
}

double WeightBytes(const PackedWeight& weight) {
  if (Is4Bit(weight.format))
    return double(weight.n) * weight.k *
           (0.5 + double(DTypeBytes(weight.format.scale)) / weight.format.columns);
  const double elements = double(weight.n) * weight.k * DTypeBytes(weight.format.code);
  if (!IsF8(weight.format)) return elements;
  return elements + 4 * std::ceil(weight.n / kF8Block) * std::ceil(weight.k / kF8Block);
}

OpCost CostOf(const EmbedParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.out) + double(p.out.rows) * p.out.cols * sizeof(bf16)};
}

OpCost CostOf(const RmsNormParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.out) + BytesOf(p.out_bf16) + BytesOf(p.out_f8) + BytesOf(p.x) +
                   BytesOf(p.residual) + BytesOf(p.sum) + 4.0 * p.x.cols};
}

OpCost CostOf(const GemmParams& p, const CostContext&) {
  OpCost cost = MatrixWork(2.0 * p.x.rows * p.weight.n * p.weight.k, p.weight.format.code);
  cost.stored_bytes = WeightBytes(p.weight);
  cost.bytes = BytesOf(p.out) + BytesOf(p.out_bf16) + InputBytes(p, p.weight.format.code) + cost.stored_bytes;
  return cost;
}

OpCost CostOf(const HeadGemmParams& p, const CostContext&) {
  const PackedWeight& head = p.heads.first;
  OpCost cost = MatrixWork(2.0 * p.x.rows * p.heads.count * head.n * head.k, head.format.code);
  cost.stored_bytes = p.heads.count * WeightBytes(head);
  cost.bytes = cost.stored_bytes + double(p.heads.count) * p.x.rows * (head.n + head.k) * sizeof(bf16);
  return cost;
}

OpCost CostOf(const AddParams& p, const CostContext&) { return {.bytes = 2 * BytesOf(p.out) + BytesOf(p.x)}; }

OpCost CostOf(const SiluMulParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.out) + BytesOf(p.out_f8) + BytesOf(p.gate_up)};
}

OpCost CostOf(const CopyRowsParams& p, const CostContext&) {
  return {.bytes = 2.0 * p.rows * p.out.cols * sizeof(float)};
}

OpCost CostOf(const ToBf16RowsParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.out) + BytesOf(p.x)};
}

OpCost CostOf(const CopyQuantizedParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.out) + BytesOf(p.x)};
}

OpCost CostOf(const RoundNvfp4Params& p, const CostContext&) {
  const double rows = p.out ? p.out.rows : p.out_codes.rows;
  return {.bytes = BytesOf(p.out) + rows * p.x.cols * sizeof(bf16) +
                   (p.out_codes ? rows * p.out_codes.row_bytes() : 0.0)};
}

OpCost CostOf(const WidenNvfp4Params& p, const CostContext&) {
  return {.bytes = BytesOf(p.out) + double(p.x.rows) * p.x.row_bytes()};
}

OpCost CostOf(const TreeSumParams& p, const CostContext&) {
  return {.bytes = (1.0 + p.part_count) * BytesOf(p.out)};
}

OpCost CostOf(const MergeColumnsParams& p, const CostContext&) { return {.bytes = 2 * BytesOf(p.out)}; }

OpCost CostOf(const TakeColumnsParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.out) + BytesOf(p.x)};
}

OpCost CostOf(const RopeQueryParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.out) + BytesOf(p.q)};
}

OpCost CostOf(const QueryGemmParams& p, const CostContext& shape) {
  OpCost cost = CostOf(p.gemm, shape);
  cost.bytes += BytesOf(p.rope.out) - BytesOf(p.gemm.out);
  return cost;
}

OpCost CostOf(const RopeIndexQueryParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.out) + BytesOf(p.q)};
}

OpCost CostOf(const IndexKeyWriteParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.k) + double(p.k.rows) * p.keys.width * sizeof(bf16)};
}

OpCost CostOf(const KvWriteParams& p, const CostContext&) {
  OpCost cost = {.bytes = BytesOf(p.ckv) + double(p.ckv.rows) * p.layer.row_bytes()};
  if (p.q_norm.x) cost += CostOf(p.q_norm);
  return cost;
}

OpCost CostOf(const MlaDecodeParams& p, const CostContext& shape) {
  const double rows = p.index.rows;
  const double sequences = std::ceil(rows / shape.rows_per_sequence);
  const double latent = p.layer.latent_dim;
  // Per row, head and key: q k, then p v.
  const double of_codes = p.layer.fp8_products ? 2 * latent : 0;
  const double products = p.layer.row_width() + latent - of_codes;
  const double attended = AttendedPositions(p, shape);
  const bool lists = attended < shape.context;  // of each row its own
  const double keys = (lists ? rows : sequences) * attended * p.layer.row_bytes();
  return {.bytes = BytesOf(p.out) + BytesOf(p.q_lat) + rows * p.head_count * p.layer.rope_dim * sizeof(bf16) +
                   keys,
          .stored_bytes = keys,
          .bf16_flops = 2 * rows * p.head_count * attended * products,
          .fp8_flops = 2 * rows * p.head_count * attended * of_codes};
}

OpCost CostOf(const GatherKvParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.latent) + BytesOf(p.rope) + double(p.latent.rows) * p.layer.row_bytes()};
}

OpCost CostOf(const MlaPrefillParams& p, const CostContext&) {
  const double rows = p.q.rows;
  // Keys that a row attends, on average; rows past the segment attend all of it.
  const double keys = std::min<double>(p.kv.rows, p.chunk_first - p.segment_first + (rows + 1) / 2);
  const double products = p.nope_dim + p.rope_dim + p.value_dim;
  return {.bytes = BytesOf(p.out) + BytesOf(p.q) + BytesOf(p.kv) + BytesOf(p.k_pe),
          .bf16_flops = 2 * rows * keys * p.head_count * products};
}

OpCost CostOf(const RouteExpertsParams& p, const CostContext&) {
  return {.bytes = BytesOf(p.logits) + 4.0 * p.logits.cols + 8.0 * p.index.rows * p.top_k};
}

OpCost CostOf(const PartRowsParams& p, const CostContext&) { return {.bytes = 4.0 * p.rows * p.top_k}; }

OpCost CostOf(const GroupRowsParams& p, const CostContext&) { return {.bytes = 12.0 * p.rows * p.top_k}; }

int32_t MetExperts(const GroupedGemmParams& p) {
  int32_t met = 0;
  for (int32_t e = 0; e < p.experts.count; ++e) met += p.expert_offsets[e + 1] > p.expert_offsets[e];
  return met;
}

OpCost CostOf(const GroupedGemmParams& p, const CostContext& shape) {
  const PackedWeight& expert = p.experts.first;
  const double pairs = OwnPairs(p, shape);
  const double met = shape.host_arrays ? MetExperts(p) : MetExperts(pairs, p.experts.count, shape);
  OpCost cost = MatrixWork(2 * pairs * expert.n * expert.k, expert.format.code);
  cost.stored_bytes = met * WeightBytes(expert);
  const double x_rows = p.x_f8 ? p.x_f8.rows : p.x.rows;  // of which only the pairs' rows are read
  const double room = p.silu_f8 ? p.silu_f8.rows : p.out.rows;
  cost.bytes = (BytesOf(p.out) + BytesOf(p.silu_f8)) * (room > 0 ? pairs / room : 0) + cost.stored_bytes +
               InputBytes(p, expert.format.code) * std::min(1.0, pairs / x_rows);
  return cost;
}

OpCost CostOf(const CombineExpertsParams& p, const CostContext&) {
  return {.bytes = 2 * BytesOf(p.hidden) + BytesOf(p.shared) + ChosenBytes(p, p.hidden.rows)};
}

OpCost CostOf(const ExpertPartialsParams& p, const CostContext& shape) {
  if (shape.part > 0) return {};
  return {.bytes = BytesOf(p.out) + BytesOf(p.out_bf16) +
                   ChosenBytes(p, std::max(p.out.rows, p.out_bf16.rows)) / shape.expert_ranks};
}

OpCost CostOf(const AddPartialsParams& p, const CostContext&) {
  return {.bytes =
              2 * BytesOf(p.hidden) + BytesOf(p.shared) + BytesOf(p.partials) + BytesOf(p.partials_bf16)};
}

// The norm reads hidden as it is added.
OpCost CostOf(const AddPartialsNormParams& p, const CostContext& shape) {
  OpCost cost = CostOf(p.partials, shape);
  cost.bytes += CostOf(p.norm, shape).bytes - BytesOf(p.norm.x);
  return cost;
}

OpCost CostOf(const ArgmaxParams& p, const CostContext&) { return {.bytes = BytesOf(p.logits)}; }

OpCost CostOf(const SampleParams& p, const CostContext&) { return {.bytes = BytesOf(p.logits)}; }

OpCost CostOf(const RelaxDraftsParams&, const CostContext&) {
  return {};
}  // relaxed acceptance is off: no logits are read

}  // namespace foredraft
