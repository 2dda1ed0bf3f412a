// The ops of DeepSeek-V4's attention.

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tests/bench/ops_bench.h"

namespace foredraft {
namespace {

constexpr int kContext = 16384;  // positions of a row's sequence; each row has a sequence of its own
constexpr int kWindow = 128;
constexpr int kRatio = 4, kHcaRatio = 128;
constexpr int kTopK = 512;

struct Sizes {
  int rows, heads, width, rope, index_heads, index_width;
  bool fp8;  // keys and entries
  KvRowLayout layout() const {
    return {.latent_dim = width - rope,
            .rope_dim = rope,
            .dtype = fp8 ? DType::kF8E4M3 : DType::kBF16,
            .group = KvRowLayout::kKeyGroup};
  }
  std::string NameOf(const char* op) const { return std::string(op) + (fp8 ? ", FP8 cache" : ""); }
};

// Cache rows of `count` rows a sequence, in blocks of 32. Only the last `kept` have memory of their own,
// which the rows before them share, as a window's blocks are used again.
template <class T>
PagedRows<T> Pages(OpsBench& bench, int sequences, int count, int width, int kept) {
  constexpr int kRowsPerBlock = 32;
  const int stride = (count + kRowsPerBlock - 1) / kRowsPerBlock;
  const int blocks = std::min(stride, kept / kRowsPerBlock + 1);
  std::vector<int32_t> tables;
  for (int i = 0; i < sequences * stride; ++i)
    tables.push_back(1 + i / stride * blocks + i % stride % blocks);
  return {.data = bench.Zeros<T>((size_t(sequences) * blocks + 1) * kRowsPerBlock * width),
          .block_tables = bench.Put(tables),
          .table_stride = stride,
          .rows_per_block = kRowsPerBlock,
          .width = width};
}
template <class T>
PagedRows<T> Pages(OpsBench& bench, int sequences, int count, int width) {
  return Pages<T>(bench, sequences, count, width, count);
}

RowIndex Index(OpsBench& bench, int rows) {
  std::vector<int32_t> slots(rows);
  std::iota(slots.begin(), slots.end(), 0);
  return {bench.Put(slots), bench.Put(std::vector<int32_t>(rows, kContext - 1)), rows};
}

template <class Params>
void LineOf(OpsBench& bench, const std::string& name, const Params& p, Op<Params> Ops::*op) {
  const CostContext shape = {.context = kContext};
  bench.Line({.name = name, .rows = p.index.rows, .cost = CostOf(p, shape), .context = shape},
             [&bench, p, op](int) { (bench.ops().*op)(bench.stream(), p); });
}

void RowLines(OpsBench& bench, const Sizes& s, const RowIndex& index, const float* cos_sin) {
  if (bench.Wants("rotate_heads")) {
    LineOf<RotateHeadsParams>(bench, "rotate_heads",
                              {.out = bench.Rows<bf16>(s.rows, s.heads * s.width),
                               .x = bench.Rows<const float>(s.rows, s.heads * s.width),
                               .cos_sin = cos_sin,
                               .index = index,
                               .head_count = s.heads,
                               .head_dim = s.width,
                               .rope_dim = s.rope,
                               .norm = 1,
                               .eps = 1e-6f},
                              &Ops::rotate_heads);
  }
}

// hyper_pre with its 20 rounds of Sinkhorn, and what is written back, of four streams.
void HyperLines(OpsBench& bench, const Sizes& s, int hidden) {
  constexpr int kStreams = 4, kOutputs = (2 + kStreams) * kStreams;
  const int width = kStreams * hidden;
  const CostContext shape = {.context = kContext};
  const HyperPreParams pre = {.out = bench.Rows<float>(s.rows, hidden),
                              .mix = bench.Rows<float>(s.rows, kOutputs),
                              .streams = bench.Rows<const float>(s.rows, width),
                              .fn = bench.Rows<const float>(kOutputs, width).data,
                              .scale = bench.Put(std::vector<float>(3, 0.01f)),
                              .base = bench.Zeros<float>(kOutputs),
                              .stream_count = kStreams,
                              .sinkhorn_iters = 20,
                              .hc_eps = 1e-6f,
                              .norm_eps = 1e-6f};
  if (bench.Wants("hyper_pre")) {
    bench.Line({.name = "hyper_pre", .rows = s.rows, .cost = CostOf(pre, shape), .context = shape},
               [&](int) { bench.ops().hyper_pre(bench.stream(), pre); });
  }
  const HyperPostParams post = {
      .streams = bench.Rows<float>(s.rows, width),
      .x = bench.Rows<const float>(s.rows, hidden),
      .mix = Dense<const float>(bench.Zeros<float>(s.rows * kOutputs), s.rows, kOutputs),
      .stream_count = kStreams};
  if (bench.Wants("hyper_post")) {
    bench.Line({.name = "hyper_post", .rows = s.rows, .cost = CostOf(post, shape), .context = shape},
               [&](int) { bench.ops().hyper_post(bench.stream(), post); });
  }
}

// The rows of the forward's own keys: BF16 values, or FP8 rows of zeros.
Matrix<uint8_t> KeysOf(OpsBench& bench, const Sizes& s) {
  const int bytes = s.layout().bytes();
  if (s.fp8) return Dense(bench.Zeros<uint8_t>(size_t(s.rows) * bytes), s.rows, bytes);
  return Dense(reinterpret_cast<uint8_t*>(bench.Rows<bf16>(s.rows, s.width).data), s.rows, bytes);
}

void WriteKeysLine(OpsBench& bench, const Sizes& s, const RowIndex& index, const float* cos_sin) {
  const std::string name = s.NameOf("write_keys");
  if (!bench.Wants(name)) return;
  LineOf<WriteKeysParams>(bench, name,
                          {.keys = KeysOf(bench, s),
                           .window = Pages<uint8_t>(bench, s.rows, kContext, s.layout().bytes(), kWindow),
                           .layout = s.layout(),
                           .kv = bench.Rows<const float>(s.rows, s.width),
                           .norm_weight = bench.Zeros<float>(s.width),
                           .cos_sin = cos_sin,
                           .index = index,
                           .eps = 1e-6f},
                          &Ops::write_keys);
}

// A row that completes its window, as the row at the last position of a context does.
void CompressLine(OpsBench& bench, const Sizes& s, const RowIndex& index, const float* cos_sin, int ratio) {
  const std::string name = s.NameOf(ratio == kRatio ? "compress, CSA" : "compress, HCA");
  if (!bench.Wants(name)) return;
  const int channels = ratio == kRatio ? 2 * s.width : s.width;
  LineOf<CompressParams>(bench, name,
                         {.entries = Pages<uint8_t>(bench, s.rows, kContext / ratio, s.layout().bytes()),
                          .layout = s.layout(),
                          .state = Pages<float>(bench, s.rows, kContext, 2 * channels, 2 * ratio),
                          .values = bench.Rows<const float>(s.rows, channels),
                          .gates = bench.Rows<const float>(s.rows, channels),
                          .ape = bench.Zeros<float>(size_t(ratio) * channels),
                          .norm_weight = bench.Zeros<float>(s.width),
                          .cos_sin = cos_sin,
                          .index = index,
                          .ratio = ratio,
                          .overlapping = ratio == kRatio ? 1 : 0,
                          .eps = 1e-6f},
                         &Ops::compress);
}

void SelectLine(OpsBench& bench, const Sizes& s, const RowIndex& index) {
  if (!bench.Wants("select_entries")) return;
  LineOf<SelectEntriesParams>(bench, "select_entries",
                              {.selected = bench.Zeros<int32_t>(size_t(s.rows) * kTopK),
                               .scores = bench.Rows<float>(s.rows, kContext / kRatio),
                               .q = bench.Rows<const bf16>(s.rows, s.index_heads * s.index_width),
                               .weights = bench.Rows<const float>(s.rows, s.index_heads),
                               .entries = Pages<bf16>(bench, s.rows, kContext / kRatio, s.index_width),
                               .index = index,
                               .head_count = s.index_heads,
                               .ratio = kRatio,
                               .top_k = kTopK,
                               .scale = 0.01f},
                              &Ops::select_entries);
}

// ratio 0: the window alone.
void AttentionLine(OpsBench& bench, const char* keys, const Sizes& s, const RowIndex& index, int ratio) {
  const std::string name = s.NameOf(keys);
  if (!bench.Wants(name)) return;
  std::vector<int32_t> selected(size_t(s.rows) * kTopK);
  for (size_t i = 0; i < selected.size(); ++i) selected[i] = static_cast<int32_t>(i % kTopK * 7);
  WindowAttentionParams p = {.out = bench.Rows<float>(s.rows, s.heads * s.width),
                             .q = bench.Rows<const bf16>(s.rows, s.heads * s.width),
                             .keys = KeysOf(bench, s),
                             .window = Pages<uint8_t>(bench, s.rows, kContext, s.layout().bytes(), kWindow),
                             .layout = s.layout(),
                             .sinks = bench.Zeros<float>(s.heads),
                             .index = index,
                             .head_count = s.heads,
                             .window_len = kWindow,
                             .ratio = ratio,
                             .first_position = 0,
                             .scale = 0.04f};
  if (ratio > 0) p.entries = Pages<uint8_t>(bench, s.rows, kContext / ratio, s.layout().bytes());
  if (ratio == kRatio) {
    p.selected = bench.Put(selected);
    p.selected_count = kTopK;
  }
  LineOf(bench, name, p, &Ops::window_attention);
}

}  // namespace

void V4AttentionOps(OpsBench& bench, const std::function<int(int)>& width) {
  for (const int rows : bench.rows()) {
    Sizes s = {rows, width(64), width(512), width(64), width(64), width(128), false};
    const RowIndex index = Index(bench, rows);
    const float* const cos_sin = bench.Zeros<float>(size_t{kContext} * s.rope);
    HyperLines(bench, s, width(4096));
    RowLines(bench, s, index, cos_sin);
    SelectLine(bench, s, index);
    for (const bool fp8 : {false, true}) {
      s.fp8 = fp8;
      WriteKeysLine(bench, s, index, cos_sin);
      CompressLine(bench, s, index, cos_sin, kRatio);
      CompressLine(bench, s, index, cos_sin, kHcaRatio);
      AttentionLine(bench, "window_attention, window alone", s, index, 0);
      AttentionLine(bench, "window_attention, CSA", s, index, kRatio);
      AttentionLine(bench, "window_attention, HCA", s, index, kHcaRatio);
    }
  }
}

}  // namespace foredraft
